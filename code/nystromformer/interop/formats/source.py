"""Models of others, opened: transformers' folders and the authors' checkpoints. No code in a file is ever run."""

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nystromformer.config import ModelConfig, experiment_config
from nystromformer.errors import UserError, first_line
from nystromformer.files.reading import read_json
from nystromformer.files.writing import sha256_of
from nystromformer.interop.formats.sentences import Sentences, read_sentences
from nystromformer.interop.formats.table import (
    AUTHORS,
    FORMATS,
    OWN,
    Format,
    completed,
    read_authors,
    read_network,
    unlike,
    with_defaults,
)
from nystromformer.interop.transfer import grouped
from nystromformer.model import PretrainingModel

CONFIG = "config.json"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""The first that is there is read."""
_WORD = "encoder.embeddings.word.weight"
_STATE = "model_state_dict"
_WITHIN = "_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module"
_WRAPPERS = re.compile(rf"^((module|{_WITHIN})\.)+|(?<=\.)(({_WITHIN})\.)+")
"""What DataParallel puts before names, and what torch.compile and FSDP put within them."""
_NEW_ENDS = {".gamma": ".weight", ".beta": ".bias"}
_OLD_ENDS = re.compile(r"\.(gamma|beta)$")
"""Ends of names in BERT's first release, which transformers still takes."""

SETTINGS: dict[str, Any] = {
    "pretraining_setting": {
        "objectives": ["mlm"],
        "batch_size": 256,
        "learning_rate": 1e-4,
        "warmup": 0.02,
        "batches_per_epoch": 5000,
        "epoch": 50,
        "validate_batches_per_epoch": 100,
    },
    "gpu_setting": {"inst_per_gpu": 32},
}
"""The sections beside "model" of an imported experiment: the paper's, for half of its steps."""


@dataclass(frozen=True)
class Source:
    """A model of others, of a format's kind or of the authors."""

    path: Path
    kind: str
    model: Mapping[str, Any]
    """The section "model" of its network, written out."""
    weights: Mapping[str, Tensor]
    """Those of the encoder and, where the source has one, of the head for masked tokens, by this project's names."""
    has_head: bool
    """Whether it guesses masked tokens."""
    notes: tuple[str, ...]
    """What was found and done, a line each."""
    sentences: Sentences | None
    """Of a folder of sentence-transformers."""

    @property
    def tokenizer(self) -> Path:
        """The folder where its tokenizer may be."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def stamps(self) -> dict[str, str]:
        """The SHA-256 of each of its files, by their names."""
        files = [self.path] if self.path.is_file() else sorted(path for path in self.path.iterdir() if path.is_file())
        return {path.name: sha256_of(path) for path in files}


def open_source(path: Path, config: Path | None = None, compatible: bool = False) -> Source:
    """Open a transformers folder, or a checkpoint of the authors' code.

    Args:
        config: the authors' config.json; None: beside the checkpoint, or in the folder above.
        compatible: with the attention as the source computes it, for the input that it takes; else with one that takes
            any length and any padding.

    Raises:
        UserError: not there, of another architecture (lists those that can be imported), damaged, with code in it, or
            with weights missing or of other shapes (lists all).
    """
    if path.is_dir():
        if config is not None:
            raise UserError(f"--config {config}: expected no --config with a folder, whose {CONFIG} is read")
        return _open_folder(path, compatible)
    if not path.exists():
        raise UserError(
            f"{path}: no such folder or file. For a model on the Hugging Face hub, get the files first: `hf download "
            "NAME --local-dir FOLDER`, on a machine with a network, and name that FOLDER"
        )
    if path.suffix not in (".model", ".cp"):
        raise UserError(f"{path}: expected a folder, or a .model or .cp file of the authors' code")
    return _open_authors(path, config, compatible)


def _open_folder(top: Path, compatible: bool) -> Source:
    sentences = read_sentences(top)
    folder = top / (sentences.part if sentences is not None else "")
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{folder}: no {CONFIG} there: expected a folder as transformers saves it")
    content = read_json(path)
    kind = content.get("model_type") if isinstance(content, dict) else None
    form = FORMATS.get(str(kind))
    if form is None:
        raise UserError(
            f"{path}: an unsupported architecture, model_type {kind!r}; supported: {', '.join(FORMATS)}; and "
            "checkpoints of the authors' code (.model, .cp)"
        )
    full = content if form is OWN else with_defaults(content, path)
    section, notes = read_network(form, full, path, compatible)
    if sentences is not None:
        notes.append(sentences.note())
        section["pooling"] = sentences.pooling
    weights_file = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    if weights_file is None:
        raise UserError(f"{folder}: no weights there: expected one of {', '.join(_WEIGHTS)}, in one file")
    weights, more = _tensors(_load(weights_file), weights_file)
    if not any(name.startswith(form.prefix) for name in weights):
        weights = {form.prefix + name: weight for name, weight in weights.items()}
    network = experiment_config({"model": section, **SETTINGS}, str(path)).model
    if form is not OWN and (reasons := unlike(form, full, network)):
        raise UserError(f"{path}: cannot be imported: {'; '.join(reasons)}")
    return _source(folder, form, network, completed(form, weights), notes + more, sentences)


def _open_authors(path: Path, config: Path | None, compatible: bool) -> Source:
    content = _load(path)
    if not isinstance(content, dict) or _STATE not in content:
        raise UserError(f"{path}: expected a checkpoint of the authors' code, with a {_STATE}; found something else")
    where = [config] if config is not None else [path.parent / CONFIG, path.parent.parent / CONFIG]
    described = next((each for each in where if each.is_file()), None)
    if described is None:
        looked = " and ".join(map(str, where))
        raise UserError(
            f"{path}: no config.json that describes its network; looked for {looked}. The weights do not show the "
            "numbers of heads and landmarks. Name the authors' config.json with --config"
        )
    data = read_json(described)
    section = data.get("model") if isinstance(data, dict) else None
    if not isinstance(section, dict):
        raise UserError(f"{described}: expected the authors' config.json, with a section model")
    weights, notes = _tensors(content[_STATE], path)
    if (word := weights.get(AUTHORS.named(_WORD))) is not None:
        # Their training takes it from the tokenizer, whatever the file says.
        section = section | {"vocab_size": len(word)}
    model, more = read_authors(section, described, compatible)
    network = experiment_config({"model": model, **SETTINGS}, str(described)).model
    return _source(path, AUTHORS, network, weights, notes + more)


def _load(path: Path) -> Any:
    """What a file of weights holds, if it is tensors and plain data."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file  # only now: a model of the authors' needs none of it

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path}: refused: the file holds more than tensors and plain data, and loading it could run code. If you "
            f"trust it, load it yourself and save its weights as safetensors. ({first_line(error)})"
        ) from error
    except (MemoryError, OSError):
        raise
    except Exception as error:  # torch raises whatever a damaged archive leads to
        raise UserError(
            f"{path}: truncated or damaged: {first_line(error)}. Get the model's files again, all from the same source"
        ) from error


