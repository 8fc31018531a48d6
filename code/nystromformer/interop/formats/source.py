"""A model that others stored, opened: its network, its weights by this project's names, and where its tokenizer is.

Shapes: P positions, E width.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from nystromformer.config import ModelConfig, experiment_config
from nystromformer.errors import UserError
from nystromformer.files.reading import read_json
from nystromformer.files.writing import sha256_of
from nystromformer.interop.formats import modernbert
from nystromformer.interop.formats.files import check_finite_weights, in_float32, read_pickled, read_weights
from nystromformer.interop.formats.names import AUTHORS, BERT, MODERNBERT, NYSTROMFORMER, OWN, ROBERTA, Names
from nystromformer.interop.formats.translate import (
    OWN_TYPE,
    Translated,
    translate_authors,
    translate_own,
    translate_transformers,
    with_defaults,
)
from nystromformer.interop.transfer import grouped
from nystromformer.model import PretrainingModel
from nystromformer.wording import listed

CONFIG = "config.json"
_OF_FOLDERS = (".json", ".safetensors", ".bin")
"""How files end that transformers saves together."""
_WORD, _POSITIONS = "encoder.embeddings.word.weight", "encoder.embeddings.position.weight"
_KINDS = {
    "nystromformer": NYSTROMFORMER,
    "bert": BERT,
    "roberta": ROBERTA,
    "modernbert": MODERNBERT,
    OWN_TYPE: OWN,
}
_ARCHITECTURES = (
    *("NystromformerForMaskedLM", "NystromformerForSequenceClassification", "NystromformerModel"),
    *("BertForMaskedLM", "BertForPreTraining", "BertModel", "BertForSequenceClassification"),
    *("RobertaForMaskedLM", "RobertaModel", "RobertaForSequenceClassification"),
    *("ModernBertForMaskedLM", "ModernBertModel"),
    *("NystromEncoderForMaskedLM", "NystromEncoderForSequenceClassification"),
)
_POOLING, _MODE = "1_Pooling", "pooling_mode_"
"""Where sentence-transformers usually says how it pools, and how its keys begin."""
_LONGEST = "sentence_bert_config.json"
_MODULES, _PARTS = "modules.json", ("Transformer", "Pooling", "Normalize")
"""Where it says what comes one after another, and what of that is known."""
_STATE = "model_state_dict"
_PARALLEL = "module."
"""Before all names that DataParallel saved."""
SEVERAL: Literal["multi_label_classification"] = "multi_label_classification"
"""transformers' problem_type of a text that may have any number of labels."""
# Names of BERT's first release, which transformers still takes.
_OLD_ENDS = {".gamma": ".weight", ".beta": ".bias"}

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
class Head:
    """A source's head for classes of rows, from the first token's vector."""

    weights: Mapping[str, Tensor]
    """head.dense.* and head.classifier.*"""
    activation: str
    """Between its two linear maps: tanh, gelu or gelu_tanh."""
    labels: tuple[str, ...]
    has_several: bool
    """Whether a text may have any number of the labels (problem_type multi_label_classification)."""


@dataclass(frozen=True)
class Source:
    """A model of others."""

    path: Path
    kind: str
    """nystromformer, bert, roberta, modernbert, nystrom_encoder, or authors."""
    model: Mapping[str, Any]
    """The section "model", written out, that computes what the source computes."""
    general: Mapping[str, Any]
    """The same network with an attention that takes any length and padding."""
    weights: Mapping[str, Tensor]
    """Those of the encoder and, where the source has one, of the head for masked tokens, by this project's names."""
    head: Head | None
    tokenizer: Path
    """The folder where its tokenizer may be."""
    notes: tuple[str, ...]
    """What was found and done, a line each."""

    @property
    def is_warm_start(self) -> bool:
        """Whether it was trained with another attention than this project's."""
        return self.kind in ("bert", "roberta")

    @property
    def stamps(self) -> dict[str, str]:
        """The SHA-256 of each of its files, by their names."""
        files = [self.path] if self.path.is_file() else sorted(path for path in self.path.iterdir() if path.is_file())
        return {path.name: sha256_of(path) for path in files}

    def fitted(self, config: ModelConfig) -> dict[str, Tensor]:
        """The weights for a config of the same network, whose table of positions may be shorter."""
        weights = dict(self.weights)
        if config.positions == "learned":
            weights[_POSITIONS] = weights[_POSITIONS][: config.position_offset + config.max_seq_len]
        return weights


