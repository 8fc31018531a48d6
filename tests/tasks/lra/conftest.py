"""What the tests of the Long Range Arena share."""

from pathlib import Path

import pytest
from arena import SIZES, Lra, experiment

from nystromformer.tasks.lra.listops import Expressions, draw_listops


@pytest.fixture(scope="session")
def listops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("listops")
    wanted = Expressions(longer_than=4, shorter_than=40, depth=5, most_values=4)
    draw_listops(folder, wanted, SIZES, 0, 1)
    return folder


@pytest.fixture
def lra(tmp_path: Path, listops: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Lra:
    experiment(tmp_path / "e")
    return Lra(tmp_path / "e", listops, monkeypatch, capsys)
