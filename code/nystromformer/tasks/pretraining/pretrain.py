"""Pretraining: from an opened experiment to the end of its run."""

import signal
from contextlib import ExitStack
from pathlib import Path

from nystromformer.model import count_parameters
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.opening import OpenedPretraining, open_pretraining
from nystromformer.tasks.experiment.run import placed, pretraining_settings, resume, say, tidy
from nystromformer.tasks.experiment.start import initial_model
from nystromformer.tasks.experiment.tokenizer import keep_tokenizer
from nystromformer.tasks.pretraining.batches import BatchSizes
from nystromformer.tasks.pretraining.trainable import Pretraining
from nystromformer.training import Device, Group, Trainer


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
    with ExitStack() as held:
        # What was opened has a second copy of weights and optimizer: nothing keeps it while the run goes on.
        trainer = _trainer(open_pretraining(experiment, dataset_folder, device, verify, group, held), workers)
        if trainer is None:
            return None
        with device.products(experiment.config.model.transformer_dim) as are_fast:
            if are_fast:
                say(group, "float32 matrix products use oneDNN: it is faster on this processor and equally exact")
            return trainer.run()


def _trainer(opened: OpenedPretraining, workers: int) -> Trainer | None:
    """The run's trainer where it stands; None where the run is done."""
    experiment, config, group, checkpoint = opened.experiment, opened.config, opened.group, opened.checkpoint
    settings = pretraining_settings(config)
    group.on_main(lambda: keep_tokenizer(opened.dataset.tokenizer_folder, experiment.checkpoints))
    if checkpoint is not None and checkpoint.ends(settings):
        tidy(checkpoint, settings, group)
        passed = ", already past its new end" if checkpoint.step > settings.num_steps else ""
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
    pretraining.model = placed(model, layers, config, opened.device, group)
    where = experiment.checkpoints, opened.device
    trainer = Trainer(pretraining, settings, *where, opened.facts, group)
    if checkpoint is not None:
        resume(trainer, checkpoint)
    return trainer
