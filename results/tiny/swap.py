"""Softmax encoders that were fine-tuned on IMDB, tested with Nyström attention in softmax's place, without training.

`python results/tiny/swap.py FOLDER --imdb DIR --out FILE`: FOLDER is an experiment with finished runs on IMDB whose
weights are there. Each run is tested with its own attention, too, which must give what its result says. Run again,
what FILE has is not computed again.
"""

import argparse
import json
from pathlib import Path

import torch

from nystromformer.config import ModelConfig
from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.files import write_json
from nystromformer.runs.record import Run, find_runs
from nystromformer.tasks.finetuning.definition import Loading
from nystromformer.tasks.finetuning.examples import Examples
from nystromformer.tasks.finetuning.trainable import Finetuning
from nystromformer.tasks.imdb.task import Imdb
from nystromformer.training import choose_device
from nystromformer.training.archive import read_checkpoint

LANDMARKS = (8, 16, 32, 64, 128)


def accuracy(result: Run, task: Imdb, test: Examples, landmarks: int | None) -> float:
    """Test accuracy of a run's tested weights, with so many landmarks; None: with the attention that they were
    trained with.
    """
    content = read_checkpoint(Path(result.folder) / f"cp-{result.tested_epoch:04d}.model")
    settings = content["config"]["model"]
    if landmarks is not None:
        settings = settings | {"attn_type": "nystrom", "num_landmarks": landmarks}
    model = task.target.build(ModelConfig.model_validate(settings))
    model.load_state_dict(content["model"])
    finetuning = Finetuning(
        model.eval(), task.target, test, {}, task.metrics, result.run, 16 * 512, choose_device("cpu", False)
    )
    with torch.no_grad():
        scores = finetuning.scores(test)
    return task.metrics(scores, torch.from_numpy(test.labels))["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--imdb", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    flags = parser.parse_args()
    rows = json.loads(flags.out.read_text()) if flags.out.exists() else []
    for result in find_runs(flags.folder / "model", "imdb"):
        if not result.test_metrics:
            continue
        task = Imdb(flags.imdb, **result.choices)
        test = task.test(Loading(load_tokenizer(result.tokenizer), result.length, False, None, flags.folder))["test"]
        for landmarks in (None, *LANDMARKS):
            key = {"experiment": result.experiment, "seed": result.settings.seed, "landmarks": landmarks}
            if any(key.items() <= row.items() for row in rows):
                continue
            measured = accuracy(result, task, test, landmarks)
            if landmarks is None and abs(measured - result.test_metrics["accuracy"]) > 1 / len(test):
                raise SystemExit(f"{result.folder}: {measured}, its result says {result.test_metrics['accuracy']}")
            rows.append(key | {"accuracy": measured, "rows": len(test)})
            write_json(flags.out, rows)


if __name__ == "__main__":
    main()
