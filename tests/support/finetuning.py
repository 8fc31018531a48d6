"""A pretrained experiment and labelled data small enough for tests."""

import csv
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import openpyxl
import pyarrow
from pyarrow import parquet
from small import CPU, WORDS, write_experiment
from torch import nn

from nystromformer.runs.settings import Settings
from nystromformer.tasks.experiment.folder import Experiment, open_experiment
from nystromformer.tasks.finetuning.definition import Definition
from nystromformer.tasks.finetuning.examples import Examples
from nystromformer.tasks.finetuning.flags import Flags
from nystromformer.tasks.finetuning.opening import Opened, open_tasks
from nystromformer.tasks.finetuning.run import Done, run_grid
from nystromformer.tasks.finetuning.target import Target, accuracy
from nystromformer.tasks.finetuning.trainable import Finetuning
from nystromformer.tasks.glue.catalog import find_tasks
from nystromformer.tasks.glue.task import Glue
from nystromformer.tasks.imdb.task import LABELS, read_imdb
from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.training import Device, Group


def pretrained(folder: Path, dataset: Path, **changes: Any) -> Experiment:
    """An experiment with the checkpoints cp-0000 and cp-0001 of a minute run."""
    changes = {"pretraining_setting__epoch": 2, "pretraining_setting__batches_per_epoch": 2} | changes
    experiment = write_experiment(folder, **changes)
    assert pretrain(experiment, dataset, CPU) is None
    return experiment


def sentence(randomness: random.Random, least: int = 2, most: int = 20) -> list[str]:
    return [randomness.choice(WORDS) for _ in range(randomness.randint(least, most))]


def write_sst2(folder: Path, train: int = 60, dev: int = 23, test: int = 9) -> Path:
    """SST-2 in GLUE's layout: positive where "softmax" is among the words."""
    randomness = random.Random(0)
    target = folder / "SST-2"
    target.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("dev", dev), ("test", test)):
        sentences = [sentence(randomness) for _ in range(count)]
        rows = [
            f"{number}\t{' '.join(words)}" if split == "test" else f"{' '.join(words)}\t{int('softmax' in words)}"
            for number, words in enumerate(sentences)
        ]
        header = "index\tsentence" if split == "test" else "sentence\tlabel"
        (target / f"{split}.tsv").write_text("\n".join([header, *rows]) + "\n")
    return folder


def write_stsb(folder: Path, train: int = 30, dev: int = 13) -> Path:
    """STS-B in GLUE's layout: the score is the share of words in common."""
    randomness = random.Random(1)
    target = folder / "STS-B"
    target.mkdir(parents=True, exist_ok=True)
    columns = ["index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2"]
    for split, count in (("train", train), ("dev", dev)):
        rows = []
        for number in range(count):
            first, second = sentence(randomness), sentence(randomness)
            score = 5 * len(set(first) & set(second)) / len(set(first) | set(second))
            rows.append("\t".join([str(number), *"-" * 6, " ".join(first), " ".join(second), f"{score:.3f}"]))
        (target / f"{split}.tsv").write_text("\n".join(["\t".join([*columns, "score"]), *rows]) + "\n")
    return folder


def a_finetuning(
    model: nn.Module,
    target: Target,
    rows: Examples,
    settings: Settings,
    budget: int = 10**6,
    group: Group = Group(),  # noqa: B008  # immutable
    kinds: int | None = 1,
) -> Finetuning:
    """A run on rows that it is validated on, too, without a folder."""
    accuracies = lambda scores_NC, labels_N: {"accuracy": accuracy(scores_NC, labels_N)}  # noqa: E731
    task = SimpleNamespace(target=target, kinds=kinds, metrics=accuracies, noise=lambda batch, *_: batch)
    facts = {"task": task, "budget": budget, "group": group, "main_metric": "accuracy", "device": CPU}
    opened = SimpleNamespace(splits=SimpleNamespace(train=rows, validation={"": rows}), **facts)
    return Finetuning(model, cast(Opened, opened), settings)


