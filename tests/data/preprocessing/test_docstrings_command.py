"""`data-preprocessing/docstrings/preprocess.py`, run as users run it."""

import signal
import subprocess
from pathlib import Path

import pytest
from corpora import contents, write_packages
from processes import wait_for
from small import command, run_command, run_here

from nystromformer.data.dataset import open_dataset
from nystromformer.data.preprocessing.unified import read_corpus

SCRIPT = "data-preprocessing/docstrings/preprocess.py"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_packages(tmp_path_factory.mktemp("tree"), packages=30)


def flags(tree: Path, out: Path, *others: object) -> list[object]:
    return [SCRIPT, "--source", tree, "--out", out, *others]


@pytest.fixture(scope="module")
def made(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`docstrings/unified` of the tree."""
    out = tmp_path_factory.mktemp("corpora") / "docstrings" / "unified"
    done = run_command(*flags(tree, out, "--workers", 1))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    corpus = read_corpus(out)
    assert f"{corpus.documents} documents" in done.stderr
    assert "in 1 file, in " in done.stderr
    assert set(corpus.groups or ()) == {f"package{number}" for number in range(30)}
    return out


def test_the_number_of_workers_changes_nothing(tree: Path, made: Path, tmp_path: Path) -> None:
    assert run_command(*flags(tree, tmp_path / "b", "--workers", 3)).returncode == 0
    assert contents(tmp_path / "b") == contents(made)


def test_a_run_that_is_there_already(
    tree: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def run(*others: object) -> int:
        return run_here(monkeypatch, *flags(tree, tmp_path / "a", "--workers", 1, *others))  # type: ignore[arg-type]

    caplog.set_level("INFO")
    assert run() == 0
    before = contents(tmp_path / "a")
    assert "nothing to do" not in caplog.text
    assert run() == 0
    assert "finished already, nothing to do" in caplog.text

    assert run("--seed", 1) == 2
    said = capsys.readouterr().err
    assert "seed: found 0, expected 1" in said
    assert "Traceback" not in said
    assert contents(tmp_path / "a") == before

    assert run("--seed", 1, "--overwrite") == 0
    assert read_corpus(tmp_path / "a").settings["seed"] == 1


def test_rows_of_docstrings_are_validated_on_other_packages(made: Path, tmp_path: Path) -> None:
    corpora = made.parents[1]
    done = run_command(
        *("data-preprocessing/preprocess_data_512.py", "--corpora", corpora, "--corpus", "docstrings"),
        *("--tokenizer", "train", "--vocab_size", 300, "--length", 32, "--validation", 0.1),
        *("--out", tmp_path / "rows", "--workers", 1),
    )
    assert done.returncode == 0, done.stderr
    dataset = open_dataset(tmp_path / "rows", verify=True)
    assert f"{len(dataset.train)} rows of 32" in done.stderr
    assert dataset.fingerprint in done.stderr
    assert dataset.manifest.validation.documents == 3


@pytest.mark.parametrize("bad", [("--limit_mb", "0"), ("--min_words", "0"), ("--workers", "0")])
def test_bad_flags_exit_with_status_2(
    tree: Path,
    tmp_path: Path,
    bad: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_here(monkeypatch, *flags(tree, tmp_path, *bad)) == 2  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert bad[0] in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_a_killed_run_continues(tree: Path, made: Path, tmp_path: Path) -> None:
    killed = subprocess.Popen(command(*flags(tree, tmp_path, "--workers", 2)), stderr=subprocess.DEVNULL)  # type: ignore[arg-type]
    wait_for((tmp_path / "stages" / "run.json").exists)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert run_command(*flags(tree, tmp_path, "--workers", 1)).returncode == 0
    assert contents(tmp_path) == contents(made)
