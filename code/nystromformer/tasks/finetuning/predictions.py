"""The predictions of a finished run: made by its best epoch's weights or its last's, and again where a file of them is
not as it was written."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from nystromformer.errors import UserError
from nystromformer.files.writing import FileStamp, NewFile, sha256_of
from nystromformer.runs.record import Run, Tested
from nystromformer.tasks.experiment.run import held_folder, say
from nystromformer.tasks.finetuning.definition import Splits
from nystromformer.tasks.finetuning.examples import Examples, Texts
from nystromformer.tasks.finetuning.run import Setup, assembled, digest, files_of
from nystromformer.training.checkpoint import find_weights
from nystromformer.training.fitting import load_weights
from nystromformer.wording import number_of


def write_scored(path: Path, texts: Texts, scores: Tensor, names: Sequence[str] | None) -> None:
    """Write a TSV: each row's id (its number in the file from 0 on, where `texts` has no ids), the label where there
    is one, the prediction, and the probability of each class in a column p_CLASS; of values the value alone, exactly
    as it is. Rounded, scores of a model that has hardly learned would tie or move, and their correlations with them.

    Args:
        scores: (n, C) logits, or (n, 1) values.
        names: of the classes, None for values.

    Raises:
        UserError: the file cannot be written.
        ValueError: the split has not as many rows as there are scores.
    """
    if len(texts) != len(scores):
        raise ValueError(f"{texts.name}: expected scores of {number_of(len(texts), 'row')}, found {len(scores)}")
    columns = {"id": texts.ids if texts.ids is not None else list(map(str, range(len(texts))))}
    if names is None:
        if texts.labels is not None:
            columns["label"] = list(map(str, texts.labels))
        columns["prediction"] = list(map(repr, scores[:, 0].float().tolist()))
    else:
        if texts.labels is not None:
            columns["label"] = [names[int(label)] for label in texts.labels]
        columns["prediction"] = [names[number] for number in scores.argmax(dim=1).tolist()]
        chances = scores.float().softmax(dim=1).T.tolist()
        columns |= {f"p_{name}": [f"{p:.6f}" for p in column] for name, column in zip(names, chances, strict=True)}
    write_rows(path, list(columns), zip(*columns.values(), strict=True))


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write tab-separated rows, all or none.

    Raises:
        UserError: the file cannot be written.
    """
    with NewFile(path) as file:
        for row in (header, *rows):
            file.write(("\t".join(row) + "\n").encode())


logger = logging.getLogger(__name__)

T = TypeVar("T")

PREDICTIONS = "predictions"


def predict(setup: Setup, splits: Splits, test: Mapping[str, Examples], run: Run) -> Run:
    """Write a finished run's predictions, by the weights of the epoch that the sweep asks for, and what they reach on
    test data into its record; returns that.

    Raises:
        UserError: the weights are not there any more, or do not fit.
    """
    files, group = files_of(setup, splits, run.settings), setup.group
    epoch = run.choose(setup.sweep.predict).epoch
    folder, path = files.folder, files.weights(epoch)
    are_asked = _are_asked(setup, splits, test, run)
    is_other_test = bool(test) and run.tested is not None and run.tested.data != test_fingerprint(test)
    with held_folder(folder, group):
        if not group.on_main(lambda: _has_weights(path, run, are_asked, is_other_test)):
            say(group, "%s: no such weights any more (--discard_weights), so no predictions are written", path)
            return run
        everything = splits.validation | dict(test)
        count = sum(len(examples) for examples in everything.values())
        say(group, "predicting %s with %s", number_of(count, "example"), path)
        model = setup.definition.target.build(setup.config.model)
        content = group.check(lambda: files.read_weights(epoch))
        group.check(lambda: load_weights(model, content["model"], path))
        finetuning = assembled(setup, splits, run.settings, model)
        finetuning.model.eval()
        with torch.no_grad(), setup.device.autocast():
            scores = {name: finetuning.scores(examples) for name, examples in everything.items()}

        def write() -> Run:
            altered, before = _altered(run), run.tested.files if run.tested is not None else {}
            former = [name for name in before if (path := folder / name).is_file() and path not in altered]
            metrics, files = _stamped(folder, lambda target: setup.definition.write(splits, test, scores, target))
            for name in set(former).difference(files):
                # Of data that are not predicted any more: beside the new ones it would pass for one of them.
                (folder / name).unlink()
            tested = Tested(
                epoch=epoch,
                data=test_fingerprint(test),
                shown=splits.shown,
                files=files,
                metrics=metrics,
                rows={name: len(examples) for name, examples in test.items() if examples.labels is not None},
                warnings=tuple(splits.test_warnings) if test else (),
            )
            done = replace(run, tested=tested)
            done.write()
            return done

        done = group.on_main(write)
        say(group, "predictions: %s", folder / PREDICTIONS)
        return done


def _has_weights(path: Path, run: Run, are_asked: bool, is_other_test: bool) -> bool:
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
    if are_asked and (altered := _altered(run)):
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


def has_predictions(setup: Setup, splits: Splits, test: Mapping[str, Examples], run: Run) -> bool:
    """Whether a run's predictions are there as they were written, of these test data and by the weights that the sweep
    asks for.
    """
    if run.tested is None or not run.tested.files or not _are_asked(setup, splits, test, run):
        return False
    if altered := _altered(run):
        logger.warning("%s: not as it was written", altered[0])
        return False
    return all((run.folder / name).is_file() for name in run.tested.files)


def _are_asked(setup: Setup, splits: Splits, test: Mapping[str, Examples], run: Run) -> bool:
    """Whether a run's predictions are of these test data and by the weights that are asked for."""
    asked = (run.choose(setup.sweep.predict).epoch, test_fingerprint(test), splits.shown)
    return run.tested is not None and asked == (run.tested.epoch, run.tested.data, run.tested.shown)


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


def _altered(run: Run) -> list[Path]:
    """The prediction files that are there, but not as they were written."""
    there = {run.folder / name: stamp for name, stamp in (run.tested.files if run.tested is not None else {}).items()}
    return [path for path, stamp in there.items() if path.is_file() and not _is_whole(path, stamp)]


def _is_whole(path: Path, stamp: FileStamp) -> bool:
    return path.stat().st_size == stamp.size and sha256_of(path) == stamp.sha256


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    files = [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
    return {path.name: ((status := path.stat()).st_ino, status.st_mtime_ns) for path in files}


def _stamp(path: Path) -> FileStamp:
    return FileStamp(path.stat().st_size, sha256_of(path))