def is_foreign(path: Path) -> bool:
    """Whether a path looks like another project's model: a folder with a config.json of transformers', or a file that
    the authors' code saved."""
    if path.is_dir():
        try:
            content = read_json(path / CONFIG)
        except (UserError, OSError):
            return False
        return isinstance(content, dict) and "model_type" in content
    if path.suffix not in (".model", ".cp") or not path.is_file():
        return False
    for mapped in (True, False):  # what versions of torch before 1.6 wrote cannot be mapped
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        except Exception:  # what reads it says why
            continue
        return isinstance(content, dict) and _STATE in content
    return False


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
    if path.suffix in _OF_FOLDERS and is_foreign(path.parent):
        raise UserError(f"{path}: expected a folder, found one of its files: name {path.parent}")
    return _open_authors(path, config)


def _open_folder(folder: Path) -> Source:
    modules = _modules_of(folder)
    pooling = None if modules.get("Pooling") is None else _read_pooling(folder / modules["Pooling"] / CONFIG)
    folder = folder / modules.get("Transformer", "")
    path = folder / CONFIG
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise UserError(f"{folder}: no {CONFIG} there: expected a folder as transformers saves it") from None
    if isinstance(content, dict) and isinstance(content.get("model"), dict) and "model_type" not in content:
        raise UserError(f"{path}: an experiment of this project, which needs no import: name {folder} as --model")
    supported = f"supported: {', '.join(_ARCHITECTURES)}; and checkpoints of the authors' code (.model, .cp)"
    kind = content.get("model_type") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(kind, str) or kind not in _KINDS:
        raise UserError(f"{path}: an unsupported architecture, model_type {kind!r}; {supported}")
    found = content.get("architectures") or []
    architecture = found[0] if isinstance(found, list) and found else None
    if architecture is not None and architecture not in _ARCHITECTURES:
        raise UserError(f"{path}: an unsupported architecture, {architecture!r}; {supported}")
    translated = translate_own(content, path) if kind == OWN_TYPE else translate_transformers(content, path)
    weights, notes = read_weights(folder)
    if kind != OWN_TYPE and pooling is not None:
        translated = translated.with_pooling(pooling)
        notes.append(f"pooling: {pooling}, as sentence-transformers has it")
        notes += _note_of_length(folder, translated.general["max_seq_len"])
    names = _KINDS[kind]
    if not any(name.startswith(names.prefix) for name in weights):
        weights = {names.prefix + name: weight for name, weight in weights.items()}
    if names is MODERNBERT:
        weights = modernbert.separated(weights, with_defaults(content, path))
    activation = {"bert": "tanh", "roberta": "tanh", OWN_TYPE: content.get("classifier_act", "tanh")}.get(kind)
    activation = activation or translated.model["activation"]
    declared = _Declared(str(architecture or ""), content.get("id2label"), content.get("problem_type") == SEVERAL)
    return _source(folder, kind, names, translated, weights, notes, activation, declared, folder)


def _read_pooling(path: Path) -> str:
    """How a model of sentence-transformers pools, "first" or "mean", by the config.json of that part.

    Raises:
        UserError: it is not there, or it pools in another way.
    """
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file, where {_MODULES} says how the model pools: copy it again") from None
    said = content if isinstance(content, dict) else {}
    modes = [key.removeprefix(_MODE) for key, value in said.items() if key.startswith(_MODE) and value is True]
    if isinstance(said.get("pooling_mode"), str):  # later versions name the one
        modes = [said["pooling_mode"]]
    pooling = {"cls_token": "first", "cls": "first", "mean_tokens": "mean", "mean": "mean"}
    if len(modes) != 1 or modes[0] not in pooling:
        raise UserError(
            f"{path}: expected the first token's vector (cls_token) or the mean (mean_tokens), found "
            f"{', '.join(modes) or 'neither'}: move the file away, and set model.pooling in config.json afterwards"
        )
    return pooling[modes[0]]


def _note_of_length(folder: Path, longest: int) -> list[str]:
    """What is said where sentence-transformers reads fewer tokens than the model takes."""
    content = read_json(folder / _LONGEST) if (folder / _LONGEST).is_file() else {}
    length = content.get("max_seq_length") if isinstance(content, dict) else None
    if not isinstance(length, int) or length >= longest:
        return []
    return [f"sentence-transformers cuts texts at {length} tokens, this model at {longest}"]


