"""A model of others as an experiment folder: config.json, model/cp-0000.model, and the tokenizer beside it."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nystromformer
from nystromformer.config import ExperimentConfig, experiment_config
from nystromformer.config.attention_text import parse_attention
from nystromformer.data.dataset import TOKENIZER_FOLDER
from nystromformer.errors import UserError
from nystromformer.exchange.folders import check_free, write_folder
from nystromformer.exchange.hub import find_source
from nystromformer.exchange.tokenizers import ImportedTokenizer, import_tokenizer
from nystromformer.files import write_json
from nystromformer.interop.formats import Source, open_source
from nystromformer.interop.formats.source import SETTINGS, SEVERAL
from nystromformer.model import PretrainingModel
from nystromformer.training.archive import FORMAT, write_checkpoint
from nystromformer.training.checkpoint import epoch_name
from nystromformer.training.run_record import id_of

logger = logging.getLogger(__name__)

CHECKPOINTS = "model"
HEAD_FOLDER = "classification"
"""Where below the checkpoints a source's classification lies, as a fine-tuned model."""
HEADLESS = "headless"
"""Of what a checkpoint says of its import: whether the source had no head for masked tokens."""
_SKIP = ".attention.core.skip.weight"


@dataclass(frozen=True)
class ImportSettings:
    """What of the imported network is chosen."""

    compatible: bool = False
    """Compute the attention as the source does: on the lengths that it takes, with what it does to padding."""
    conv_kernel_size: int | None = None
    """Of a warm start from BERT or RoBERTa: taps of the convolution, which begins at zero; 0: none; None: 33."""
    num_landmarks: int | None = None
    """Of a warm start with nystrom; None: 64."""
    attention: str | None = None
    """Of a warm start: as `parse_attention` takes it; None: nystrom."""

    @property
    def replaces(self) -> bool:
        """Whether any of it is of the attention that takes softmax's place."""
        return (self.conv_kernel_size, self.num_landmarks, self.attention) != (None, None, None)


def import_model(
    source: Path,
    dest: Path,
    settings: ImportSettings,
    config: Path | None = None,
    tokenizer: str | None = None,
    force: bool = False,
) -> list[str]:
    """Import into a new experiment folder; returns what was found and done, a line each.

    Args:
        config: of the authors' checkpoint, see `open_source`.
        tokenizer: its folder, or "none"; None: beside the source.

    Raises:
        UserError: as of `open_source`; a tokenizer that is not there or does not fit; a folder that is not empty.
            Nothing is written then.
    """
    check_free(dest, force, source)
    opened = open_source(find_source(source), config)
    notes = list(opened.notes)
    if not opened.is_warm_start and settings.replaces:
        raise UserError(
            f"{source}: --attention, --conv_kernel_size and --num_landmarks are for BERT and RoBERTa, whose attention "
            "is replaced; this model has its own: change config.json afterwards"
        )
    described = experiment_config({"model": _section(opened, settings, notes), **SETTINGS}, str(source))
    vocabulary = import_tokenizer(opened.tokenizer, tokenizer, described.model.vocab_size)
    notes += vocabulary.notes

    def write(folder: Path) -> None:
        _write(folder, opened, described, vocabulary)

    write_folder(dest, write, force, source)
    if opened.head is not None:
        notes.append(f"its classification is {dest / CHECKPOINTS / HEAD_FOLDER}")
    return notes


def _section(source: Source, settings: ImportSettings, notes: list[str]) -> dict[str, Any]:
    """The section "model" of the new experiment."""
    if settings.compatible:
        if source.is_warm_start and settings.replaces:
            raise UserError(
                "--compatible keeps the source's softmax: expected no --attention, --conv_kernel_size, --num_landmarks"
            )
        return dict(source.model)
    section = dict(source.general)
    if not source.is_warm_start:
        return section
    if settings.attention is not None:
        return section | _replaced(settings, settings.attention, notes)
    taps = 33 if settings.conv_kernel_size is None else settings.conv_kernel_size
    landmarks = settings.num_landmarks or 64
    notes.append(
        f"Nyström attention with {landmarks} landmarks in softmax's place: at most {landmarks} tokens get what the "
        "source gives them" + (f"; its convolution of {taps} taps begins at zero" if taps else "")
    )
    return section | {"attn_type": "nystrom", "num_landmarks": landmarks, "conv_kernel_size": taps or None}