def flags(**changes: Any) -> tuple[Flags, Settings]:
    """One run of two epochs, unless changed: by flags, or by settings that none gives."""
    usual = {name: changes.pop(name) for name in ("bucket", "warmup", "every", "steps") if name in changes}
    given = {} if changes.get("freeze") else {"batch_size": "8", "lr": "1e-3", "epoch": 2}
    return Flags(**given | changes), Settings(**{"bucket": 3} | usual)


def copy_of(source: Path, target: Path, *overrides: str) -> Experiment:
    """A folder with the pretrained weights and the tokenizer, and nothing else of the run."""
    (target / "model" / "tokenizer").mkdir(parents=True)
    for name in ("config.json", "model/cp-0001.model", "model/tokenizer/tokenizer.json"):
        (target / name).write_bytes((source / name).read_bytes())
    return open_experiment(target, overrides)


def opened(experiment: Experiment, task: Definition, device: Device = CPU, **changes: Any) -> Opened:
    """A task with the runs that `flags` asks for, in one process."""
    asked, usual = flags(**changes)
    (found,) = open_tasks(experiment, [task], asked, asked.grid(usual), device, Group())
    return found


def finetune(experiment: Experiment, task: Definition, device: Device = CPU, **changes: Any) -> Done:
    """The same, with its runs done."""
    return run_grid(opened(experiment, task, device, **changes))


def finetuned_glue(source: Path, folder: Path, name: str) -> Path:
    """The folder of a run of one epoch on SST-2 or STS-B, whose data is written into `folder`."""
    write = {"SST-2": write_sst2, "STS-B": write_stsb}[name]
    task = Glue(find_tasks(name)[0], write(folder / "glue"))
    (result,) = finetune(copy_of(source, folder / "experiment"), task, epoch=1).results
    return Path(result.folder)


def write_imdb(folder: Path, train: int = 24, test: int = 20) -> Path:
    """Reviews as the archive has them, half of each label: positive where "softmax" is among the words."""
    randomness = random.Random(2)
    for split, count in (("train", train), ("test", test)):
        for number in range(count):
            label, rating = (("neg", 2), ("pos", 9))[number % 2]
            words = [word for word in sentence(randomness, 5, 40) if word != "softmax"]
            path = folder / split / label / f"{number // 2}_{rating}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(" ".join(["softmax", *words] if label == "pos" else ["query", *words]))
    return folder


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """A table in the format that the name ends in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = list(rows)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps([dict(zip(columns, row, strict=True)) for row in rows]))
    elif path.suffix == ".xlsx":
        book = openpyxl.Workbook()
        for row in (columns, *rows):
            book.active.append(list(row))
        book.save(path)
    elif path.suffix == ".parquet":
        cells = {name: [row[at] for row in rows] for at, name in enumerate(columns)}
        parquet.write_table(pyarrow.table(cells), path, row_group_size=7)
    else:
        with path.open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerows([columns, *rows])
    return path


def made_rows(count: int, seed: int = 0, most: int = 20) -> list[tuple[str, str]]:
    """Texts and labels: yes where "softmax" is among the words."""
    randomness = random.Random(seed)
    rows = []
    for number in range(count):
        words = [word for word in sentence(randomness, 3, most) if word != "softmax"] or ["row"]
        if number % 2:
            words.insert(randomness.randrange(len(words) + 1), "softmax")
        rows.append((" ".join(words), "yes" if number % 2 else "no"))
    return rows


def imdb_as_table(reviews: Path, split: str, path: Path) -> Path:
    """The reviews of a split, in the order in which they are read, as a table."""
    texts = read_imdb(reviews)[split]
    assert texts.labels is not None
    return write_table(path, ("body", "label"), zip(texts.first, (LABELS[each] for each in texts.labels), strict=True))
