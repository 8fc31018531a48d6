"""The predictions of a finished run: made by its best epoch's weights or its last's, and again where a file of them is
not as it was written."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch

from nystromformer.errors import UserError
from nystromformer.files import FileStamp, sha256_of
from nystromformer.tasks.experiment.run import held_folder, say
from nystromformer.tasks.finetuning.definition import Splits
from nystromformer.tasks.finetuning.examples import Examples
from nystromformer.tasks.finetuning.results import RunResult
from nystromformer.tasks.finetuning.run import Setup, assembled, digest, files_of, run_folder
from nystromformer.training.checkpoint import find_weights
from nystromformer.training.fitting import load_weights
from nystromformer.wording import number_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

PREDICTIONS = "predictions"


def predict(setup: Setup, splits: Splits, test: Mapping[str, Examples], result: RunResult) -> None:
    """Write a finished run's predictions, by the weights of the epoch that the sweep asks for, and what they reach on
    test data into its result.

    Raises:
        UserError: the weights are not there any more, or do not fit.
    """
    files, group = files_of(setup, splits, result.run), setup.group
    epoch = result.choose(setup.sweep.predict).epoch
    folder, path = files.folder, files.weights(epoch)
    are_asked = _are_asked(setup, splits, test, result)
    is_other_test = bool(test) and bool(result.predictions) and result.predicted != test_fingerprint(test)
    with held_folder(folder, group):
        if not group.on_main(lambda: _has_weights(path, result, are_asked, is_other_test)):
            say(group, "%s: no such weights any more (--discard_weights), so no predictions are written", path)
            return
        everything = splits.validation | dict(test)
        count = sum(len(examples) for examples in everything.values())
        say(group, "predicting %s with %s", number_of(count, "example"), path)
        model = setup.definition.target.build(setup.config.model)
        content = group.check(lambda: files.read_weights(epoch))
        group.check(lambda: load_weights(model, content["model"], path))
        finetuning = assembled(setup, splits, result.run, model)
        finetuning.model.eval()
        with torch.no_grad(), setup.device.autocast():
            scores = {name: finetuning.scores(examples) for name, examples in everything.items()}

        def write() -> None:
            altered = _altered(folder, result)
            former = [name for name in result.predictions if (path := folder / name).is_file() and path not in altered]
            result.test_metrics, result.prediction_stamps = _stamped(
                folder, lambda target: setup.definition.write(splits, test, scores, target)
            )
            result.predictions = list(result.prediction_stamps)
            for name in set(former).difference(result.predictions):
                # Of data that are not predicted any more: beside the new ones it would pass for one of them.
                (folder / name).unlink()
            result.test_warnings = list(splits.test_warnings) if test else []
            result.predicted, result.predicted_epoch = test_fingerprint(test), epoch
            result.predicted_rows = splits.shown
            result.test_rows = {name: len(examples) for name, examples in test.items() if examples.labels is not None}
            result.write(folder)

        group.on_main(write)
        say(group, "predictions: %s", folder / PREDICTIONS)


def _has_weights(path: Path, result: RunResult, are_asked: bool, is_other_test: bool) -> bool:
    """Whether the weights are there to predict with.

    Args:
        are_asked: whether the predictions that the result names are those that are asked for.
        is_other_test: whether those are of other test data than what is to be predicted.

    Raises:
        UserError: they are not, and not because all of the run's were discarded and none are needed.
    """
    if path.is_file():
        return True
    folder = path.parent
    others = find_weights(folder)
    if others:
        names = ", ".join(other.name for other in others.values())
        raise UserError(
            f"{path}: the weights to predict with are not there, though {names} is: put the file back, ask with "
            f"--predict for the other epoch's predictions, or move {folder} away to train the run again."
        )
    if are_asked and (altered := _altered(folder, result)):
        raise UserError(
            f"{altered[0]}: not as it was written, and the weights to make it again with were discarded "
            f"(--discard_weights): put the file back, or move {folder} away to train the run again."
        )
    if is_other_test:
        # Its figures would be taken for those of the data that were asked for.
        raise UserError(
            f"{folder}: its predictions and test figures are of other test data, and the weights to predict these with "
            "were discarded (--discard_weights): give those test data or none, or move the folder away to train the "
            "run again."
        )
    return False


def has_predictions(setup: Setup, splits: Splits, test: Mapping[str, Examples], result: RunResult) -> bool:
    """Whether a run's predictions are there as they were written, of these test data and by the weights that the sweep
    asks for.
    """
    folder = run_folder(setup, splits, result.run)
    if not result.predictions or not _are_asked(setup, splits, test, result):
        return False
    if altered := _altered(folder, result):
        logger.warning("%s: not as it was written", altered[0])
        return False
    return all((folder / name).is_file() for name in result.predictions)


def _are_asked(setup: Setup, splits: Splits, test: Mapping[str, Examples], result: RunResult) -> bool:
    """Whether the predictions that a result names are of these test data and by the weights that are asked for."""
    asked = result.choose(setup.sweep.predict).epoch
    rows = (result.predicted_rows, result.predicted)
    return rows == (splits.shown, test_fingerprint(test)) and result.predicted_epoch == asked


def test_fingerprint(test: Mapping[str, Examples]) -> str:
    """Equal for equal test data."""
    return digest({name: examples.fingerprint for name, examples in test.items()})


def _stamped(folder: Path, write: Callable[[Path], T]) -> tuple[T, dict[str, FileStamp]]:
    """What `write` gives for the folder of predictions below a run's, and a stamp of each file that it wrote."""
    target = folder / PREDICTIONS
    before = _files(target)
    done = write(target)
    # Each is a new file under its name; whatever else lies there is not the run's.
    written = sorted(name for name, sign in _files(target).items() if before.get(name) != sign)
    return done, {f"{PREDICTIONS}/{name}": _stamp(target / name) for name in written}


def _altered(folder: Path, result: RunResult) -> list[Path]:
    """The prediction files that are there, but not as they were written."""
    there = [(name, folder / name) for name in result.predictions if (folder / name).is_file()]
    return [path for name, path in there if not _is_whole(path, result.prediction_stamps[name])]


def _is_whole(path: Path, stamp: FileStamp) -> bool:
    return path.stat().st_size == stamp.size and sha256_of(path) == stamp.sha256


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    files = [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
    return {path.name: ((status := path.stat()).st_ino, status.st_mtime_ns) for path in files}


def _stamp(path: Path) -> FileStamp:
    return FileStamp(path.stat().st_size, sha256_of(path))
