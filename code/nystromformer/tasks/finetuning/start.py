"""The pretrained encoder that a fine-tuning run begins with."""

import math

import torch
from torch import nn

from nystromformer.config import ExperimentConfig, experiment_config
from nystromformer.errors import UserError
from nystromformer.interop.transfer import Transfer
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.start import ENCODER, Pretrained, fit_weights
from nystromformer.wording import number_of

_WORDS = "encoder.embeddings.word.weight"


def finetuning_config(
    experiment: Experiment, length: int, num_tokens: int, pad_to: int | None = None
) -> ExperimentConfig:
    """The experiment's config with room for rows of `length` tokens and a tokenizer of `num_tokens`.

    Raises:
        UserError: such a model is impossible, or its attention cannot take rows of any length and `pad_to` is not set
            to one that it takes.
    """
    config = experiment.config
    attentions = config.model.attentions
    for index, attention in enumerate(attentions):
        # Rows of any length are to be taken, a single token's too, where they are not padded to one.
        refused = pad_to or 1
        if (reason := attention.why_not_length(refused)) is not None:
            # Layers with different numbers of landmarks may have no common length nearby.
            step = math.lcm(*(other.length_step for other in attentions))
            fitting = -(-length // step) * step
            such_as = f" (such as --pad_to {fitting})" if fitting < 9 * length else ""
            advice = "add --pad_to with a length that it accepts" if pad_to is None else "choose another --pad_to"
            raise UserError(
                f"{experiment.folder / 'config.json'}: layer {index}'s attention does not accept rows of "
                f"{number_of(refused, 'token')}: {reason}; or {advice}{such_as}"
            )
    data = config.model_dump(mode="json", by_alias=True)
    model = data["model"]
    model["max_seq_len"] = max(model["max_seq_len"], length, pad_to or 0)
    model["vocab_size"] = max(model["vocab_size"], num_tokens)
    return experiment_config(data, f"{experiment.folder / 'config.json'} with rows of {length} tokens")


def load_encoder(model: nn.Module, config: ExperimentConfig, pretrained: Pretrained) -> Transfer:
    """Give a model with fresh weights the pretrained ones of its encoder.

    A longer position table repeats, as for `from_cp`; tokens beyond the checkpoint's vocabulary keep the values that
    they have.

    Returns:
        What was done.

    Raises:
        UserError: of another architecture (lists all that differs).
    """
    initial = {name: weight for name, weight in model.state_dict().items() if name.startswith(ENCODER)}
    source, then = dict(pretrained.encoder), dict(pretrained.model_config)
    added = config.model.vocab_size - then["vocab_size"]
    if added > 0 and _WORDS in source:
        source[_WORDS] = torch.cat([source[_WORDS], initial[_WORDS][-added:]])
        then["vocab_size"] = config.model.vocab_size
    may_differ = "max_seq_len, num_sen_type, attn_type and its parameters"
    transfer = fit_weights(pretrained.path, source, then, config, initial, may_differ)
    model.load_state_dict(transfer.weights, strict=False)
    return transfer
