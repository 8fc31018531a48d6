"""The scripts of data-preprocessing/, run as users run them: from text to rows, killed, interrupted, in slices."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from corpora import WRITE, contents, write_bookcorpus, write_packages, write_wiki
from processes import processes_of, wait_for
from small import command, run_command, run_here

from nystromformer.data.preprocessing import formats as unify_module
from nystromformer.data.preprocessing.files import divide
from nystromformer.data.preprocessing.formats import FORMATS, Rules

BOTH = ("--corpus", "wiki", "--corpus", "bookcorpus=1/2")


def rows_flags(corpora: Path, out: Path, *flags: object) -> list[object]:
    given = ["--corpora", corpora, "--out", out, "--tokenizer", "train", "--vocab_size", 300, "--workers", 1]
    return ["data-preprocessing/preprocess_data_512.py", *given, *flags]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 5 MB of text: parts enough that a kill falls between them."""
    folder = tmp_path_factory.mktemp("corpora")
    write_wiki(folder / "wiki", files=6, articles=60)
    write_bookcorpus(folder / "bookcorpus", lines=6000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unify_module, "divide", lambda *given: divide(*given, 60_000))
        for name, rules in {"wiki": Rules(min_words=128), "bookcorpus": Rules(lines_per_document=100)}.items():
            unify_module.unify(folder / name, folder / name / "unified", FORMATS[name], rules)
    return folder


@pytest.fixture(scope="module")
def reference(corpora: Path) -> Path:
    done = run_command(*rows_flags(corpora, corpora / "reference", *BOTH))  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    for part in ("wiki: ", "dropped before: ", "train: ", "% text", "dataset "):
        assert part in done.stderr
    return corpora / "reference"


def test_slices_at_the_same_time_make_the_same(corpora: Path, reference: Path, tmp_path: Path) -> None:
    flags = rows_flags(corpora, tmp_path, *BOTH)
    slices = [("--array_index", index, "--array_size", 2) for index in range(2)]
    jobs = [subprocess.Popen(command(*flags, *one), stderr=subprocess.PIPE) for one in slices]  # type: ignore[arg-type]
    assert [job.wait(300) for job in jobs] == [0, 0], [job.communicate() for job in jobs]
    assert not (tmp_path / "manifest.json").exists()
    done = run_command(*flags)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path) == contents(reference)
    for job in jobs:
        job.communicate()


@pytest.fixture(scope="module")
def large_stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stories that take seconds, each large enough to be a unit of its own."""
    folder = tmp_path_factory.mktemp("stories")
    (folder / "a").write_text(("One sentence of many. " * 50 + "\n") * 25_000)
    for name in ("b", "c"):
        os.link(folder / "a", folder / name)
    return folder


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("kind", ["interrupted", pytest.param("killed", marks=pytest.mark.slow)])
def test_no_worker_is_left(large_stories: Path, tmp_path: Path, kind: str) -> None:
    flags = ("--source", large_stories, "--out", tmp_path / "out", "--workers", 2)
    process = subprocess.Popen(
        command("data-preprocessing/stories/preprocess.py", *flags),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # itself, the tracker of its semaphores, and two workers
    wait_for(lambda: len(processes_of(process.pid)) >= 4)
    time.sleep(0.5)
    if kind == "interrupted":
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    else:
        process.kill()
    _, said = process.communicate(timeout=300)
    wait_for(lambda: not processes_of(process.pid))
    if kind == "interrupted":
        assert (process.returncode, "interrupted" in said, "Traceback" in said) == (130, True, False), said
    assert not list((tmp_path / "out").glob("corpus.json"))


@pytest.mark.parametrize(
    ("script", "flags", "message"),
    [
        ("wiki/preprocess.py", ["--source", "nowhere"], "nowhere: expected the folder with the corpus' files"),
        ("stories/preprocess.py", ["--lines_per_document", "3"], "No such option: --lines_per_document"),
        ("stories/preprocess.py", ["--array_index", "1"], "--array_index and --array_size: expected both or none"),
        ("docstrings/preprocess.py", ["--limit_mb", "0"], "--limit_mb"),
        ("preprocess_data_512.py", ["--tokenizer", "train", "--vocab_size", "100"], "--vocab_size"),
    ],
)
def test_mistakes_exit_with_status_2(
    tmp_path: Path,
    script: str,
    flags: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert run_here(monkeypatch, f"data-preprocessing/{script}", *flags, "--out", out) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert not out.exists()


@pytest.mark.parametrize("name", [*WRITE, "docstrings"])
def test_every_corpus_has_its_script(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = WRITE[name](tmp_path / name) if name in WRITE else write_packages(tmp_path / name, 40)
    flags = ("--source", source, "--out", source / "unified", "--min_words", 1, "--workers", 1)
    caplog.set_level("INFO")
    assert run_here(monkeypatch, f"data-preprocessing/{name}/preprocess.py", *flags) == 0
    assert f"{name}: " in caplog.text
    assert "already finished" not in caplog.text
    assert run_here(monkeypatch, f"data-preprocessing/{name}/preprocess.py", *flags) == 0
    assert "already finished" in caplog.text
