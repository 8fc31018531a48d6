"""The softmax model that is converted: an experiment's, or one of transformers'."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from nystromformer.config import AttentionConfig, ExperimentConfig, experiment_config
from nystromformer.config.overrides import apply_overrides
from nystromformer.data.dataset import TOKENIZER_FOLDER
from nystromformer.data.tokenizer import TOKENIZER_FILE
from nystromformer.errors import UserError
from nystromformer.exchange.hf import check_tokenizer
from nystromformer.exchange.hub import find_source
from nystromformer.exchange.imported import HEADLESS
from nystromformer.exchange.open_model import open_model
from nystromformer.exchange.tokenizers import import_tokenizer
from nystromformer.files import sha256_of
from nystromformer.interop.formats import is_foreign, open_source
from nystromformer.interop.formats.source import SETTINGS
from nystromformer.interop.transfer import DoesNotFit, transfer_weights
from nystromformer.model import PretrainingModel
from nystromformer.wording import listed

_SKIP = ".attention.core.skip.weight"


@dataclass(frozen=True)
class Original:
    """The source, before anything is replaced."""

    path: Path
    config: Mapping[str, Any]
    """Its config.json, as plain data."""
    weights: Mapping[str, Tensor]
    tokenizer: Tokenizer
    tokenizer_folder: Path
    has_head: bool
    """Whether its head for masked tokens was trained."""
    stamp: str
    """SHA-256 of its weights."""

    @property
    def tokenizer_sha256(self) -> str:
        """Of its tokenizer.json; empty where it lies in other files."""
        file = self.tokenizer_folder / TOKENIZER_FILE
        return sha256_of(file) if file.is_file() else ""

    @property
    def model(self) -> Mapping[str, Any]:
        section: Mapping[str, Any] = self.config["model"]
        return section


def open_original(source: Path) -> Original:
    """Open an experiment folder, or a folder of transformers.

    Raises:
        UserError: neither; a model with another attention than softmax in any layer; one without a tokenizer.
    """
    folder = find_source(source)
    opened = _of_others(folder) if is_foreign(folder) else _of_experiment(folder)
    config = experiment_config(opened.config, str(source)).model
    if others := sorted({each.name for each in config.attentions} - {"softmax"}):
        raise UserError(f"{source}: expected softmax in all layers, which is converted; found {', '.join(others)}")
    if config.reversible:
        raise UserError(f"{source}: reversible layers cannot be converted: a layer has no single input and output")
    return opened


def _of_experiment(folder: Path) -> Original:
    opened = open_model(folder)
    if opened.labels is not None:
        raise UserError(
            f"{folder}: a fine-tuned model: convert the experiment that it was fine-tuned from, then fine-tune it again"
        )
    tokenizer = check_tokenizer(opened)
    imported = opened.content.get("imported")
    has_head = not (isinstance(imported, dict) and imported.get(HEADLESS))
    config = opened.experiment.model_dump(mode="json", by_alias=True)
    where = opened.path.parent / TOKENIZER_FOLDER
    return Original(folder, config, opened.weights, tokenizer, where, has_head, sha256_of(opened.path))


def _of_others(folder: Path) -> Original:
    source = open_source(folder)
    section = dict(source.general)
    found = import_tokenizer(source.tokenizer, None, section["vocab_size"])
    assert found.tokenizer is not None
    config = experiment_config({"model": section, **SETTINGS}, str(folder))
    has_head = any(name.startswith("mlm.") for name in source.weights)
    torch.manual_seed(0)
    initial = PretrainingModel(config.model, config.pretraining_setting.objectives).state_dict()
    weights = dict(initial) | source.fitted(config.model)
    stamp = json.dumps(source.stamps, sort_keys=True)
    return Original(
        folder,
        config.model_dump(mode="json", by_alias=True),
        weights,
        found.tokenizer,
        source.tokenizer,
        has_head,
        stamp,
    )


def converted_config(
    original: Original, attention: AttentionConfig, overrides: list[str]
) -> tuple[ExperimentConfig, ExperimentConfig]:
    """The new experiment's config, and the same with the source's softmax.

    Args:
        overrides: as of --set; for both, but for what they say of the attention.

    Raises:
        UserError: an attention or overrides that do not fit the network; all problems at once.
    """
    data = json.loads(json.dumps(original.config))
    written = {"name": attention.name} | {
        key: value for key, value in attention.model_dump(mode="json").items() if key in attention.model_fields_set
    }
    data |= {"from_cp": None}
    data["model"] |= {"attn_type": written, "num_landmarks": None, "conv_kernel_size": None}
    if problems := apply_overrides(data, overrides):
        raise UserError(f"--set: {listed([str(problem) for problem in problems])}")
    new = experiment_config(data, f"{original.path} with {attention.name}")
    same = json.loads(json.dumps(data))
    same["model"] |= {key: original.model[key] for key in ("attn_type", "num_landmarks", "conv_kernel_size")}
    old = experiment_config(same, str(original.path))
    return new, old


def build(original: Original, config: ExperimentConfig) -> tuple[PretrainingModel, list[str]]:
    """A model with the source's weights, and what was done to fit them, a line each; a convolution begins at zero.

    Raises:
        UserError: the network differs in more than the attention, the convolution and the positions.
    """
    # Dropout would be noise in what is to be reproduced.
    section = config.model.model_copy(update={"dropout_prob": 0.0})
    torch.manual_seed(config.pretraining_setting.seed)
    model = PretrainingModel(section, config.pretraining_setting.objectives)
    initial = {name: torch.zeros_like(w) if name.endswith(_SKIP) else w for name, w in model.state_dict().items()}
    now = config.model.model_dump(mode="json", by_alias=True)
    try:
        transfer = transfer_weights(
            initial, now, original.weights, original.model, config.from_cp_resize, config.from_cp_positions
        )
    except DoesNotFit as error:
        raise UserError(
            f"{original.path}: conversion changes the attention, the convolution and the number of positions alone:"
            f"{listed(error.problems)}"
        ) from error
    model.load_state_dict(transfer.weights)
    return model.eval(), transfer.notes
