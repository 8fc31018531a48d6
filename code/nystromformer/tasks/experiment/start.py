"""Where weights come from, and the tokenizer without which their token ids mean nothing: config.json's `from_cp`,
another run's checkpoint; for fine-tuning, a pretrained encoder.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from nystromformer.config import ExperimentConfig
from nystromformer.data.dataset import TOKENIZER_FOLDER, Dataset
from nystromformer.data.tokenizer import TOKENIZER_FILE, load_tokenizer
from nystromformer.errors import UserError
from nystromformer.files.reading import read_json
from nystromformer.files.writing import NewFile, sha256_of
from nystromformer.interop.formats import is_foreign, open_source
from nystromformer.interop.transfer import DoesNotFit, Transfer, transfer_weights
from nystromformer.model import PretrainingModel
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.training import Group
from nystromformer.training.checkpoint import choose_weights, read_checkpoint
from nystromformer.wording import listed

ENCODER = "encoder."
"""How the names of an encoder's weights begin."""
MAY_DIFFER = "max_seq_len, num_sen_type, attn_type and its parameters, and the objectives"
_VOCABULARY = "vocab.json"
_SKIP = re.compile(r"\.attention\.core\.skip\.weight$")


def check_is_of_a_run(content: Mapping[str, Any], source: Path) -> None:
    """Check that a checkpoint has what every run of this project writes.

    Raises:
        UserError: names what it lacks.
    """
    if absent := [key for key in ("config", "tokenizer", "step", "epoch") if key not in content]:
        raise UserError(f"{source}: not a checkpoint of a run: it has no {', '.join(absent)}")


def check_same_tokenizer(content: Mapping[str, Any], dataset: Dataset, source: Path) -> None:
    """Refuse weights that were trained with another tokenizer.

    Raises:
        UserError: the two differ.
    """
    expected = dataset.manifest.tokenizer_sha256
    if content["tokenizer"] != expected:
        raise UserError(
            f"{source}: trained with another tokenizer (sha256 {content['tokenizer'][:12]}…) than the dataset's "
            f"({expected[:12]}…): its token ids stand for other words. Use the dataset that it was trained on, or one "
            "made with the same tokenizer."
        )


def load_start_weights(
    model: nn.Module, experiment: Experiment, dataset: Dataset, group: Group
) -> Mapping[str, Any] | None:
    """Give an initial model the weights that `from_cp` names, and say what was done to fit them.

    Returns:
        Path as in config.json, sha256 and step: what the run's checkpoints say about it; None where config.json names
        none.

    Raises:
        UserError: missing, unreadable, with another tokenizer, or of another architecture (lists all that differs).
    """
    config, name = experiment.config, experiment.config.from_cp
    if name is None:
        return None
    path = experiment.path(name)
    notes: list[str] = []
    initial: dict[str, Tensor] = model.state_dict()
    if is_foreign(path):
        source = open_source(path)
        notes += source.notes
        if (differs := differing_vocabulary(source.tokenizer, dataset)) is not None:
            raise UserError(
                f"{path}: {differs}: its token ids stand for other words. Make a dataset with the model's tokenizer"
            )
        if not has_vocabulary(source.tokenizer):
            notes.append("its tokenizer does not lie beside it: that the dataset's is the same is not checked")
        if source.is_warm_start:
            # What is added to the source's attention adds nothing yet.
            if any(map(_SKIP.search, initial)):
                notes.append("the convolution begins at zero")
            initial = {key: torch.zeros_like(w) if _SKIP.search(key) else w for key, w in initial.items()}
        weights, before = source.weights, source.model
        sha256, step = hashlib.sha256(json.dumps(source.stamps, sort_keys=True).encode()).hexdigest(), 0
    elif path.is_file():
        content = read_checkpoint(path)
        check_is_of_a_run(content, path)
        check_same_tokenizer(content, dataset, path)
        weights, before, sha256, step = (content[key] for key in ("model", "config", "sha256", "step"))
        before = before["model"]
    else:
        raise UserError(
            f"{path}: no such checkpoint (from_cp). Copy the .model or .cp of another run there (such as its "
            "model/cp-0099.model), or remove from_cp to begin with initial weights."
        )
    transfer = fit_weights(path, weights, before, config, initial, MAY_DIFFER)
    model.load_state_dict(transfer.weights)
    for line in (f"weights from {path} (step {step})", *(f"  {note}" for note in (*notes, *transfer.notes))):
        group.say("%s", line)
    return {"path": name, "sha256": sha256, "step": int(step)}


def initial_model(config: ExperimentConfig) -> PretrainingModel:
    """The model of a run with the initial weights that its seed decides."""
    torch.manual_seed(config.pretraining_setting.seed)
    return PretrainingModel(config.model, config.pretraining_setting.objectives)


