"""The baselines of a task, beside its runs in `baselines.json`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nystromformer.command_line.runtime import this_command
from nystromformer.errors import UserError
from nystromformer.files.checked_json import STRICT, checked, read_checked, write_checked
from nystromformer.runs.figures import Spread
from nystromformer.runs.record import Run

BASELINES = "baselines.json"


@dataclass(frozen=True)
class Baselines:
    """The baselines of a task on the same data as some runs."""

    data: str
    """Fingerprint of the training and validation data, as of the runs."""
    tested: str
    """Fingerprint of the test data, as of the runs; empty where it has no labels."""
    rows: dict[str, int]
    """Examples of each split that has labels."""
    baselines: dict[str, dict[str, Spread]]
    """By the guesser's name, then by the metric's; of test data these end in "_test"."""
    command: str
    machine: dict[str, Any]
    """See `machine_facts`."""
    __pydantic_config__ = STRICT


def read_baselines(path: Path) -> list[Baselines]:
    """What `keep_baselines` wrote; nothing where there is no file.

    Raises:
        UserError: something else is there.
    """
    try:
        return checked(list[Baselines], (read_checked(path) or {"measured": []})["measured"])
    except (ValueError, LookupError) as error:
        raise UserError(
            f"{path}: expected the baselines of a task, found something else ({error}). Remove it, and --baselines "
            "measures them again."
        ) from error


def find_baselines(measured: Sequence[Baselines], data: str, tested: str | None) -> Baselines | None:
    """Those of these data, the first of several.

    Args:
        tested: fingerprint of the test data that the baselines must have been scored on; empty: on none; None: on any.
    """
    return next((entry for entry in measured if entry.data == data and tested in (None, entry.tested)), None)


def beside(run: Run) -> Mapping[str, Mapping[str, Spread]]:
    """What the baselines reach on a run's data, by their name and the metric's; nothing where nobody measured them."""
    tested = None if run.tested is None else run.tested.data
    found = find_baselines(read_baselines(run.folder.parent / BASELINES), run.data, tested)
    return {} if found is None else found.baselines


def keep_baselines(
    folder: Path, data: str, tested: str, rows: dict[str, int], measure: Callable[[], dict[str, dict[str, Spread]]]
) -> dict[str, dict[str, Spread]]:
    """The baselines of these data from a task's folder, measured and written there where it has none.

    Raises:
        UserError: the file cannot be written, or something else is there.
    """
    from nystromformer.machine import machine_facts  # imports torch

    path = folder / BASELINES
    others = read_baselines(path)
    if (found := find_baselines(others, data, tested)) is not None:
        return found.baselines
    measured = Baselines(data, tested, rows, measure(), this_command(), machine_facts())
    write_checked(path, {"measured": [asdict(entry) for entry in (*others, measured)]})
    return measured.baselines
