"""Pretraining: from an opened experiment to the end of its run, in one phase or several."""

import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch

from nystromformer.config import ExperimentConfig, experiment_config
from nystromformer.errors import UserError
from nystromformer.model import count_parameters
from nystromformer.tasks.experiment.checks import check_shared_equally
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.opening import OpenedPretraining, check_run_has_room, open_pretraining
from nystromformer.tasks.experiment.run import placed, pretraining_settings, resume, say, tidy
from nystromformer.tasks.experiment.start import check_can_follow, initial_model
from nystromformer.tasks.experiment.tokenizer import keep_tokenizer
from nystromformer.tasks.pretraining.batches import BatchSizes
from nystromformer.tasks.pretraining.compiled import compiled_where_it_pays
from nystromformer.tasks.pretraining.trainable import Pretraining
from nystromformer.training import Device, Group, Trainer
from nystromformer.training.checkpoint import choose_weights, epoch_name, find_checkpoints


def phases_of(experiment: Experiment) -> list[Experiment]:
    """The experiments of all phases, in their order; the last one is the run itself, and the only one of most.

    A phase's checkpoints and log are in `stage-0`, … below the run's own, which begins with the last one's weights.

    Raises:
        UserError: a phase is impossible.
    """
    stages = experiment.config.pretraining_setting.stages or ()
    phases: list[Experiment] = []
    begin = experiment.config.from_cp
    for number, stage in enumerate(stages):
        source = f"{experiment.config_file}: pretraining_setting.stages[{number}]"
        data = stage.written_over(experiment.config.model_dump(mode="json", by_alias=True))
        folder = experiment.checkpoints.resolve() / f"stage-{number}"
        data |= {"model_checkpoints": str(folder), "from_cp": begin}
        config = experiment_config(data, source)
        phases.append(replace(experiment, config=config, set_by_flag={}))
        begin = str(_last_weights(folder, config))
    if stages:
        data = experiment.config.model_dump(mode="json", by_alias=True)
        config = experiment_config(data | {"from_cp": begin}, str(experiment.config_file))
        experiment = replace(experiment, config=config)
    return [*phases, experiment]


def check_phases(phases: Sequence[Experiment], dataset_folder: Path | None, device: Device, group: Group) -> None:
    """Check all phases, so that what is wrong with the last one is known before the first is trained.

    Args:
        dataset_folder: of the run itself; None: config.json's `data_folder`.

    Raises:
        UserError: a phase's dataset is missing, damaged, does not fit, or has another tokenizer than the run's; a phase
            cannot be trained by so many processes or in this memory, or begin with the weights of the one before.
    """
    of_run = phases[-1].dataset(dataset_folder)
    for number, (phase, following) in enumerate(pairwise(phases)):
        check_can_follow(phase.config, following.config, f"{phase.config_file}: pretraining_setting.stages[{number}]")
    check_shared_equally(phases[-1].config, group.size)
    check_run_has_room(phases[-1], of_run, device, group)
    expected = of_run.manifest.tokenizer_sha256
    for phase in phases[:-1]:
        check_shared_equally(phase.config, group.size)
        dataset = phase.dataset(None)
        length, wanted = dataset.manifest.length, phase.config.model.max_seq_len
        if length != wanted:
            raise UserError(
                f"{dataset.folder}: rows of {length} tokens, where the phase's max_seq_len is {wanted}: name the "
                "folder of its rows, or set max_seq_len to their length"
            )
        if dataset.manifest.tokenizer_sha256 != expected:
            raise UserError(
                f"{dataset.folder}: made with another tokenizer than the run's own rows: its token ids mean other "
                "words. Make it with --tokenizer and the folder `tokenizer` of the run's dataset."
            )
        check_run_has_room(phase, dataset, device, group)


def _last_weights(folder: Path, config: ExperimentConfig) -> Path:
    return folder / f"{epoch_name(config.pretraining_setting.epoch - 1)}.model"


