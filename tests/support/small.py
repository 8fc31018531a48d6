"""Experiments small enough for tests, made by the project's own code."""

import copy
import json
import os
import random
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from corpora import write_unified
from torch import Tensor

from nystromformer.config import ExperimentConfig, ModelConfig, experiment_config
from nystromformer.data.preprocessing.build import TRAIN, DatasetSettings, build_dataset
from nystromformer.data.preprocessing.corpus import Document
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.training import Device
from nystromformer.training.loop import Trainer

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = {
    path.parent.name: path
    for pattern in ("nystrom-512", "nystrom-4096", "experiments/*")
    for path in sorted(ROOT.glob(f"{pattern}/config.json"))
}
"""The configs of the shipped experiments."""
LENGTH, VOCABULARY = 32, 300
WORDS = ["landmark", "segment", "token", "matrix", "inverse", "softmax", "query", "key", "value", "row"]
CPU = Device(torch.device("cpu"), None)

SMALL: dict[str, Any] = {
    "model": {
        "mixed_precision": False,
        "vocab_size": VOCABULARY,
        "num_sen_type": 2,
        "max_seq_len": LENGTH,
        "embedding_dim": 16,
        "transformer_dim": 16,
        "transformer_hidden_dim": 32,
        "num_layers": 2,
        "dropout_prob": 0.1,
        "num_head": 2,
        "head_dim": 8,
        "attn_type": "nystrom",
        "num_landmarks": 8,
        "conv_kernel_size": 5,
    },
    "pretraining_setting": {
        "objectives": ["mlm", "sop"],
        "batch_size": 8,
        "learning_rate": 2e-3,
        "warmup": 0.1,
        "batches_per_report": 2,
        "batches_per_epoch": 10,
        "epoch": 3,
        "validate_batches_per_epoch": 2,
        "minutes_per_checkpoint": 1000,
    },
    "gpu_setting": {"inst_per_gpu": 4},
}
PLAIN: dict[str, Any] = {"num_landmarks": None, "conv_kernel_size": None}
"""Of a model whose attention has neither."""
SOFTMAX: dict[str, Any] = {"attn_type": "softmax", **PLAIN}


def small_data(**changes: Any) -> dict[str, Any]:
    """A config as plain data; changes are `section__key=value`."""
    data = copy.deepcopy(SMALL)
    for name, value in changes.items():
        section, key = name.split("__")
        data[section][key] = value
    return data


def small_config(**changes: Any) -> ExperimentConfig:
    return experiment_config(small_data(**changes), "test")


def model_config(**changes: Any) -> ModelConfig:
    """The section "model" with other values of some keys."""
    return small_config(**{f"model__{key}": value for key, value in changes.items()}).model


def tokens(batch: int = 2, length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randint(5, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def write_experiment(folder: Path, **changes: Any) -> Experiment:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(small_data(**changes)))
    return Experiment(folder, small_config(**changes))


def write_dataset(folder: Path, length: int = LENGTH, seed: int = 0) -> Path:
    """About 150 training rows of made-up sentences in which each word depends on the one before."""
    corpora = folder.with_name(f"{folder.name}-corpora")
    write_unified(corpora, "made-up", [d for split, n in SPLITS.items() for d in documents_of(split, n, seed)])
    build_dataset(corpora, folder, DatasetSettings(length, ("made-up",), TRAIN, VOCABULARY, seed=seed))
    return folder


SPLITS = {"train": 40, "validation": 10}
"""Documents of each; the groups of their names are so large that the choice of groups comes to the same."""


def documents_of(split: str, count: int, seed: int) -> Iterator[Document]:
    randomness = random.Random(f"{split}{seed}")
    for number in range(count):
        sentences = []
        for _ in range(randomness.randint(3, 9)):
            first = randomness.randrange(len(WORDS))
            words = [WORDS[(first + 3 * i) % len(WORDS)] for i in range(randomness.randint(3, 8))]
            sentences.append(" ".join(words) + ".")
        yield Document(id=f"{split}-{number}", group=split, sentences=tuple(sentences))


def contents(folder: Path) -> dict[str, bytes | str | None]:
    """All that is in a folder: of files their bytes, of links where they lead, of folders None."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(folder.rglob("*")):
        value = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = value
    return found


def resident_bytes() -> int:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def command(script: str, *flags: object) -> list[str]:
    return [sys.executable, str(ROOT / script), *last_values(flags)]


REPEATABLE = ("--set", "--attention", "--model", "--run", "--corpus", "--mount", "--task", "--package", "--tensors")


def last_values(flags: Sequence[object]) -> list[str]:
    """Flags of which only the last value stays: a test's own come behind the usual ones, and commands refuse two."""
    words = [str(flag) for flag in flags]
    names = [word for word in words if word.startswith("--") and "=" not in word and word not in REPEATABLE]
    for name in {name for name in names if names.count(name) > 1}:
        while words.count(name) > 1:
            place = words.index(name)
            has_value = place + 1 < len(words) and not words[place + 1].startswith("--")
            del words[place : place + 1 + has_value]
    return words


def run_command(script: str, *flags: object) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    return subprocess.run(command(script, *flags), capture_output=True, text=True, check=False, timeout=120)


def run_here(monkeypatch: pytest.MonkeyPatch, script: str, *flags: object) -> int:
    """A command in this process, which has imported torch already; returns its exit status."""
    monkeypatch.setattr(sys, "argv", [script, *last_values(flags)])
    with pytest.raises(SystemExit) as exit_info:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    code = exit_info.value.code
    return 0 if code is None else int(code)


def stop_at(stop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM to this process before a run's step of that number, from 0."""
    step = Trainer._step

    def with_a_stop(self: Trainer, *args: Any) -> Any:
        if self.state.step == stop:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *args)

    monkeypatch.setattr(Trainer, "_step", with_a_stop)