@dataclass(frozen=True)
class Pretrained:
    """A checkpoint of a pretraining run."""

    path: Path
    sha256: str
    step: int
    epoch: int
    model_config: Mapping[str, Any]
    """The section "model" of the config.json that it was trained with."""
    tokenizer_sha256: str
    encoder: Mapping[str, Tensor]
    """The weights whose names begin with "encoder."."""

    @property
    def name(self) -> str:
        return self.path.stem


def open_pretrained(experiment: Experiment, wanted: str) -> Pretrained:
    """The checkpoint of an experiment that `wanted` names, "last" or an epoch's number, read.

    Raises:
        UserError: no such checkpoint, or an unreadable one.
    """
    (path,) = choose_weights(experiment.checkpoints, wanted)
    content = read_checkpoint(path)
    check_is_of_a_run(content, path)
    return Pretrained(
        path,
        content["sha256"],
        int(content["step"]),
        int(content["epoch"]),
        content["config"]["model"],
        content["tokenizer"],
        {name: weight for name, weight in content["model"].items() if name.startswith(ENCODER)},
    )


def fit_weights(
    path: Path,
    weights: Mapping[str, Tensor],
    section: Mapping[str, Any],
    config: ExperimentConfig,
    initial: Mapping[str, Tensor],
    may_differ: str,
) -> Transfer:
    """A checkpoint's weights in the shapes of a config's model.

    Args:
        section: the config's "model" that they are of.
        initial: the model's state dict.

    Raises:
        UserError: of another architecture (lists all that differs).
    """
    now = config.model.model_dump(mode="json", by_alias=True)
    try:
        return transfer_weights(initial, now, weights, section, config.from_cp_resize, config.from_cp_positions)
    except DoesNotFit as error:
        lines = listed(error.args)
        raise UserError(
            f"{path}: of another architecture than the model in config.json:{lines}\n"
            f"The model may differ in {may_differ}."
        ) from error


def keep_tokenizer(source: Path, checkpoints: Path) -> None:
    """Copy a dataset's tokenizer folder to the checkpoints that are made with it.

    Raises:
        UserError: it cannot be written.
    """
    for path in sorted(source.iterdir()):
        target = checkpoints / TOKENIZER_FOLDER / path.name
        if path.is_file() and not (target.is_file() and target.read_bytes() == path.read_bytes()):
            with NewFile(target) as file:
                file.write(path.read_bytes())


def find_tokenizer(experiment: Experiment, sha256: str) -> Tokenizer:
    """The tokenizer that a checkpoint was trained with, from beside the checkpoints or `data_folder`.

    Args:
        sha256: of its tokenizer.json, as the checkpoint says.

    Raises:
        UserError: none is there, or only others; lists where it was looked for.
    """
    if not sha256:
        raise UserError(
            f"{experiment.checkpoints}: the model was imported without a tokenizer, which is needed here: import it "
            "again with --tokenizer"
        )
    places = (experiment.checkpoints, experiment.path(experiment.config.data_folder))
    folders, others = [place / TOKENIZER_FOLDER for place in places], []
    for folder in folders:
        path = folder / TOKENIZER_FILE
        if path.is_file():
            its_sha256 = sha256_of(path)
            if its_sha256 == sha256:
                return load_tokenizer(folder)
            others.append(f"{path} is another one (sha256 {its_sha256[:12]}…)")
    looked = "; ".join(others) or "looked for " + " and ".join(str(folder / TOKENIZER_FILE) for folder in folders)
    raise UserError(
        f"the checkpoint's tokenizer (sha256 {sha256[:12]}…) was not found: {looked}. Put it beside the "
        "checkpoints, where pretraining puts a copy: it is the folder `tokenizer` of the dataset"
    )


def has_vocabulary(folder: Path) -> bool:
    """Whether a model of others comes with a tokenizer whose tokens can be read."""
    return any((folder / name).is_file() for name in (TOKENIZER_FILE, _VOCABULARY))


def differing_vocabulary(folder: Path, dataset: Dataset) -> str | None:
    """How the tokens of a model of others differ from those of a dataset; None where they do not, or are not known.

    The files of the two tokenizers may differ: preprocessing writes one in the form of its rows.

    Raises:
        UserError: one of them cannot be read.
    """
    if not has_vocabulary(folder):
        return None
    ours = load_tokenizer(dataset.folder / TOKENIZER_FOLDER).get_vocab()
    is_json = (folder / TOKENIZER_FILE).is_file()
    theirs = load_tokenizer(folder).get_vocab() if is_json else read_json(folder / _VOCABULARY)
    if not isinstance(theirs, dict) or theirs == ours:
        return None if isinstance(theirs, dict) else f"{_VOCABULARY}: expected tokens with their ids"
    other = sorted(token for token in {*ours, *theirs} if ours.get(token) != theirs.get(token))
    return (
        f"another tokenizer than the dataset's: {len(other):,} tokens have another id or are in one of them alone, "
        f"such as {other[0]!r:.40}"
    )
