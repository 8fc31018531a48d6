"""Preprocessing by the launcher against a real engine, folders and links anywhere: the files of a plain command."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_engine import Engine
from corpora import write_wiki
from launching import Launcher
from small import ROOT, run_command

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("no_containers_left")]


@pytest.fixture
def name() -> Iterator[str]:
    """Of a container, whose log does not stay in the project."""
    chosen = f"test-{uuid.uuid4().hex}"
    yield chosen
    (ROOT / "data-preprocessing" / f"{chosen}.txt").unlink(missing_ok=True)


def test_folders_anywhere(engine: Engine, name: str, tmp_path: Path) -> None:
    launch = Launcher(engine)
    write_wiki(tmp_path / "disk")
    source = tmp_path / "odd name's" / "corpus"
    source.mkdir(parents=True)
    (source / "dump").symlink_to(tmp_path / "disk" / "text")
    stage_one = ("--source", source, "--min_words", 1, "--workers", 1)
    launch("preprocess", "wiki", *stage_one, "--out", tmp_path / "one/mine/unified", "--name", name, "--follow")
    plain = run_command("data-preprocessing/wiki/preprocess.py", *stage_one, "--out", tmp_path / "plain/mine/unified")
    assert plain.returncode == 0, plain.stderr
    assert files(tmp_path / "one" / "mine" / "unified") == files(tmp_path / "plain" / "mine" / "unified")

    (tmp_path / "corpora").mkdir()
    (tmp_path / "corpora" / "mine").symlink_to("../one/mine")
    stage_two = ("--corpora", tmp_path / "corpora", "--corpus", "mine", "--tokenizer", "train", "--vocab_size", 300)
    stage_two += ("--length", 32, "--workers", 1)
    launch("preprocess", "512", *stage_two, "--out", tmp_path / "rows", "--name", name, "--follow")
    plain = run_command("data-preprocessing/preprocess_data_512.py", *stage_two, "--out", tmp_path / "plain" / "rows")
    assert plain.returncode == 0, plain.stderr
    assert files(tmp_path / "rows") == files(tmp_path / "plain" / "rows")

    launch("preprocess", "512", *stage_two[2:], "--corpora", "/nowhere", "--name", name, status=2)


def files(folder: Path) -> dict[str, object]:
    """What is in them; of the manifest, but when it was made."""
    contents: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "stages" not in path.relative_to(folder).parts:
            contents[str(path.relative_to(folder))] = path.read_bytes()
    for key in ("manifest.json", "corpus.json"):
        if key in contents:
            record = json.loads((folder / key).read_bytes())
            contents[key] = {name: value for name, value in record.items() if name not in ("created", "seconds")}
    assert contents
    return contents
