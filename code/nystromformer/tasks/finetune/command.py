"""What the fine-tuning commands do once their flags are read."""

from collections.abc import Callable, Sequence
from typing import NoReturn

from nystromformer.tasks.experiment import Experiment
from nystromformer.tasks.finetune.definition import Definition
from nystromformer.tasks.finetune.results import table
from nystromformer.tasks.finetune.settings import Sweep
from nystromformer.tasks.finetune.sweep import finetune
from nystromformer.training import choose_device, join_group


def run_sweeps(
    experiment: Experiment, definitions: Sequence[Definition], sweep: Sweep, device: str, show: Callable[[str], None]
) -> NoReturn:
    """Run a sweep of each task, one after another, show its table, and end the process with an exit status.

    Args:
        show: prints a text; of several processes only the main one's is called.

    Raises:
        UserError: anything that does not fit; the tasks before it are done.
    """
    with join_group() as group:
        precision = experiment.config.model.mixed_precision
        chosen = group.check(lambda: choose_device(device, precision, group.local_rank if group.size > 1 else None))
        status = 0
        for definition in definitions:
            done = finetune(experiment, definition, sweep, chosen, group)
            if done.stopped_by is not None:
                status = 128 + done.stopped_by
                break
            if group.is_main:
                show(f"\n{definition.name}, {experiment.folder}, {done.results[0].checkpoint}\n{table(done.results)}")
    group.leave(status)
