"""Softmax encoders that were fine-tuned on IMDB, tested with Nyström attention in softmax's place, without training:
what experiments/studies/tiny.py starts.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer

from nystromformer import studies
from nystromformer.config import ModelConfig
from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.files.writing import write_json
from nystromformer.runs.record import Run, find_runs
from nystromformer.tasks.finetuning.definition import Loading
from nystromformer.tasks.finetuning.examples import Examples
from nystromformer.tasks.finetuning.trainable import Finetuning
from nystromformer.tasks.imdb.task import Imdb
from nystromformer.training import choose_device
from nystromformer.training.archive import read_checkpoint

LANDMARKS = (8, 16, 32, 64, 128)


def accuracy(run: Run, task: Imdb, test: Examples, landmarks: int | None) -> float:
    """Test accuracy of a run's tested weights, with so many landmarks; None: with the attention that they were
    trained with.
    """
    content = read_checkpoint(run.folder / f"cp-{run.tested_epoch:04d}.model")
    settings = content["config"]["model"]
    if landmarks is not None:
        settings = settings | {"attn_type": "nystrom", "num_landmarks": landmarks}
    model = task.target.build(ModelConfig.model_validate(settings))
    model.load_state_dict(content["model"])
    device = choose_device("cpu", False)
    finetuning = Finetuning(model.eval(), task.target, test, {}, task.metrics, run.settings, 16 * 512, device)
    with torch.no_grad():
        scores = finetuning.scores(test)
    return task.metrics(scores, torch.from_numpy(test.labels))["accuracy"]


def swap(
    folder: Annotated[Path, typer.Argument(help="An experiment with finished runs on IMDB whose weights are there.")],
    imdb: Annotated[Path, typer.Option()],
    out: Annotated[Path, typer.Option(help="JSON to write; results already in it are not computed again.")],
) -> None:
    """Test each run with every number of landmarks, and with its own attention, which must agree with its result."""
    rows = studies.read_json(out) if out.exists() else []
    for run in find_runs(folder / "model", "imdb"):
        if not run.test_metrics:
            continue
        task = Imdb(imdb, **run.choices)
        test = task.test(Loading(load_tokenizer(run.tokenizer), run.length, False, None, folder))["test"]
        for landmarks in (None, *LANDMARKS):
            key = {"experiment": run.experiment, "seed": run.settings.seed, "landmarks": landmarks}
            if any(key.items() <= row.items() for row in rows):
                continue
            found = accuracy(run, task, test, landmarks)
            if landmarks is None and abs(found - run.test_metrics["accuracy"]) > 1 / len(test):
                raise SystemExit(f"{run.folder}: {found}, its result says {run.test_metrics['accuracy']}")
            rows.append(key | {"accuracy": found, "rows": len(test)})
            write_json(out, rows)


if __name__ == "__main__":
    studies.run_commands(swap)
