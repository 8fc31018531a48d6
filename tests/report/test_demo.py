"""The demonstration, quickly."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from costs import write_weights
from small import LENGTH, SHIPPED, VOCABULARY, run_here, small_data

from nystromformer.data.manifest import read_manifest
from nystromformer.report import demo
from nystromformer.report.cost import METHODS, CostSettings
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.pretraining.validation import Score, Validation, write_validation
from nystromformer.training.checkpoint import epoch_name

BASELINES = {"most_frequent_token": 0.04, "bigram_table": 0.14}


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
    monkeypatch.setattr(demo, "COST", CostSettings(lengths=(LENGTH, 8 * LENGTH), repeats=1))


@pytest.fixture
def made_up_demo(small_demo: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without its commands: what training and validation leave behind is made up."""
    prepare = demo._command

    def command(script: str, *words: str | Path) -> None:
        run = Path(words[1])
        if script == "code/run_pretrain.py":
            tokenizer = read_manifest(run.parent / "dataset").tokenizer_sha256
            write_weights(open_experiment(run), len(run.name), tokenizer)
            line = {"type": "train", "step": 10, "loss": 5.0, "mlm_accuracy": 0.1}
            (run / "model" / "log.jsonl").write_text(json.dumps(line) + "\n")
        elif script == "code/run_validation.py":
            metrics = {"loss": 5.0, "mlm_accuracy": 0.15 if run.name == demo.KINDS[0] else 0.1}
            result = Validation(100, 3800, [Score(epoch_name(0), 10, metrics)], BASELINES)
            write_validation(result, run / "model" / demo.RESULTS)
        else:
            prepare(script, *words)

    monkeypatch.setattr(demo, "_command", command)


def check_what_it_ends_with(out: Path, shown: str) -> None:
    told = ("bigram table", "most frequent token", "Above the bigram", "The convolution adds ", "Goal (3 times")
    for words in (*demo.KINDS, *told):
        assert words in shown
    assert shown.count("<mask>") == 3
    for words in (*METHODS, "the trained Nyström encoder is ", "Measured on "):
        assert words in shown
    assert shown.endswith(f"pictures: {out / 'curves.png'}, {out / 'cost.png'}\nreport:   {out / 'report.html'}\n")
    for picture in ("curves.png", "cost.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
    results = json.loads((out / "results.json").read_text())
    assert set(results["runs"]) == set(demo.KINDS)
    assert results["runs"][demo.KINDS[0]]["masked_tokens"] > 100
    assert results["machine"]["commit"]
    assert results["cost"]["experiment"] == demo.KINDS[0]
    assert [row["length"] for row in results["cost"]["rows"]] == [LENGTH] * 3 + [8 * LENGTH] * 3
    page = (out / "report.html").read_text()
    assert page.count("<mark>mask</mark>") == 3
    assert page.count("data:image/png;base64,") == 2
    assert "softmax, written out" in page


@pytest.mark.slow
def test_a_demo_of_made_up_runs_ends_with_pictures_and_a_report(
    made_up_demo: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "demo"
    assert run_here(monkeypatch, "code/run_demo.py", "--out", out) == 0
    shown = capfd.readouterr().out
    check_what_it_ends_with(out, shown)
    assert "reached, with 3.75 times and 15.00 % against 14.00 %" in shown
    # Again: the measurement is kept, its times, too.
    measured = json.loads((out / "results.json").read_text())["cost"]
    assert run_here(monkeypatch, "code/run_demo.py", "--out", out) == 0
    assert json.loads((out / "results.json").read_text())["cost"] == measured
    capfd.readouterr()
    # Another demo's folder is left alone.
    assert run_here(monkeypatch, "code/run_demo.py", "--out", out, "--quick") == 2
    assert "belongs to another demo" in capfd.readouterr().err
    # Nor is a damaged config.json written over.
    (out / demo.KINDS[0] / "config.json").write_text("{}")
    assert run_here(monkeypatch, "code/run_demo.py", "--out", out) == 2
    assert "was edited" in capfd.readouterr().err


@pytest.mark.slow
def test_a_demo_ends_with_pictures_and_a_report(
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
        name: Validation(100, 3800, [Score("cp-0000", 10, {"mlm_accuracy": accuracy})], {})
        for name, accuracy in zip(demo.KINDS, accuracies, strict=True)
    }
    above, differs, in_its_place, convolution, error = demo._differences(results, {"bigram_table": 0.2})
    assert above == "Above the bigram table (20.00 %): nystrom-demo-conv, softmax-demo-noconv."
    assert "segments" in differs
    assert "near_far -8.00 points of masked-token accuracy, nystrom -18.00" in in_its_place
    assert "adds +20.00 points to nystrom" in convolution
    assert "Smallest difference between two rows that could have been shown" in error
    assert "points (1 seed, 3,800 masked tokens)" in error
