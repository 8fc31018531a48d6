"""What the tests of tasks share."""

from collections.abc import Callable
from pathlib import Path

import pytest
from finetuning import copy_of, write_imdb
from small import contents, run_here

from nystromformer.tasks.experiment.folder import Experiment


@pytest.fixture
def experiment(source: Path, tmp_path: Path) -> Experiment:
    """A pretrained experiment that no other test has."""
    return copy_of(source, tmp_path / "experiment")


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """IMDB's folder; read-only by agreement."""
    return write_imdb(tmp_path_factory.mktemp("reviews") / "aclImdb")


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command says that must refuse a folder: one message, and nothing is left but a lock."""

    def kept(folder: Path) -> dict[str, object]:
        return {name: what for name, what in contents(folder).items() if name not in ("model", "model/run.lock")}

    def check(script: str, folder: Path, *flags: object) -> str:
        before = kept(folder)
        capsys.readouterr()
        device = () if "--device" in flags else ("--device", "cpu")
        assert run_here(monkeypatch, script, "--model", folder, *device, *flags) == 2
        said = capsys.readouterr().err
        assert said.lower().count("error:") == 1
        assert "Traceback" not in said
        assert kept(folder) == before
        return said

    return check
