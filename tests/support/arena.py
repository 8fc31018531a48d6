"""Prepared data of the Long Range Arena and experiments small enough for tests."""

import random
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from small import ROOT, run_here

from nystromformer.files.checked_json import write_checked
from nystromformer.runs.record import Run, read_run
from nystromformer.tasks.experiment.folder import Experiment, open_experiment
from nystromformer.tasks.lra.store import MANIFEST_FILE, Manifest, TaskData, write_split

SCRIPT = "code/run_lra.py"
SIZES = {"train": 30, "validation": 12, "test": 9}
TINY = (
    "model.mixed_precision=false",
    "model.embedding_dim=16",
    "model.transformer_dim=16",
    "model.transformer_hidden_dim=32",
    "model.head_dim=8",
    "model.max_seq_len=32",
    "model.attn_type.num_landmarks=8",
    "model.attn_type.conv_kernel_size=5",
    "pretraining_setting.batch_size=8",
    "pretraining_setting.batches_per_report=1",
    "gpu_setting.inst_per_gpu=8",
)


def write_task(folder: Path, task: str, sequences: int, count: int = 12) -> Path:
    """Random bytes: class 1 where the first token of all sequences is 0."""
    randomness = random.Random(0)
    splits, data = {}, TaskData(task, 2, {}, sequences=sequences)
    for split in SIZES:
        examples = []
        for number in range(count):
            label = number % 2
            bodies = [bytes(randomness.randrange(1, 200) for _ in range(randomness.randint(3, 20))) for _ in "ab"]
            examples.append(([(b"\0" if label else b"\1") + body for body in bodies[:sequences]], label))
        splits[split] = write_split(folder, split, iter(examples), data)
    write_checked(folder / MANIFEST_FILE, asdict(Manifest(data, {}, splits)))
    return folder


def experiment(folder: Path, *overrides: str, task: str = "listops") -> Experiment:
    folder.mkdir(parents=True)
    shutil.copyfile(ROOT / "experiments" / "lra" / task / "config.json", folder / "config.json")
    return open_experiment(folder, [*TINY, *overrides])


def flags(
    folder: Path, data: Path, *more: object, task: str = "listops", settings: Sequence[str] = TINY
) -> tuple[object, ...]:
    sets = [flag for override in settings for flag in ("--set", override)]
    return ("--task", task, "--model", folder, "--data", data, "--device", "cpu", *sets, *more)


@dataclass
class Lra:
    """`run_lra.py` in an experiment folder of a test's own."""

    folder: Path
    data: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *more: object, data: Path | None = None, **of_flags: Any) -> list[Run]:
        """The results of all classes' runs in the folder, once another command has ended well."""
        assert run_here(self.monkeypatch, SCRIPT, *flags(self.folder, data or self.data, *more, **of_flags)) == 0
        found = (read_run(path.parent) for path in sorted(self.folder.glob("model/lra/*/*/run.json")))
        return [result for result in found if result is not None and result.test_metrics]

    def refuse(self, *more: object, data: Path | None = None, **of_flags: Any) -> str:
        """What the command says where it trains nothing."""
        assert run_here(self.monkeypatch, SCRIPT, *flags(self.folder, data or self.data, *more, **of_flags)) == 2
        assert not list(self.folder.rglob("log.jsonl"))
        return " ".join(self.capsys.readouterr().err.split())
