"""What training on clients' events begins with: the encoder of a finished run."""

from pathlib import Path

from nystromformer.errors import UserError
from nystromformer.runs.record import open_run
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.opening import OpenedFinetuning
from nystromformer.tasks.experiment.start import pretrained_in
from nystromformer.tasks.finetuning.sweep import Begin
from nystromformer.tasks.transactions.task import Transactions
from nystromformer.training import Device, Group
from nystromformer.training.archive import read_checkpoint
from nystromformer.training.checkpoint import epoch_name


def begin_with(folder: Path, labels: Transactions) -> Begin:
    """Gives the encoder of a run's best epoch.

    Raises:
        UserError: no finished run is there, it learned from other columns, or its weights are gone.
    """
    run = open_run(folder)
    if run.kind != labels.kind or (run.texts or {}).get("features") != labels.stored.manifest.features:
        raise UserError(
            f"--from_run {folder}: expected a run of run_transactions.py on the columns, vocabularies and scales of "
            f"{labels.folder}"
        )
    if run.choices["network"] != labels.network:
        raise UserError(f"--from_run {folder}: expected --architecture {run.choices['network']} with it")
    path = folder / f"{epoch_name(run.best.epoch)}.model"
    if not path.is_file():
        raise UserError(f"{path}: no such weights: the run discarded them (--discard_weights) or they were moved")

    def begin(experiment: Experiment, device: Device, group: Group) -> OpenedFinetuning:
        found = group.check(lambda: pretrained_in(read_checkpoint(path), path, run.family))
        return OpenedFinetuning(experiment, device, group, found, None)

    return begin
