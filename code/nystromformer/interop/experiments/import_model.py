"""A model of others as an experiment folder: config.json, model/cp-0000.model, and the tokenizer beside it."""

import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, normalizers
from torch import Tensor

import nystromformer
from nystromformer.config import ExperimentConfig, experiment_config
from nystromformer.config.attention_text import parse_attention
from nystromformer.config.overrides import apply_overrides
from nystromformer.data.dataset import TOKENIZER_FOLDER
from nystromformer.data.tokenizer import read_tokenizer, save_tokenizer, sha256_as_saved
from nystromformer.errors import UserError, first_line
from nystromformer.files.writing import write_json
from nystromformer.interop.experiments.folders import check_free, write_folder
from nystromformer.interop.experiments.settings import ImportSettings
from nystromformer.interop.formats.sentences import Sentences
from nystromformer.interop.formats.source import SETTINGS, open_source
from nystromformer.model import PretrainingModel
from nystromformer.tasks.experiment.start import fit_weights
from nystromformer.training.checkpoint import FORMAT, epoch_name, write_checkpoint

MAY_DIFFER = "the attention, its convolution and max_seq_len"
_SKIP = ".attention.core.skip.weight"
_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_WORDS = ("*.json", "merges.txt", "1_Pooling/config.json")
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
"""safetensors, and what is taken where there are none."""
_SUFFIXES = (".safetensors", ".bin", ".model", ".cp", ".pt", ".pth", ".json")


def import_model(
    source: Path,
    dest: Path,
    settings: ImportSettings = ImportSettings(),  # noqa: B008  # it is frozen
    config: Path | None = None,
    tokenizer: str | None = None,
) -> list[str]:
    """Import into a new experiment folder, or write nothing; returns what was found and done, a line each.

    Args:
        config: of the authors' checkpoint, see `open_source`.
        tokenizer: its folder, or "none"; None: beside the source.
    """
    check_free(dest)
    opened = open_source(find_source(source), config, settings.compatible)
    described = changed_config(
        {"model": dict(opened.model), **SETTINGS}, str(source), settings.attention, settings.length, settings.overrides
    )
    read = None
    if tokenizer != "none":
        try:
            read = read_tokenizer(Path(tokenizer or opened.tokenizer))
        except UserError as error:
            raise UserError(f"{error}. Name its folder, or none, with --tokenizer") from error
        if (size := read.get_vocab_size()) > (rows := described.model.vocab_size):
            raise UserError(f"{source}: the tokenizer has {size} tokens, the model embeddings for {rows}")
        if opened.sentences is not None and opened.sentences.lower_case:
            own = [] if read.normalizer is None else [read.normalizer]
            read.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
    torch.manual_seed(0)
    initial = initial_weights(PretrainingModel(described.model, described.pretraining_setting.objectives))
    transfer = fit_weights(source, opened.weights, opened.model, described, initial, MAY_DIFFER)
    notes = [*opened.notes, *transfer.notes]
    if read is None:
        notes.append("without a tokenizer: fine-tuning and validation, which compare tokenizers, refuse the model")
    if settings.attention is not None and {each.name for each in described.model.attentions} != {"softmax"}:
        notes.append("the new attention is untrained: run_export.py convert trains it towards the source")
    imported = {"kind": opened.kind, "files": opened.stamps, "headless": not opened.has_head}

    def write(folder: Path) -> None:
        write_experiment(folder, described, read, opened.sentences, transfer.weights, {"imported": imported})

    write_folder(dest, write)
    return notes


def find_source(source: Path) -> Path:
    """A folder or file that is there; else of a name such as `owner/model` the folder with its download from the hub.

    What looks like a path (ends as weights do, or names a folder that is here before its slash) is asked of nobody.
    """
    name = str(source)
    is_path = source.suffix in _SUFFIXES or (len(source.parts) == 2 and source.parent.exists())
    if source.exists() or is_path or not _NAME.fullmatch(name):
        return source
    download = importlib.import_module("huggingface_hub").snapshot_download
    try:
        for pattern in _WEIGHTS:
            folder = Path(download(name, allow_patterns=[*_WORDS, pattern]))
            if any(folder.glob(pattern)):
                break
    except Exception as error:  # whatever the network's layers raise
        raise UserError(
            f"{name}: no such folder here, and it cannot be downloaded from the Hugging Face hub: {first_line(error)}. "
            "On a machine with a network, get the files with `hf download NAME --local-dir FOLDER`, copy FOLDER here "
            "and name it"
        ) from error
    return folder


def changed_config(
    data: dict[str, Any], place: str, attention: str | None, length: int | None, overrides: Sequence[str] | None
) -> ExperimentConfig:
    """An experiment's config with another attention for all layers, another length and keys that flags give."""
    if attention is not None:
        config, parameters = parse_attention(attention)
        plain = {"name": config.name, **parameters}
        data["model"] = data["model"] | {"attn_type": plain, "num_landmarks": None, "conv_kernel_size": None}
    if length is not None:
        data["model"] = data["model"] | {"max_seq_len": length}
    return experiment_config(data, place, apply_overrides(data, overrides or []))


def write_experiment(
    folder: Path,
    config: ExperimentConfig,
    tokenizer: Tokenizer | None,
    sentences: Sentences | None,
    weights: Mapping[str, Tensor],
    origin: Mapping[str, Any],
) -> None:
    """Write an experiment: of its config what is not default, and the attention; its tokenizer; a checkpoint at step 0,
    with what is to be said of where it comes from."""
    plain = config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    plain["model"]["attn_type"] = config.model_dump(mode="json")["model"]["attn_type"]
    write_json(folder / "config.json", plain)
    checkpoints = folder / "model"
    checkpoints.mkdir()
    if tokenizer is not None:
        save_tokenizer(tokenizer, checkpoints / TOKENIZER_FOLDER)
        if sentences is not None:
            sentences.keep(checkpoints / TOKENIZER_FOLDER)
    content = {
        "format": FORMAT,
        "version": nystromformer.__version__,
        "config": config.model_dump(mode="json", by_alias=True),
        "dataset": "",
        "tokenizer": sha256_as_saved(tokenizer),
        **origin,
        "epoch": 0,
        "step": 0,
        "model": dict(weights),
    }
    write_checkpoint(content, checkpoints / f"{epoch_name(0)}.model")


def initial_weights(model: PretrainingModel) -> dict[str, Tensor]:
    """A new model's, but convolutions begin at zero."""
    return {name: torch.zeros_like(w) if name.endswith(_SKIP) else w for name, w in model.state_dict().items()}
