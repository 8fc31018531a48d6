"""A model of others as an experiment folder: config.json, model/cp-0000.model, and the tokenizer beside it."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

import nystromformer
from nystromformer.config import ExperimentConfig, experiment_config
from nystromformer.config.attention_text import parse_attention
from nystromformer.data.dataset import TOKENIZER_FOLDER
from nystromformer.data.tokenizer import save_tokenizer, sha256_as_saved
from nystromformer.errors import UserError
from nystromformer.files.writing import write_json
from nystromformer.interop.experiments.folders import check_free, write_folder
from nystromformer.interop.experiments.hub import find_source
from nystromformer.interop.experiments.settings import ImportSettings
from nystromformer.interop.experiments.tokenizers import import_tokenizer
from nystromformer.interop.formats import Source, open_source
from nystromformer.interop.formats.source import SETTINGS, SEVERAL
from nystromformer.model import PretrainingModel
from nystromformer.training.checkpoint import FORMAT, epoch_name, write_checkpoint

logger = logging.getLogger(__name__)

CHECKPOINTS, WEIGHTS = "model", f"{epoch_name(0)}.model"
HEAD_FOLDER = "classification"
"""Where below the checkpoints a source's classification lies, as a fine-tuned model."""
HEADLESS = "headless"
"""Of what a checkpoint says of its import: whether the source had no head for masked tokens."""
_SKIP = ".attention.core.skip.weight"


def import_model(
    source: Path,
    dest: Path,
    settings: ImportSettings,
    config: Path | None = None,
    tokenizer: str | None = None,
) -> list[str]:
    """Import into a new experiment folder; returns what was found and done, a line each.

    Args:
        config: of the authors' checkpoint, see `open_source`.
        tokenizer: its folder, or "none"; None: beside the source.

    Raises:
        UserError: as of `open_source`; a tokenizer that is not there or does not fit; a folder that is not empty.
            Nothing is written then.
    """
    check_free(dest)
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
        content = checkpoint_of(opened, described, sha256_as_saved(vocabulary.tokenizer))
        write_experiment(folder, described, vocabulary.tokenizer, content)
        if opened.head is not None:
            encoder = {name: weight for name, weight in content["model"].items() if name.startswith("encoder.")}
            head: dict[str, Any] = {"between": opened.head.activation, "labels": list(opened.head.labels)}
            if opened.head.has_several:
                head["problem_type"] = SEVERAL
            classifier = content | {"model": encoder | dict(opened.head.weights), "head": head}
            (folder / CHECKPOINTS / HEAD_FOLDER).mkdir()
            write_checkpoint(classifier, folder / CHECKPOINTS / HEAD_FOLDER / WEIGHTS)

    write_folder(dest, write)
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
                f"--num_landmarks {settings.num_landmarks}: expected --attention to name an attention with landmarks, "
                f"without their number, found --attention {text}"
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


def write_experiment(
    folder: Path, config: ExperimentConfig, tokenizer: Tokenizer | None, content: Mapping[str, Any]
) -> None:
    """Write an experiment: of its config what is not default, and the attention; its tokenizer; a checkpoint."""
    plain = config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    plain["model"]["attn_type"] = config.model_dump(mode="json")["model"]["attn_type"]
    write_json(folder / "config.json", plain)
    checkpoints = folder / CHECKPOINTS
    checkpoints.mkdir()
    if tokenizer is not None:
        save_tokenizer(tokenizer, checkpoints / TOKENIZER_FOLDER)
    write_checkpoint(content, checkpoints / WEIGHTS)


def checkpoint_of(source: Source, config: ExperimentConfig, tokenizer_sha256: str) -> dict[str, Any]:
    """What a checkpoint of an imported model holds: facts, where it comes from, and all weights of the experiment's
    model: the source's, a convolution of zeros where it had none, and initial ones of a head that it has not.
    """
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
    torch.manual_seed(0)
    model = PretrainingModel(config.model, config.pretraining_setting.objectives)
    return initial_checkpoint(facts, initial_weights(model) | source.fitted(config.model))


def initial_checkpoint(facts: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """What a checkpoint at step 0 holds."""
    return {"format": FORMAT, **facts, "epoch": 0, "step": 0, "model": dict(weights)}


def initial_weights(model: PretrainingModel) -> dict[str, Tensor]:
    """A new model's, but convolutions begin at zero."""
    return {name: torch.zeros_like(w) if name.endswith(_SKIP) else w for name, w in model.state_dict().items()}
