"""The predictions of a finished run: made by its best epoch's weights or its last's, and again where a file of them is
not as it was written."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from nystromformer.errors import UserError
from nystromformer.files.writing import FileStamp, NewFile, sha256_of
from nystromformer.runs.objective import TEMPERATURE, THRESHOLD
from nystromformer.runs.record import Run, Tested
from nystromformer.tasks.experiment.run import held_folder, say
from nystromformer.tasks.finetuning.calibration import calibration_error_of
from nystromformer.tasks.finetuning.definition import Splits
from nystromformer.tasks.finetuning.examples import Examples, Texts
from nystromformer.tasks.finetuning.objective import decided, measure_tested, scores_of
from nystromformer.tasks.finetuning.run import Setup, assembled, digest, files_of
from nystromformer.tasks.finetuning.target import TokenLabels
from nystromformer.training.checkpoint import find_weights
from nystromformer.training.fitting import load_weights
from nystromformer.wording import number_of

logger = logging.getLogger(__name__)

PREDICTIONS = "predictions"


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


def predict(setup: Setup, splits: Splits, test: Mapping[str, Examples], run: Run) -> Run:
    """Write a finished run's predictions, by the weights of the epoch that the sweep asks for, and what they reach on
    test data into its record; returns that.

    Raises:
        UserError: the weights are not there any more, or do not fit.
    """
    files, group = files_of(setup, splits, run.settings), setup.group
    epoch = run.choose(setup.sweep.predict).epoch
    folder, path = files.folder, files.weights(epoch)
    fingerprint = test_fingerprint(test)
    with held_folder(folder, group):
        if not group.on_main(lambda: _has_weights(path, run, fingerprint if test else "")):
            say(group, "%s: these weights were discarded (--discard_weights), so no predictions are written", path)
            return run
        everything = splits.validation | dict(test)
        count = sum(len(examples) for examples in everything.values())
        say(group, "predicting %s with %s", number_of(count, "example"), path)
        model = setup.definition.target.build(setup.config.model)
        content = group.check(lambda: files.read_weights(epoch))
        threshold = run.choose(setup.sweep.predict).metrics.get(THRESHOLD, 0.0)
        if setup.definition.kinds is None:
            # As a run on text predicts other texts; what others write are probabilities, which stay as they are.
            content, threshold = decided(content), 0.0
        temperature = run.choose(setup.sweep.predict).metrics.get(TEMPERATURE)
        group.check(lambda: load_weights(model, content["model"], path))
        finetuning = assembled(setup, splits, run.settings, model)
        finetuning.model.eval()
        with torch.no_grad(), setup.device.autocast():
            scores = {name: finetuning.scores(examples) for name, examples in everything.items()}

        if isinstance(setup.definition.target, TokenLabels):
            scores, threshold = {name: each - threshold for name, each in scores.items()}, 0.0

        if temperature is not None:
            target, labels = setup.definition.target, splits.validation[""].labels
            assert labels is not None
            after, known = scores[""], torch.from_numpy(labels)
            errors = [100 * calibration_error_of(target, each, known) for each in (after * temperature, after)]
            text = "calibration error on the validation data: %.1f %%, %.1f %% after dividing scores by %.2f"
            say(group, text, *errors, temperature)

        def write() -> Run:
            altered, before = _altered(run), run.tested.files if run.tested is not None else {}
            former = [name for name in before if (path := folder / name).is_file() and path not in altered]
            there = _files(folder / PREDICTIONS)
            metrics = setup.definition.write(splits, test, scores, folder / PREDICTIONS)
            if (objective := run.settings.objective) is not None:
                tested_on = test.get("test")
                if tested_on is not None and tested_on.labels is not None:
                    found = scores_of(setup.definition.target, scores["test"]).flatten().numpy()
                    metrics |= measure_tested(objective, found, tested_on.labels.ravel(), threshold)
            # Each is a new file under its name; whatever else lies there is not the run's.
            written = [path for path, sign in _files(folder / PREDICTIONS).items() if there.get(path) != sign]
            stamps = {f"{PREDICTIONS}/{path.name}": FileStamp(path.stat().st_size, sha256_of(path)) for path in written}
            for name in set(former).difference(stamps):
                # Of data that are not predicted any more: beside the new ones it would pass for one of them.
                (folder / name).unlink()
            tested = Tested(
                epoch=epoch,
                data=fingerprint,
                shown=splits.shown,
                files=stamps,
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


def _has_weights(path: Path, run: Run, test: str) -> bool:
    """Whether the weights are there to predict with.

    Args:
        test: fingerprint of the test data that are to be predicted; empty for none.

    Raises:
        UserError: they are not, though others are, or the run's predictions are of other test data or not as they were
            written: their figures would be taken for those that are asked for.
    """
    if path.is_file():
        return True
    is_other_test = bool(test) and run.tested is not None and run.tested.data != test
    if is_other_test or find_weights(path.parent) or _altered(run):
        raise UserError(
            f"{path}: missing, and the predictions beside it are not the requested ones, or were modified: put the "
            f"file back, or move {path.parent} away to train the run again"
        )
    return False


def has_predictions(setup: Setup, splits: Splits, test: Mapping[str, Examples], run: Run) -> bool:
    """Whether a run's predictions are there as they were written, of these test data and by the weights that the sweep
    asks for. Where there are no test data, those of earlier ones stay.
    """
    tested = run.tested
    if tested is None or not tested.files or tested.epoch != run.choose(setup.sweep.predict).epoch:
        return False
    asked, found = (test_fingerprint(test), splits.shown), (tested.data, tested.shown)
    if asked != found and (test or splits.shown != tested.shown.partition(" ")[0]):
        return False
    if altered := _altered(run):
        logger.warning("%s: modified after it was written", altered[0])
        return False
    return all((run.folder / name).is_file() for name in tested.files)


def test_fingerprint(test: Mapping[str, Examples]) -> str:
    """Equal for equal test data."""
    return digest({name: examples.fingerprint for name, examples in test.items()})


def _altered(run: Run) -> list[Path]:
    """The prediction files that are there, but not as they were written."""
    there = {run.folder / name: stamp for name, stamp in (run.tested.files if run.tested is not None else {}).items()}
    return [path for path, stamp in there.items() if path.is_file() and sha256_of(path) != stamp.sha256]


def _files(folder: Path) -> dict[Path, tuple[int, int]]:
    """The files of a folder, and what tells a new one under a name from the one before."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file()] if folder.is_dir() else []
    return {path: ((status := path.stat()).st_ino, status.st_mtime_ns) for path in files}
