"""The demonstration, quickly."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small import LENGTH, SHIPPED, VOCABULARY, run_here, small_data

from nystromformer.report import demo
from nystromformer.tasks.pretraining.validation import Score, Validation


def shipped(name: str) -> dict[str, Any]:
    """A shipped config of the demo in small."""
    model = json.loads(SHIPPED[name].read_text())["model"]
    data = small_data(pretraining_setting__epoch=1, pretraining_setting__objectives=["mlm"])
    data["model"] |= {
        "max_seq_len": 4 * LENGTH,
        "vocab_size": VOCABULARY,
        "attn_type": model["attn_type"],
        "num_landmarks": 8 if model["attn_type"] == "nystrom" else None,
        "conv_kernel_size": model.get("conv_kernel_size"),
    }
    return data


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch, dataset_folder: Path) -> None:
    """The demo with a small model, and with data that is there already instead of the docstrings."""
    run_command = demo._command

    def command(*words: str | Path) -> None:
        if "preprocess_data" in str(words[0]):
            target = Path(words[words.index("--out") + 1])
            shutil.copytree(dataset_folder, target, dirs_exist_ok=True)
        elif "preprocess.py" not in str(words[0]):
            run_command(*words)

    monkeypatch.setattr(demo, "_command", command)
    monkeypatch.setattr(demo, "_shipped_config", shipped)


def check_what_it_ends_with(out: Path, shown: str) -> None:
    told = ("bigram table", "most frequent token", "Above the bigram", "The convolution adds ", "Goal (3 times")
    for words in (*demo.KINDS, *told):
        assert words in shown
    assert shown.count("<mask>") == 3
    assert shown.endswith(f"picture: {out / 'curves.png'}\nreport:  {out / 'report.html'}\n")
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((out / "results.json").read_text())
    assert set(results["runs"]) == set(demo.KINDS)
    assert results["runs"][demo.KINDS[0]]["masked_tokens"] > 100
    assert results["machine"]["commit"]
    page = (out / "report.html").read_text()
    assert page.count("<mark>mask</mark>") == 3
    assert page.count("data:image/png;base64,") == 1


def test_another_demos_folder_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    demo._write_configs(tmp_path, quick=False)
    assert run_here(monkeypatch, "code/run_demo.py", "--out", tmp_path, "--quick") == 2
    assert "belongs to another demo" in capfd.readouterr().err


@pytest.mark.slow
def test_a_demo_ends_with_a_picture_and_a_report(
    small_demo: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "demo"
    assert run_here(monkeypatch, "code/run_demo.py", "--out", out) == 0
    check_what_it_ends_with(out, capfd.readouterr().out)
    # Again: what is done is not done again.
    before = (out / demo.KINDS[0] / "model" / "cp-0000.cp").stat().st_mtime_ns
    assert run_here(monkeypatch, "code/run_demo.py", "--out", out) == 0
    assert capfd.readouterr().err.count("done: 10 of 10 steps") == 4
    assert (out / demo.KINDS[0] / "model" / "cp-0000.cp").stat().st_mtime_ns == before


def test_a_part_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "PROJECT", tmp_path)
    monkeypatch.setattr(demo, "_shipped_config", lambda name: small_data(pretraining_setting__objectives=["mlm"]))
    assert run_here(monkeypatch, "code/run_demo.py", "--out", tmp_path / "demo") == 2
    assert "data-preprocessing/docstrings/preprocess.py failed with status 2" in capfd.readouterr().err


def test_what_helps_is_told_by_pairs_that_differ_in_one_thing() -> None:
    accuracies = (0.3, 0.2, 0.28, 0.1)
    results = {
        name: Validation(100, 3800, [Score("cp-0000", 10, {"mlm_accuracy": accuracy})], {"bigram_table": 0.2})
        for name, accuracy in zip(demo.KINDS, accuracies, strict=True)
    }
    above, differs, in_its_place, convolution, error = demo.find_differences(results)
    assert above == "Above the bigram table (20.00 %): nystrom-demo-conv, softmax-demo-noconv."
    assert "segments" in differs
    assert "near_far -8.00 points of masked-token accuracy, nystrom -18.00" in in_its_place
    assert "adds +20.00 points to nystrom" in convolution
    assert "Smallest difference between two rows that could have been shown" in error
    assert "points (1 seed, 3,800 masked tokens)" in error
