"""The predictions of a finished run, made by its best epoch's weights or its last's."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from nystromformer.files.writing import FileStamp, NewFile, sha256_of
from nystromformer.runs.objective import TEMPERATURE, THRESHOLD
from nystromformer.runs.record import Run, Tested
from nystromformer.tasks.experiment.run import held_folder, say
from nystromformer.tasks.finetuning.calibration import calibration_error_of
from nystromformer.tasks.finetuning.definition import Splits
from nystromformer.tasks.finetuning.examples import Examples, Texts
from nystromformer.tasks.finetuning.objective import decided, measure_tested, scores_of
from nystromformer.tasks.finetuning.run import Setup, assembled, digest, weights_path
from nystromformer.tasks.finetuning.target import TokenLabels
from nystromformer.training.checkpoint import load_weights, read_checkpoint
from nystromformer.wording import number_of

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
    """
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
    folder, group, chosen = run.folder, setup.group, run.choose(setup.sweep.predict)
    path = weights_path(run, chosen.epoch)
    with held_folder(folder, group):
        everything = splits.validation | dict(test)
        count = sum(len(examples) for examples in everything.values())
        say(group, "predicting %s with %s", number_of(count, "example"), path)
        model = setup.definition.target.build(setup.config.model)
        content = group.check(lambda: read_checkpoint(path, mmap=True))
        threshold = chosen.metrics.get(THRESHOLD, 0.0)
        if setup.definition.kinds is None:
            # As a run on text predicts other texts; what others write are probabilities, which stay as they are.
            content, threshold = decided(content), 0.0
        temperature = chosen.metrics.get(TEMPERATURE)
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
            made = folder / f"{PREDICTIONS}.tmp"
            shutil.rmtree(made, ignore_errors=True)
            metrics = setup.definition.write(splits, test, scores, made)
            if (objective := run.settings.objective) is not None:
                tested_on = test.get("test")
                if tested_on is not None and tested_on.labels is not None:
                    found = scores_of(setup.definition.target, scores["test"]).flatten().numpy()
                    metrics |= measure_tested(objective, found, tested_on.labels.ravel(), threshold)
            files = {f"{PREDICTIONS}/{path.name}": path for path in sorted(made.iterdir())}
            stamps = {name: FileStamp(path.stat().st_size, sha256_of(path)) for name, path in files.items()}
            for name in set(run.predictions).difference(files):
                # Of data that are not predicted any more: beside the new ones it would pass for one of them.
                (folder / name).unlink(missing_ok=True)
            (folder / PREDICTIONS).mkdir(exist_ok=True)
            for name, path in files.items():
                path.replace(folder / name)
            made.rmdir()
            tested = Tested(
                epoch=chosen.epoch,
                data=test_fingerprint(test),
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


def has_predictions(setup: Setup, splits: Splits, test: Mapping[str, Examples], run: Run) -> bool:
    """Whether a run's predictions are there, of these test data and by the weights that the sweep asks for. Where there
    are no test data, those of earlier ones stay.
    """
    tested = run.tested
    if tested is None or not tested.files or tested.epoch != run.choose(setup.sweep.predict).epoch:
        return False
    asked, found = (test_fingerprint(test), splits.shown), (tested.data, tested.shown)
    if asked != found and (test or splits.shown != tested.shown.partition(" ")[0]):
        return False
    return all((run.folder / name).is_file() for name in tested.files)


def test_fingerprint(test: Mapping[str, Examples]) -> str:
    """Equal for equal test data."""
    return digest({name: examples.fingerprint for name, examples in test.items()})
