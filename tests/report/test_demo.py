"""The demonstration, quickly."""

from pathlib import Path

import pytest
from small import run_here

from nystromformer.report import demo


def test_another_demos_folder_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    demo._write_configs(tmp_path, quick=False)
    assert run_here(monkeypatch, "code/run_demo.py", "--out", tmp_path, "--quick") == 2
    assert "belongs to another demo" in capfd.readouterr().err


def test_a_part_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "PROJECT", tmp_path)
    assert run_here(monkeypatch, "code/run_demo.py", "--out", tmp_path / "demo") == 2
    assert "data-preprocessing/docstrings/preprocess.py failed with status 2" in capfd.readouterr().err
