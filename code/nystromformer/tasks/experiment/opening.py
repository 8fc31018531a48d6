"""The one way into an experiment: all that a command works with, opened once, each part checked against the others.

What is wrong with config, dataset, tokenizer, checkpoints or device is known when a function of this module returns,
before anything is computed. Each returns one immutable value.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from nystromformer.config import ExperimentConfig
from nystromformer.data.dataset import Dataset
from nystromformer.data.manifest import SPLITS
from nystromformer.data.verification import verify
from nystromformer.tasks.experiment.checks import (
    check_has_training_rows,
    check_is_of_a_run,
    check_resumable,
    check_same_run,
    check_same_tokenizer,
    check_shared_equally,
)
from nystromformer.tasks.experiment.folder import Experiment, checkpoint_facts
from nystromformer.tasks.experiment.run import Saved, held_folder, newest, say
from nystromformer.tasks.experiment.start import (
    Pretrained,
    StartWeights,
    initial_model,
    open_pretrained,
    open_start_weights,
)
from nystromformer.tasks.experiment.tokenizer import find_tokenizer
from nystromformer.training import Device, Group, choose_device
from nystromformer.training.archive import read_checkpoint
from nystromformer.training.checkpoint import choose_weights
from nystromformer.training.fitting import check_weights

_NO_TRAINING_ROWS = "make one with another --validation, or score checkpoints on this one with code/run_validation.py"


@dataclass(frozen=True)
class Opened:
    """What every command gets."""

    experiment: Experiment
    device: Device
    group: Group
    """The processes that work together."""

    @property
    def config(self) -> ExperimentConfig:
        return self.experiment.config


@dataclass(frozen=True)
class OpenedPretraining(Opened):
    """A pretraining run: one to begin, or, with a checkpoint, one to go on with."""

    dataset: Dataset
    checkpoint: Saved | None
    """The run's own newest."""
    start: StartWeights | None
    """Where a new run's weights come from; None: initial weights, or those of the checkpoint."""
    facts: Mapping[str, Any]
    """What the run's checkpoints say about where they come from."""


@dataclass(frozen=True)
class OpenedScoring(Opened):
    """Checkpoints of a pretraining run, which fit its model, and validation rows for them."""

    dataset: Dataset
    checkpoints: tuple[Path, ...]


@dataclass(frozen=True)
class OpenedFinetuning(Opened):
    """What fine-tuning begins with."""

    pretrained: Pretrained | None
    """An encoder; None: initial weights."""
    tokenizer: Tokenizer | None
    """The one that the encoder was pretrained with; None where that had none."""


def run_device(experiment: Experiment, name: str, group: Group) -> Device:
    """The device that `--device` names, in the precision that config.json asks for.

    Raises:
        UserError: it is not there.
    """
    precision, rank = experiment.config.model.mixed_precision, group.local_rank if group.size > 1 else None
    return group.check(lambda: choose_device(name, precision, rank))


def open_pretraining(
    experiment: Experiment, dataset_folder: Path | None, device: Device, verify_all: bool, group: Group, held: ExitStack
) -> OpenedPretraining:
    """Open an experiment to pretrain it.

    Args:
        dataset_folder: None: config.json's `data_folder`.
        verify_all: read and check all of the dataset's rows, known to be right or not.
        group: each process calls this.
        held: gets the lock that keeps other runs out of the folder until it is closed.

    Raises:
        UserError: anything in the folder, the dataset or the checkpoints that does not fit.
    """
    check_shared_equally(experiment.config, group.size)
    dataset = group.check(lambda: experiment.dataset(dataset_folder))
    check_has_training_rows(dataset, _NO_TRAINING_ROWS)
    facts = checkpoint_facts(experiment.config, dataset)
    facts |= {"precision": device.precision, "set_by_flag": dict(experiment.set_by_flag)}
    check_same_run(facts, group)
    held.enter_context(held_folder(experiment.checkpoints, group))
    group.check(lambda: verify_on_machine(dataset, experiment, SPLITS, group, verify_all))

    def check(saved: Saved) -> None:
        check_is_of_a_run(saved.content, saved.path)
        for difference in check_resumable(saved.content, facts, saved.path):
            say(group, "changed since %s: %s", saved.path.name, difference)

    checkpoint = newest(experiment.checkpoints, group, check)
    start = None if checkpoint is not None else group.check(lambda: open_start_weights(experiment, dataset))
    facts["started_from"] = start.origin if start is not None else None
    if checkpoint is not None:
        facts["started_from"] = checkpoint.content.get("started_from")
    return OpenedPretraining(experiment, device, group, dataset, checkpoint, start, facts)


def verify_on_machine(
    dataset: Dataset, experiment: Experiment, splits: Sequence[str], group: Group, everything: bool
) -> None:
    """Verify a dataset's rows, by one process of each machine; nothing to do where they are known to be right.

    Args:
        splits: those that are used.
        everything: verify all of them, known to be right or not.

    Raises:
        UserError: a file is damaged.
    """
    if group.local_rank == 0:
        verify(dataset, SPLITS if everything else splits, experiment.checkpoints, everything)


def open_scoring(
    experiment: Experiment,
    dataset_folder: Path | None,
    device: Device,
    wanted: str,
    baselines: bool = False,
) -> OpenedScoring:
    """Open an experiment to score its checkpoints.

    Args:
        wanted: "last", "all", or an epoch's number.
        baselines: whether guessers are scored, too, which count the training rows.

    Raises:
        UserError: no such checkpoint; or one that is damaged, or fits neither config.json nor the dataset's tokenizer;
            or there are no training rows for the baselines.
    """
    dataset = experiment.dataset(dataset_folder)
    if baselines:
        check_has_training_rows(dataset, "the baselines are counted from them: leave out --baselines")
    checkpoints = []
    chosen_files = choose_weights(experiment.checkpoints, wanted, several=True)
    with torch.device("meta"):  # sizes are all that is needed
        expected = initial_model(experiment.config).state_dict()
    for path in chosen_files:
        content = read_checkpoint(path, mmap=True)
        check_is_of_a_run(content, path)
        check_same_tokenizer(content, dataset, path)
        check_weights(expected, content["model"], path)
        checkpoints.append(path)
    return OpenedScoring(experiment, device, Group(), dataset, tuple(checkpoints))


def open_finetuning(
    experiment: Experiment,
    device: Device,
    wanted: str = "last",
    group: Group = Group(),  # noqa: B008  # immutable
) -> OpenedFinetuning:
    """Open an experiment to fine-tune what it has pretrained.

    Args:
        wanted: "last", or an epoch's number.
        group: each process calls this.

    Raises:
        UserError: no such checkpoint, an unreadable one, or its tokenizer is not there.
    """

    def find() -> tuple[Pretrained, Tokenizer]:
        pretrained = open_pretrained(experiment, wanted)
        return pretrained, find_tokenizer(experiment, pretrained.tokenizer_sha256)

    pretrained, vocabulary = group.check(find)
    return OpenedFinetuning(experiment, device, group, pretrained, vocabulary)
