"""The demonstration, quickly."""

import json
import shutil
from pathlib import Path

import pytest
from small import LENGTH, VOCABULARY, run_here, small_data

from nystromformer.report import demo


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch, dataset_folder: Path) -> None:
    """The demo with a small model, and with data that is there already instead of the docstrings."""
    data = small_data(pretraining_setting__epoch=1)
    data["pretraining_setting"]["objectives"] = ["mlm"]
    data["model"] |= {"max_seq_len": 4 * LENGTH, "vocab_size": VOCABULARY}
    run_command = demo._command

    def command(*words: str | Path) -> None:
        if "preprocess.py" in str(words[0]):
            target = Path(words[words.index("--out") + 1])
            shutil.copytree(dataset_folder, target, dirs_exist_ok=True)
        else:
            run_command(*words)

    monkeypatch.setattr(demo, "_command", command)
    monkeypatch.setattr(demo, "_shipped_config", lambda: json.loads(json.dumps(data)))


def test_the_demo_ends_with_a_picture_and_a_report(
    small_demo: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "demo"
    assert run_here(monkeypatch, "code/run_demo.py", "--out", out) == 0
    shown = capfd.readouterr()
    for words in ("nystrom-demo", "softmax-demo", "bigram table", "most frequent token", "Goal (3 times"):
        assert words in shown.out
    assert shown.out.count("<mask>") == 3
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "report.html").read_text()
    assert page.count("<mark>mask</mark>") == 3
    assert "data:image/png;base64," in page
    # Again: what is done is not done again.
    before = (out / "nystrom-demo" / "model" / "cp-0000.cp").stat().st_mtime_ns
    assert run_here(monkeypatch, "code/run_demo.py", "--out", out) == 0
    assert capfd.readouterr().err.count("done: 10 of 10 steps") == 2
    assert (out / "nystrom-demo" / "model" / "cp-0000.cp").stat().st_mtime_ns == before
    # Another demo's folder is left alone.
    assert run_here(monkeypatch, "code/run_demo.py", "--out", out, "--quick") == 2
    assert "belongs to another demo" in capfd.readouterr().err


def test_a_part_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "ROOT", tmp_path)
    monkeypatch.setattr(demo, "_shipped_config", lambda: small_data(pretraining_setting__objectives=["mlm"]))
    assert run_here(monkeypatch, "code/run_demo.py", "--out", tmp_path / "demo") == 2
    assert "data-preprocessing/docstrings/preprocess.py ended with status 2" in capfd.readouterr().err