def _replaced(settings: ImportSettings, text: str, notes: list[str]) -> dict[str, Any]:
    """The keys of the section "model" for an attention that a flag names."""
    attention, told = parse_attention(text)
    own = dict(told)
    if settings.num_landmarks is not None:
        if "num_landmarks" not in type(attention).model_fields or "num_landmarks" in own:
            raise UserError(
                f"--num_landmarks {settings.num_landmarks}: expected an attention with landmarks beside it whose "
                f"number is not given, found --attention {text}"
            )
        own["num_landmarks"] = settings.num_landmarks
    taps = settings.conv_kernel_size
    if attention.name == "softmax":
        notes.append("softmax, as in the source")
    else:
        notes.append(
            f"{attention.name} in softmax's place, untrained: run_export.py convert trains it towards the source"
        )
    if taps:
        notes.append(f"its convolution of {taps} taps begins at zero")
    return {"attn_type": {"name": attention.name, **own}, "conv_kernel_size": taps or None}


def write_config(folder: Path, config: ExperimentConfig) -> None:
    """Write the config.json of a new experiment: what is not default, and the attention."""
    plain = config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    plain["model"]["attn_type"] = config.model_dump(mode="json")["model"]["attn_type"]
    write_json(folder / "config.json", plain)


def _write(folder: Path, source: Source, config: ExperimentConfig, tokenizer: ImportedTokenizer) -> None:
    write_config(folder, config)
    checkpoints = folder / CHECKPOINTS
    checkpoints.mkdir()
    sha256 = tokenizer.write(checkpoints / TOKENIZER_FOLDER)
    name = f"{epoch_name(0)}.model"
    write_checkpoint(checkpoint(source, config, sha256, _weights(source, config)), checkpoints / name)
    if source.head is not None:
        classification = checkpoints / HEAD_FOLDER
        classification.mkdir()
        encoder = {key: value for key, value in _weights(source, config).items() if key.startswith("encoder.")}
        content = checkpoint(source, config, sha256, encoder | dict(source.head.weights))
        head = {"between": source.head.activation, "labels": list(source.head.labels)}
        if source.head.has_several:
            head["problem_type"] = SEVERAL
        write_checkpoint(content | {"head": head}, classification / name)


def checkpoint(
    source: Source, config: ExperimentConfig, tokenizer_sha256: str, weights: Mapping[str, Tensor]
) -> dict[str, Any]:
    """What a checkpoint of an imported model holds: a run's facts at step 0, and where it comes from."""
    facts = {
        "version": nystromformer.__version__,
        "config": config.model_dump(mode="json", by_alias=True),
        "dataset": "",
        "tokenizer": tokenizer_sha256,
        "imported": {
            "kind": source.kind,
            "files": source.stamps,
            HEADLESS: not any(name.startswith("mlm.") for name in source.weights),
        },
    }
    return {"format": FORMAT, "run_id": id_of(facts), **facts, "epoch": 0, "step": 0, "model": dict(weights)}


def _weights(source: Source, config: ExperimentConfig) -> dict[str, Tensor]:
    """All weights of the experiment's model: the source's, a convolution of zeros where it had none, and initial
    values for a head that it has not."""
    torch.manual_seed(0)
    model = PretrainingModel(config.model, config.pretraining_setting.objectives)
    weights = {name: torch.zeros_like(w) if name.endswith(_SKIP) else w for name, w in model.state_dict().items()}
    return weights | source.fitted(config.model)