def _modules_of(folder: Path) -> dict[str, str]:
    """The folders of a sentence-transformers model's parts, by the parts' names; none of another model.

    Raises:
        UserError: it computes more after the pooling than vectors of length one.
    """
    path = folder / _MODULES
    if not path.is_file():
        return {"Pooling": _POOLING} if (folder / _POOLING / CONFIG).is_file() else {}
    content = read_json(path)
    modules = [each if isinstance(each, dict) else {} for each in content] if isinstance(content, list) else []
    parts = {str(each.get("type")).rpartition(".")[2]: str(each.get("path", "")) for each in modules}
    if not parts or not set(parts) <= set(_PARTS):
        raise UserError(
            f"{path}: expected the parts {', '.join(_PARTS)}, found {', '.join(parts) or 'none'}: such a model has "
            "more parts than this project's encoder and its pooling; move the file away to import these two"
        )
    return parts


def _open_authors(path: Path, config: Path | None) -> Source:
    content = read_pickled(path)
    weights = content.get(_STATE) if isinstance(content, dict) else None
    if not isinstance(weights, dict):
        is_own = isinstance(content, dict) and "format" in content
        found = "one of this project, which needs no import: from_cp takes it as it is" if is_own else "something else"
        raise UserError(f"{path}: expected a checkpoint of the authors' code, with a {_STATE}; found {found}")
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
    if all(name.startswith(_PARALLEL) for name in weights):
        weights = {name.removeprefix(_PARALLEL): weight for name, weight in weights.items()}
    word = weights.get(AUTHORS.theirs(_WORD) or "")
    if word is not None and word.ndim == 2:
        # Their training takes it from the tokenizer, whatever the file says.
        section = section | {"vocab_size": len(word)}
    translated = translate_authors(section, described)
    return _source(path, "authors", AUTHORS, translated, weights, notes, "tanh", _Declared(), path.parent)


@dataclass(frozen=True)
class _Declared:
    """What a config.json says of the heads."""

    architecture: str = ""
    id2label: object = None
    has_several: bool = False

    @property
    def has_mlm(self) -> bool:
        return self.architecture.endswith(("ForMaskedLM", "ForPreTraining"))

    @property
    def has_classes(self) -> bool:
        return self.architecture.endswith("ForSequenceClassification")

    def labels(self, path: Path, count: int) -> tuple[str, ...]:
        """The names of so many classes, in the order of their numbers.

        Raises:
            UserError: they are named otherwise.
        """
        if self.id2label is None:
            return tuple(f"LABEL_{number}" for number in range(count))
        named = self.id2label if isinstance(self.id2label, dict) else {}
        by_number = {str(key): str(label) for key, label in named.items()}
        if by_number.keys() != {str(number) for number in range(count)}:
            raise UserError(
                f"{path / CONFIG}: id2label: expected a label for each of the {count} outputs of its head, 0 to "
                f"{count - 1}, found {', '.join(by_number) or repr(self.id2label)[:40]}"
            )
        return tuple(by_number[str(number)] for number in range(count))


def _source(
    path: Path,
    kind: str,
    names: Names,
    translated: Translated,
    stored: Mapping[str, Tensor],
    notes: Iterable[str],
    activation: str,
    declared: _Declared,
    tokenizer: Path,
) -> Source:
    sections = {
        key: experiment_config({"model": model, **SETTINGS}, str(path)).model
        for key, model in (("model", translated.model), ("general", translated.general))
    }
    stored = {_modern(name): weight for name, weight in stored.items()}
    weights, head, left_out = _renamed(path, names, sections["general"], stored, declared)
    said = [*notes, *translated.notes]
    if left_out:
        said.append(f"not in the model, left out: {', '.join(left_out)}")
    if not any(name.startswith("mlm.") for name in weights):
        said.append("without a head for masked tokens, which begins with initial values")
    as_source = sections["model"]
    if as_source.max_seq_len < sections["general"].max_seq_len:
        said.append(f"as the source computes it, it takes {as_source.max_seq_len} tokens and no others")
    plain = {key: config.model_dump(mode="json", by_alias=True) for key, config in sections.items()}
    source = Source(path, kind, plain["model"], plain["general"], weights, None, tokenizer, tuple(said))
    if not head:
        return source
    labels = declared.labels(path, len(head["head.classifier.weight"]))
    return replace(source, head=Head(head, activation, labels, declared.has_several))