def _tensors(content: Any, path: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors in float32, by today's names, without what wraps a model in training; and what was otherwise."""
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a dict of tensors, found a {type(content).__name__}")
    weights: dict[str, Tensor] = {}
    kinds, wrappers = set[str](), set[str]()
    for name, value in content.items():
        if not isinstance(value, Tensor):
            raise UserError(f"{path}: expected only tensors, found a {type(value).__name__} at {name!r:.80}")
        if match := _WRAPPERS.search(name):
            wrappers.add(match[0])
        if value.is_floating_point() and value.dtype != torch.float32:
            kinds.add(str(value.dtype).removeprefix("torch."))
            value = value.float()
        # Tied tensors are views of one; each gets memory of its own, so that nothing is stored twice for one of them.
        weights[_OLD_ENDS.sub(lambda end: _NEW_ENDS[end[0]], _WRAPPERS.sub("", name))] = value.contiguous()
    notes = [f"weights stored in {' and '.join(sorted(kinds))} are held in float32"] if kinds else []
    if wrappers:
        notes.append(f"names without {', '.join(sorted(wrappers))}, which wrap a model in training")
    return weights, notes


def _source(
    path: Path, form: Format, config: ModelConfig, stored: dict[str, Tensor], notes: list[str], sentences: Any = None
) -> Source:
    """The weights under this project's names; what of an encoder has no name stays as it is, and fits no model."""
    for end, ours in (("weight", _WORD), ("bias", "mlm.bias")):
        copy, name = f"{form.output}.{end}", form.named(ours)
        other = stored.pop(copy, None) if copy != name else None
        if other is not None and not torch.equal(stored.setdefault(name, other), other):
            raise UserError(
                f"{path}: {copy} differs from {name}: the source's output layer is not tied to its embeddings, which "
                "this project requires"
            )
    with torch.device("meta"):  # names are all that is needed
        names = {form.named(name): name for name in PretrainingModel(config, ["mlm"]).state_dict()}
    if not (has_head := all(theirs in stored for theirs, name in names.items() if name.startswith("mlm."))):
        notes.append("without a head for masked tokens, which begins with initial values")
        names = {theirs: name for theirs, name in names.items() if not name.startswith("mlm.")}
    # Numbers of places and the like are no weights.
    rest = [name for name, weight in stored.items() if name not in names and weight.is_floating_point()]
    inner = tuple(form.prefix + part for part in form.inner)
    names |= {name: f"encoder.{name}" for name in rest if name.startswith(inner)}
    if left_out := grouped([(name, "") for name in rest if name not in names]):
        notes.append(f"not in the model, left out: {', '.join(left_out)}")
    if missing := grouped([(name, "") for name in names if name not in stored]):
        raise UserError(f"{path}: weights are missing: {', '.join(missing)}")
    weights = {names[name]: weight for name, weight in stored.items() if name in names}
    check_finite_weights(weights, path)
    model = config.model_dump(mode="json", by_alias=True)
    return Source(path, form.kind, model, weights, has_head, tuple(notes), sentences)


def check_finite_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Check that a model's weights are numbers to compute with."""
    for name, weight in weights.items():
        if isinstance(weight, Tensor) and weight.is_floating_point() and not weight.isfinite().all():
            raise UserError(
                f"{path}: {name}: expected finite weights, found NaN or infinity: the training has diverged. Take an "
                "earlier checkpoint"
            )