def pretrain(
    experiment: Experiment,
    dataset_folder: Path | None,
    device: Device,
    workers: int = 0,
    verify: bool = False,
    group: Group = Group(),  # noqa: B008  # immutable
) -> signal.Signals | None:
    """Run or resume the pretraining of an experiment folder; returns the signal that stopped it, if one did.

    Args:
        workers: processes that prepare batches; 0: a thread of this one.
        group: the processes that train together; each calls this.

    Raises:
        UserError: anything in the folder, the dataset or the checkpoints that does not fit.
    """
    *earlier, own = phases_of(experiment)
    if find_checkpoints(experiment.checkpoints):
        earlier = []  # its own training has begun
    if earlier:
        group.check(lambda: check_phases([*earlier, own], dataset_folder, device, group))
    begin: Path | None = None
    for number, phase in enumerate(earlier, start=1):
        say(group, "phase %d of %d: rows of %d tokens", number, len(earlier) + 1, phase.config.model.max_seq_len)
        phase = _beginning_with(begin, phase)
        stopped_by = _run(phase, None, device, workers, verify, group)
        if stopped_by is not None:
            return stopped_by
        # Of a phase that was shortened while it ran, the last ones are of another epoch than its config's last.
        begin = group.check(lambda: choose_weights(phase.checkpoints, "last"))[0]  # noqa: B023  # called at once
    return _run(_beginning_with(begin, own), dataset_folder, device, workers, verify, group)


def _beginning_with(weights: Path | None, phase: Experiment) -> Experiment:
    """The phase with `from_cp` at the weights of the one before; None: it is the first."""
    if weights is None:
        return phase
    return replace(phase, config=phase.config.model_copy(update={"from_cp": str(weights)}))


def _run(
    experiment: Experiment, dataset_folder: Path | None, device: Device, workers: int, verify: bool, group: Group
) -> signal.Signals | None:
    with ExitStack() as held:
        # What was opened has a second copy of weights and optimizer: nothing keeps it while the run goes on.
        ready = _ready(open_pretraining(experiment, dataset_folder, device, verify, group, held), workers)
        if ready is None:
            return None
        trainer, stance = ready
        with stance, device.products(experiment.config.model.transformer_dim) as are_fast:
            if are_fast:
                say(group, "float32 matrix products use oneDNN: it is faster on this processor and equally exact")
            try:
                return trainer.run()
            except RuntimeError as error:
                if "DataLoader worker" not in str(error):
                    raise
                raise UserError(
                    "a process of --workers was killed, most often because memory ran out: give fewer --workers; the "
                    "same command resumes from the last checkpoint"
                ) from error


def _ready(opened: OpenedPretraining, workers: int) -> tuple[Trainer, AbstractContextManager[None]] | None:
    """The run's trainer where it stands, and the stance of torch.compile to run it in; None where it is done."""
    experiment, config, group, checkpoint = opened.experiment, opened.config, opened.group, opened.checkpoint
    settings = pretraining_settings(config)
    group.on_main(lambda: keep_tokenizer(opened.dataset.tokenizer_folder, experiment.checkpoints))
    if checkpoint is not None and checkpoint.ends(settings):
        tidy(checkpoint, settings, group)
        passed = ", already past its new end" if checkpoint.step > settings.num_steps else ""
        if checkpoint.step < settings.num_steps:
            passed = ", budget_minutes spent"
        say(group, "%s: done: %d of %d steps%s", experiment.folder, checkpoint.step, settings.num_steps, passed)
        return None
    model = initial_model(config)
    if opened.start is not None:
        opened.start.give(model, group)
    say(group, "%s: %s parameters, %s", experiment.folder, f"{count_parameters(model):,}", opened.device)
    if (length := opened.dataset.length) < config.model.max_seq_len and config.model.positions == "learned":
        text = "rows have %d tokens: the positions from there to max_seq_len, %d, are not trained"
        say(group, text, length, config.model.max_seq_len)
    if (grown := BatchSizes.of(config.pretraining_setting, length)).first_steps[-1] >= settings.num_steps:
        _, last = grown.of_step(settings.num_steps - 1)
        say(group, "batches grow to %d of batch_size %d rows by the last step", last, grown.sizes[-1])
    layers = list(model.encoder.layers)
    pretraining = Pretraining(model, config, opened.dataset, opened.device, workers, group)
    some = pretraining.some_steps(0 if checkpoint is None else checkpoint.step)
    stance = compiled_where_it_pays(layers, pretraining, config, opened.device, group, some, settings.num_steps)
    pretraining.model = placed(model, layers, config, opened.device, group)
    where = experiment.checkpoints, opened.device
    trainer = Trainer(pretraining, settings, *where, opened.facts, group, opened.verification)
    if checkpoint is not None:
        resume(trainer, checkpoint)
    return trainer, torch.compiler.set_stance(stance)