def _modern(name: str) -> str:
    for old, new in _OLD_ENDS.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _renamed(
    path: Path, names: Names, config: ModelConfig, stored: Mapping[str, Tensor], declared: _Declared
) -> tuple[dict[str, Tensor], dict[str, Tensor], list[str]]:
    """The weights of the model and of a classification's head by our names, and what is neither.

    Raises:
        UserError: lists every weight that is missing, of another shape, or of a layer that the config has not.
    """
    with torch.device("meta"):  # sizes are all that is needed
        expected = {name: tensor.shape for name, tensor in PretrainingModel(config, ["mlm"]).state_dict().items()}
    stored = _untied(path, names, stored)
    theirs = {name: _known(names, name) for name in expected}
    has_mlm = declared.has_mlm or any(name.startswith("mlm.") and theirs[name] in stored for name in expected)
    weights: dict[str, Tensor] = {}
    problems: list[tuple[str, str]] = []
    used: set[str] = set()
    for name, shape in expected.items():
        if name.startswith("mlm.") and not has_mlm:
            continue
        weight = stored.get(theirs[name])
        used.add(theirs[name])
        if weight is None:
            problems.append((theirs[name], f"missing, expected {tuple(shape)}"))
        elif weight.shape != shape:
            problems.append((theirs[name], f"expected {tuple(shape)} by {CONFIG}, found {tuple(weight.shape)}"))
        else:
            weights[name] = weight
    rest = [
        # Numbers of places and the like are no weights.
        name
        for name, weight in stored.items()
        if name not in used and not name.endswith(names.ignored) and weight.is_floating_point()
    ]
    problems += [(name, f"of a layer or a part that {CONFIG} has not") for name in rest if _of_encoder(names, name)]
    head, problems_of_head = _head(names, config.transformer_dim, stored, declared.has_classes)
    problems += problems_of_head
    if problems:
        raise UserError(f"{path}: the weights do not match its {CONFIG}:{listed(grouped(problems))}")
    check_finite_weights({_known(names, name): weight for name, weight in {**weights, **head}.items()}, path)
    of_head = {_known(names, name) for name in head}
    return weights, head, grouped([(name, "") for name in rest if name not in of_head])


def _known(names: Names, name: str) -> str:
    theirs = names.theirs(name)
    assert theirs is not None, name
    return theirs


def _of_encoder(names: Names, name: str) -> bool:
    """Whether a weight that the model has no place for is one of the encoder's own."""
    parts = ("",) if names in (AUTHORS, OWN, MODERNBERT) else ("embeddings.", "encoder.")
    own = tuple(names.prefix + part for part in parts)
    return name.startswith(own)


def _untied(path: Path, names: Names, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights without the copies of those that are tied.

    Raises:
        UserError: a copy differs: the source's output matrix is one of its own.
    """
    weights = dict(stored)
    for original, copies in ((_WORD, names.word_copies), ("mlm.bias", names.bias_copies)):
        name = _known(names, original)
        for copy in copies:
            if (other := weights.pop(copy, None)) is None:
                continue
            if not torch.equal(weights.setdefault(name, other), other):
                raise UserError(
                    f"{path}: {copy} differs from {name}: the source's output layer is not tied to its embeddings, "
                    "which this project requires"
                )
    return weights


def _head(
    names: Names, width: int, stored: Mapping[str, Tensor], is_declared: bool
) -> tuple[dict[str, Tensor], list[tuple[str, str]]]:
    """A classification's head, and what is wrong with it; none where it is not declared and only parts of one are
    there, such as BERT's pooler."""
    parts = [f"head.{part}.{kind}" for part in ("dense", "classifier") for kind in ("weight", "bias")]
    found = {name: stored[theirs] for name in parts if (theirs := _known(names, name)) in stored}
    if "head.classifier.weight" not in found and not is_declared:
        return {}, []
    problems = [(_known(names, name), "missing") for name in parts if name not in found]
    if "head.classifier.weight" not in found:
        return {}, problems
    classes = len(found["head.classifier.weight"])
    shapes = dict(zip(parts, [(width, width), (width,), (classes, width), (classes,)], strict=True))
    problems += [
        (_known(names, name), f"expected {shapes[name]}, found {tuple(weight.shape)}")
        for name, weight in found.items()
        if weight.shape != shapes[name]
    ]
    return found, problems
