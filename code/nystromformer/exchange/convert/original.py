"""The softmax model that is converted: an experiment's, or one of transformers'."""

from pathlib import Path

import torch

from nystromformer.config import AttentionConfig, ExperimentConfig, experiment_config
from nystromformer.config.overrides import apply_overrides
from nystromformer.data.tokenizer import sha256_as_saved
from nystromformer.errors import UserError
from nystromformer.exchange.hf import check_tokenizer
from nystromformer.exchange.hub import find_source
from nystromformer.exchange.import_model import HEADLESS, checkpoint_of, initial_weights
from nystromformer.exchange.open_model import Opened, open_model
from nystromformer.exchange.tokenizers import import_tokenizer
from nystromformer.interop.formats import is_foreign, open_source
from nystromformer.interop.formats.source import SETTINGS
from nystromformer.interop.transfer import DoesNotFit, transfer_weights
from nystromformer.model import PretrainingModel
from nystromformer.wording import listed

_ATTENTION = ("attn_type", "num_landmarks", "conv_kernel_size")


def open_original(path: Path) -> Opened:
    """Open an experiment folder, or a folder of transformers.

    Raises:
        UserError: neither; a model with another attention than softmax in any layer; one without a tokenizer.
    """
    folder = find_source(path)
    if is_foreign(folder):
        source = open_source(folder)
        if source.head is not None:
            raise UserError(_refusal(folder))
        config = experiment_config({"model": dict(source.general), **SETTINGS}, str(folder))
        found = import_tokenizer(source.tokenizer, None, config.model.vocab_size)
        content = checkpoint_of(source, config, sha256_as_saved(found.tokenizer))
        original = Opened(folder.name, folder, folder, content, config, found.tokenizer)
    else:
        original = open_model(folder)
    if original.labels is not None:
        raise UserError(_refusal(folder))
    check_tokenizer(original)
    if others := sorted({each.name for each in original.config.attentions} - {"softmax"}):
        raise UserError(
            f"{path}: expected softmax in all layers, because conversion replaces it; found {', '.join(others)}"
        )
    if original.config.reversible:
        raise UserError(f"{path}: reversible layers cannot be converted: a layer has no single input and output")
    return original


def _refusal(folder: Path) -> str:
    return f"{folder}: a fine-tuned model: convert the model that it was fine-tuned from, then fine-tune it again"


def has_head(original: Opened) -> bool:
    """Whether its head for masked tokens was trained."""
    return not original.content.get("imported", {}).get(HEADLESS, False)


def converted_config(
    original: Opened, attention: AttentionConfig, overrides: list[str]
) -> tuple[ExperimentConfig, ExperimentConfig]:
    """The new experiment's config, and the same with the source's softmax.

    Args:
        overrides: as of --set; for both, but for what they say of the attention.

    Raises:
        UserError: an attention or overrides that do not fit the network; all problems at once.
    """
    data = original.experiment.model_dump(mode="json", by_alias=True)
    softmax = {key: data["model"][key] for key in _ATTENTION}
    written = attention.model_dump(mode="json", include={"name", *attention.model_fields_set})
    # The new folder has weights of its own, whose training is over.
    data |= {"from_cp": None, "model_checkpoints": ExperimentConfig.model_fields["model_checkpoints"].default}
    data["pretraining_setting"] |= {"stages": None}
    data["model"] |= {"attn_type": written, "num_landmarks": None, "conv_kernel_size": None}
    if problems := apply_overrides(data, overrides):
        raise UserError(f"--set: {listed([str(problem) for problem in problems])}")
    new = experiment_config(data, f"{original.folder} with {attention.name}")
    return new, experiment_config(data | {"model": data["model"] | softmax}, str(original.folder))


def build(original: Opened, config: ExperimentConfig) -> tuple[PretrainingModel, list[str]]:
    """A model with the source's weights, and what was done to fit them, a line each; a convolution begins at zero.

    Raises:
        UserError: the network differs in more than the attention, the convolution and the positions.
    """
    # Dropout would be noise in what is to be reproduced.
    section = config.model.model_copy(update={"dropout_prob": 0.0})
    torch.manual_seed(config.pretraining_setting.seed)
    model = PretrainingModel(section, config.pretraining_setting.objectives)
    now, before = (each.model_dump(mode="json", by_alias=True) for each in (config.model, original.config))
    try:
        transfer = transfer_weights(
            initial_weights(model), now, original.weights, before, config.from_cp_resize, config.from_cp_positions
        )
    except DoesNotFit as error:
        raise UserError(
            f"{original.folder}: conversion changes only the attention, the convolution and the number of "
            f"positions:{listed(error.problems)}"
        ) from error
    model.load_state_dict(transfer.weights)
    return model.eval(), transfer.notes
