"""The demonstration, quickly."""

import json
import shutil
from pathlib import Path

import pytest
from small import LENGTH, VOCABULARY, run_here, small_data

from nystromformer.report import demo
from nystromformer.tasks.pretraining.validation import Score, Validation


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch, dataset_folder: Path) -> None:
    """The demo with a small model, and with data that is there already instead of the docstrings."""
    data = small_data(pretraining_setting__epoch=1)
    data["pretraining_setting"]["objectives"] = ["mlm"]
    data["model"] |= {"max_seq_len": 4 * LENGTH, "vocab_size": VOCABULARY}
    run_command = demo._command

    def command(*words: str | Path) -> None:
        if "preprocess_data" in str(words[0]):
            target = Path(words[words.index("--out") + 1])
            shutil.copytree(dataset_folder, target, dirs_exist_ok=True)
        elif "preprocess.py" not in str(words[0]):
            run_command(*words)

    monkeypatch.setattr(demo, "_command", command)
    monkeypatch.setattr(demo, "_shipped_config", lambda name: json.loads(json.dumps(data | {"model": kind(name)})))

    def kind(name: str) -> dict[str, object]:
        shipped = json.loads((demo.ROOT / name / "config.json").read_text())["model"]
        landmarks = 8 if shipped["attn_type"] == "nystrom" else None
        changes = {"attn_type": shipped["attn_type"], "num_landmarks": landmarks}
        return data["model"] | changes | {"conv_kernel_size": shipped.get("conv_kernel_size")}


def test_the_demo_ends_with_a_picture_and_a_report(
    small_demo: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "demo"
    assert run_here(monkeypatch, "code/run_demo.py", "--out", out) == 0
    shown = capfd.readouterr()
    for words in (*demo.KINDS, "bigram table", "most frequent token", "The convolution: ", "Goal (3 times"):
        assert words in shown.out
    assert shown.out.count("<mask>") == 3
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((out / "results.json").read_text())
    assert set(results["runs"]) == set(demo.KINDS)
    assert results["runs"][demo.KINDS[0]]["masked_tokens"] > 100
    assert results["machine"]["commit"]
    page = (out / "report.html").read_text()
    assert page.count("<mark>mask</mark>") == 3
    assert "data:image/png;base64," in page
    # Again: what is done is not done again.
    before = (out / demo.KINDS[0] / "model" / "cp-0000.cp").stat().st_mtime_ns
    assert run_here(monkeypatch, "code/run_demo.py", "--out", out) == 0
    assert capfd.readouterr().err.count("done: 10 of 10 steps") == 4
    assert (out / demo.KINDS[0] / "model" / "cp-0000.cp").stat().st_mtime_ns == before
    # Another demo's folder is left alone.
    assert run_here(monkeypatch, "code/run_demo.py", "--out", out, "--quick") == 2
    assert "belongs to another demo" in capfd.readouterr().err


def test_an_older_demo_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "manifest.json").write_text('{"format_version": 1}')
    assert run_here(monkeypatch, "code/run_demo.py", "--out", tmp_path) == 2
    assert "another version of nystromformer. Remove it with `make clean`" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["dataset"]


def test_a_part_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "ROOT", tmp_path)
    monkeypatch.setattr(demo, "_shipped_config", lambda name: small_data(pretraining_setting__objectives=["mlm"]))
    assert run_here(monkeypatch, "code/run_demo.py", "--out", tmp_path / "demo") == 2
    assert "data-preprocessing/docstrings/preprocess.py ended with status 2" in capfd.readouterr().err


def test_what_helps_is_told_by_pairs_that_differ_in_one_thing() -> None:
    accuracies = (0.3, 0.2, 0.28, 0.1)
    results = {
        name: Validation(100, 3800, [Score("cp-0000", 10, {"mlm_accuracy": accuracy})], {})
        for name, accuracy in zip(demo.KINDS, accuracies, strict=True)
    }
    convolution, approximation, error = demo._differences(results)
    assert "+10.00 points of masked tokens right beside Nyström attention, +18.00 beside softmax" in convolution
    assert "+2.00 points with the convolution, +10.00 without" in approximation
    assert "over the 3,800 masked tokens alone a figure's standard error is 0.74 points" in error
