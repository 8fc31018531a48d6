"""The demonstration, quickly."""

from pathlib import Path

import pytest
from small import run_here

from nystromformer.report import demo
from nystromformer.tasks.pretraining.validation import Score, Validation


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


def test_what_helps_is_told_by_pairs_that_differ_in_one_thing() -> None:
    accuracies = (0.3, 0.2, 0.28, 0.1)
    results = {
        name: Validation(100, 100, 3800, {"bigram_table": 0.2}, [Score("cp-0000", 10, {"mlm_accuracy": accuracy})])
        for name, accuracy in zip(demo.KINDS, accuracies, strict=True)
    }
    above, in_its_place, convolution, error = demo.find_differences(results)
    assert above == "Above the bigram table (20.00 %): nystrom-demo-conv, softmax-demo-noconv."
    assert "near_far -8.00 points of masked-token accuracy, nystrom -18.00" in in_its_place
    assert "adds +20.00 points to nystrom" in convolution
    assert "Smallest difference between two rows that could have been shown" in error
    assert "points (1 seed, 3,800 masked tokens)" in error
