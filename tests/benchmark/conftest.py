"""Kernels run in Triton's interpreter where there is no GPU, which must be said before anything imports Triton."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from interpreting import ON_GPU, quicken_the_interpreter
from small import run_here, small_data

if not ON_GPU and find_spec("triton") is not None:
    quicken_the_interpreter()


@pytest.fixture
def run_benchmark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`run_benchmark(*words, status=0)`: what the command prints, of a mistake its message on one line."""

    def run(*words: object, status: int = 0) -> str:
        capsys.readouterr()
        assert run_here(monkeypatch, "code/run_benchmark.py", *words) == status
        printed = capsys.readouterr()
        return " ".join(printed.err.split()) if status == 2 else printed.out

    return run


@pytest.fixture(scope="session")
def train_for_two_steps(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Callable[..., Path]:
    """`train(name, **changes)`: an experiment folder of a model that was trained for two steps."""

    def train(name: str, **changes: object) -> Path:
        from nystromformer.tasks.experiment.folder import open_experiment
        from nystromformer.tasks.pretraining.pretrain import pretrain
        from nystromformer.training import choose_device

        folder = tmp_path_factory.mktemp("trained") / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(small_data(**changes)))
        pretrain(open_experiment(folder), dataset_folder, choose_device("cpu", mixed_precision=False))
        return folder

    return train
