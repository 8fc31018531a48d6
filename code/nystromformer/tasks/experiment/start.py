"""Where weights come from, and the tokenizer without which their token ids mean nothing: config.json's `from_cp`,
another run's checkpoint; for fine-tuning, a pretrained encoder.
"""

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
from nystromformer.files.writing import NewFile, sha256_of
from nystromformer.interop.transfer import DoesNotFit, Transfer, transfer_weights
from nystromformer.model import PretrainingModel
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.training import Group
from nystromformer.training.checkpoint import choose_weights, read_checkpoint
from nystromformer.wording import listed

ENCODER = "encoder."
"""How the names of an encoder's weights begin."""


def read_run_checkpoint(path: Path, dataset: Dataset | None = None) -> dict[str, Any]:
    """A checkpoint of a run, trained with a dataset's tokenizer where one is given."""
    content = read_checkpoint(path)
    if absent := [key for key in ("config", "tokenizer", "step", "epoch") if key not in content]:
        raise UserError(f"{path}: not a checkpoint of a run: it has no {', '.join(absent)}")
    expected = content["tokenizer"] if dataset is None else dataset.manifest.tokenizer_sha256
    if content["tokenizer"] != expected:
        raise UserError(
            f"{path}: trained with another tokenizer (sha256 {content['tokenizer'][:12]}…) than the dataset's "
            f"({expected[:12]}…): its token ids stand for other words. Use the dataset that it was trained on, or one "
            "made with the same tokenizer."
        )
    return content


def load_start_weights(
    model: nn.Module, experiment: Experiment, dataset: Dataset, group: Group
) -> Mapping[str, Any] | None:
    """Give an initial model the weights that `from_cp` names, and say what was done to fit them. Gives what the run's
    checkpoints say about it: path as in config.json, sha256 and step; None where config.json names none.
    """
    config, name = experiment.config, experiment.config.from_cp
    if name is None:
        return None
    path = experiment.path(name)
    if not path.is_file():
        raise UserError(
            f"{path}: no such checkpoint (from_cp). Copy the .model or .cp of another run there (such as its "
            "model/cp-0099.model), or remove from_cp to begin with initial weights. Models of others are imported "
            "first (run_export.py import)."
        )
    content = read_run_checkpoint(path, dataset)
    before = content["config"]["model"]
    transfer = fit_weights(path, content["model"], before, config, model.state_dict())
    model.load_state_dict(transfer.weights)
    for line in (f"weights from {path} (step {content['step']})", *(f"  {note}" for note in transfer.notes)):
        group.say("%s", line)
    return {"path": name, "sha256": content["sha256"], "step": int(content["step"])}


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
    """The checkpoint of an experiment that `wanted` names, "last" or an epoch's number, read."""
    (path,) = choose_weights(experiment.checkpoints, wanted)
    content = read_run_checkpoint(path)
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
    may_differ: str = "max_seq_len, num_sen_type, attn_type and its parameters, and the objectives",
) -> Transfer:
    """A checkpoint's weights, of a config's section "model", in the shapes of another config's model, whose state dict
    is `initial`. The error lists all that differs.
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
    """Copy a dataset's tokenizer folder to the checkpoints that are made with it."""
    for path in sorted(source.iterdir()):
        target = checkpoints / TOKENIZER_FOLDER / path.name
        if path.is_file() and not (target.is_file() and target.read_bytes() == path.read_bytes()):
            with NewFile(target) as file:
                file.write(path.read_bytes())


def find_tokenizer(experiment: Experiment, sha256: str) -> Tokenizer:
    """The tokenizer that a checkpoint was trained with, by the checksum of its tokenizer.json, from beside the
    checkpoints or `data_folder`; the error lists where it was looked for.
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
