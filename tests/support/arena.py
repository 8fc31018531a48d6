"""Prepared data of the Long Range Arena and experiments small enough for tests."""

import random
import shutil
from pathlib import Path

from small import ROOT

from nystromformer.tasks.experiment.folder import Experiment, open_experiment
from nystromformer.tasks.lra.stored import Manifest, write_manifest, write_split

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
    splits = {}
    for split in SIZES:
        examples = []
        for number in range(count):
            label = number % 2
            bodies = [bytes(randomness.randrange(1, 200) for _ in range(randomness.randint(3, 20))) for _ in "ab"]
            examples.append(([(b"\0" if label else b"\1") + body for body in bodies[:sequences]], label))
        splits[split] = write_split(folder, split, iter(examples), 256, 2, sequences)
    write_manifest(folder, Manifest(task, 256, 2, sequences, "made up", {}, splits))
    return folder


def experiment(folder: Path, *overrides: str, task: str = "listops") -> Experiment:
    folder.mkdir(parents=True)
    shutil.copyfile(ROOT / "experiments" / "lra" / task / "config.json", folder / "config.json")
    return open_experiment(folder, [*TINY, *overrides])


def flags(folder: Path, data: Path, *more: object) -> tuple[object, ...]:
    settings = [flag for override in TINY for flag in ("--set", override)]
    return ("--task", "listops", "--model", folder, "--data", data, "--device", "cpu", *settings, *more)
