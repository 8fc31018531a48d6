"""Models of others, opened: transformers' folders and the authors' checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nystromformer.config import ModelConfig, experiment_config
from nystromformer.errors import UserError
from nystromformer.files.reading import read_json
from nystromformer.files.writing import sha256_of
from nystromformer.interop.formats.files import check_finite_weights, in_float32, read_pickled, read_weights
from nystromformer.interop.formats.sentences import Sentences, read_sentences
from nystromformer.interop.formats.table import (
    AUTHORS,
    FORMATS,
    OWN,
    Format,
    Network,
    completed,
    read_authors,
    read_network,
    with_defaults,
)
from nystromformer.interop.transfer import grouped
from nystromformer.model import PretrainingModel
from nystromformer.wording import listed

CONFIG = "config.json"
_WORD = "encoder.embeddings.word.weight"
_STATE = "model_state_dict"
_CONSTANTS = ("position_ids", "token_type_ids")
"""Ends of names that are no weights, stored by earlier versions."""
_OLD_ENDS = {".gamma": ".weight", ".beta": ".bias"}
"""Names of BERT's first release, which transformers still takes."""

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
    """The section "model", written out, that computes what the source computes."""
    general: Mapping[str, Any]
    """The same network with an attention that takes any length and padding."""
    weights: Mapping[str, Tensor]
    """Those of the encoder and, where the source has one, of the head for masked tokens, by this project's names."""
    tokenizer: Path
    """The folder where its tokenizer may be."""
    notes: tuple[str, ...]
    """What was found and done, a line each."""
    sentences: Sentences | None
    """Of a folder of sentence-transformers."""

    @property
    def is_warm_start(self) -> bool:
        """Whether it was trained with another attention than this project's."""
        return self.kind in ("bert", "roberta", "distilbert")

    @property
    def stamps(self) -> dict[str, str]:
        """The SHA-256 of each of its files, by their names."""
        files = [self.path] if self.path.is_file() else sorted(path for path in self.path.iterdir() if path.is_file())
        return {path.name: sha256_of(path) for path in files}


def is_foreign(path: Path) -> bool:
    """Whether a path looks like another project's model: a folder with a config.json of transformers', or a file that
    the authors' code saved."""
    try:
        if path.is_dir():
            content = read_json(path / CONFIG)
        elif path.suffix in (".model", ".cp"):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        else:
            return False
    except Exception:  # what reads it says why
        return False
    return isinstance(content, dict) and ("model_type" if path.is_dir() else _STATE) in content


def open_source(path: Path, config: Path | None = None) -> Source:
    """Open a transformers folder, or a checkpoint of the authors' code.

    Args:
        config: the authors' config.json; None: beside the checkpoint, or in the folder above.

    Raises:
        UserError: not there, of another architecture (lists those that can be imported), damaged, with code in it, or
            with weights missing or of other shapes (lists all).
    """
    if path.is_dir():
        if config is not None:
            raise UserError(f"--config {config}: expected no --config with a folder, whose {CONFIG} is read")
        return _open_folder(path)
    if not path.exists():
        raise UserError(
            f"{path}: no such folder or file. For a model on the Hugging Face hub, get the files first: `hf download "
            "NAME --local-dir FOLDER`, on a machine with a network, and name that FOLDER"
        )
    if path.suffix in (".json", ".safetensors", ".bin") and is_foreign(path.parent):
        raise UserError(f"{path}: expected a folder, found one of its files: name {path.parent}")
    return _open_authors(path, config)


def _open_folder(top: Path) -> Source:
    sentences = read_sentences(top)
    folder = top if sentences is None else sentences.transformer
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{folder}: no {CONFIG} there: expected a folder as transformers saves it")
    content = read_json(path)
    content = content if isinstance(content, dict) else {}
    kind, found = content.get("model_type"), content.get("architectures") or [""]
    if not isinstance(kind, str) or kind not in FORMATS:
        raise UserError(
            f"{path}: an unsupported architecture, model_type {kind!r}; supported: {', '.join(FORMATS)}; and "
            "checkpoints of the authors' code (.model, .cp)"
        )
    form = FORMATS[kind]
    network = read_network(form, content if form is OWN else with_defaults(content, path), path)
    weights, notes = read_weights(folder)
    if sentences is not None:
        notes += sentences.notes(network.general["max_seq_len"])
        if form is not OWN:
            added = {"pooling": sentences.pooling}
            network = Network(network.model | added, network.general | added, network.notes)
    if not any(name.startswith(form.prefix) for name in weights):
        weights = {form.prefix + name: weight for name, weight in weights.items()}
    return _source(form, network, completed(form, weights), notes, folder, str(found[0]), sentences)


def _open_authors(path: Path, config: Path | None) -> Source:
    content = read_pickled(path)
    weights = content.get(_STATE) if isinstance(content, dict) else None
    if not isinstance(weights, dict):
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
    weights, notes = in_float32(weights, path)
    word = weights.get(AUTHORS.named(_WORD))
    if word is not None and word.ndim == 2:
        # Their training takes it from the tokenizer, whatever the file says.
        section = section | {"vocab_size": len(word)}
    return _source(AUTHORS, read_authors(section, described), weights, notes, path)


def _source(
    form: Format,
    network: Network,
    stored: Mapping[str, Tensor],
    notes: list[str],
    path: Path,
    architecture: str = "",
    sentences: Sentences | None = None,
) -> Source:
    """Both configs, checked, and the weights under this project's names.

    Args:
        architecture: the class that the folder names; empty: unknown.
    """
    as_source, general = (
        experiment_config({"model": section, **SETTINGS}, str(path)).model
        for section in (network.model, network.general)
    )
    weights, left_out = _renamed(path, form, general, _untied(path, form, stored), architecture)
    said = [*notes, *network.notes]
    if left_out:
        said.append(f"not in the model, left out: {', '.join(left_out)}")
    if not any(name.startswith("mlm.") for name in weights):
        said.append("without a head for masked tokens, which begins with initial values")
    if as_source.max_seq_len < general.max_seq_len:
        said.append(f"as the source computes it, it takes {as_source.max_seq_len} tokens and no others")
    model, plain = (config.model_dump(mode="json", by_alias=True) for config in (as_source, general))
    tokenizer = path if path.is_dir() else path.parent
    return Source(path, form.kind, model, plain, weights, tokenizer, tuple(said), sentences)


def _renamed(
    path: Path, form: Format, config: ModelConfig, stored: Mapping[str, Tensor], architecture: str
) -> tuple[dict[str, Tensor], list[str]]:
    """The weights of the model by our names, and what has no place in it, such as other heads.

    Raises:
        UserError: lists every weight that is missing, of another shape, or of a layer that the config has not.
    """
    with torch.device("meta"):  # sizes are all that is needed
        shapes = {name: tensor.shape for name, tensor in PretrainingModel(config, ["mlm"]).state_dict().items()}
    head = {name for name in shapes if name.startswith("mlm.")}
    declared = architecture.endswith(("ForMaskedLM", "ForPreTraining"))
    if not (declared or (not architecture and any(form.named(name) in stored for name in head))):
        shapes = {name: shape for name, shape in shapes.items() if name not in head}
    weights: dict[str, Tensor] = {}
    problems: list[tuple[str, str]] = []
    for name, shape in shapes.items():
        theirs = form.named(name)
        if theirs not in stored:
            problems.append((theirs, f"missing, expected {tuple(shape)}"))
        elif stored[theirs].shape != shape:
            problems.append((theirs, f"expected {tuple(shape)} by {CONFIG}, found {tuple(stored[theirs].shape)}"))
        else:
            weights[name] = stored[theirs]
    used = {form.named(name) for name in shapes}
    # Numbers of places and the like are no weights.
    rest = [
        name
        for name, weight in stored.items()
        if name not in used and not name.endswith(_CONSTANTS) and weight.is_floating_point()
    ]
    own = tuple(form.prefix + part for part in form.inner)
    problems += [(name, f"of a layer or a part that {CONFIG} has not") for name in rest if name.startswith(own)]
    if problems:
        raise UserError(f"{path}: the weights do not match its {CONFIG}:{listed(grouped(problems))}")
    check_finite_weights({form.named(name): weight for name, weight in weights.items()}, path)
    return weights, grouped([(name, "") for name in rest])


def _untied(path: Path, form: Format, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the names of today, without the copies of those that are tied.

    Raises:
        UserError: a copy differs: the source's output matrix is one of its own.
    """
    weights = {}
    for name, weight in stored.items():
        old = next((end for end in _OLD_ENDS if name.endswith(end)), "")
        weights[name.removesuffix(old) + _OLD_ENDS.get(old, "")] = weight
    for copy, original in form.copies.items():
        name = form.named(original)
        if (other := weights.pop(copy, None)) is not None and not torch.equal(weights.setdefault(name, other), other):
            raise UserError(
                f"{path}: {copy} differs from {name}: the source's output layer is not tied to its embeddings, which "
                "this project requires"
            )
    return weights
