"""The code blocks of a document, and a copy of the project to try them in.

A block is a fence; the line before it may name a file: one that begins with a path in backquotes and ends with a colon.
A block of a file is its whole text, or, in the language `diff`, a change: lines that begin with a blank and those that
begin with a minus stand in the file, once; lines that begin with a blank and those that begin with a plus replace them.
A line of a change that begins with `@@` parts it from the next one.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_COPIED = (
    *("pyproject.toml", "code/**/*.py", "code/**/*.html", "code/**/*.json", "code/**/py.typed"),
    *("data-preprocessing/*.py", "data-preprocessing/*/preprocess.py"),
    *("tests/**/*.py", "*/config.json", "experiments/*/config.json"),
    *("Dockerfile", ".dockerignore", "LICENSE", "README.md", "requirements.txt", "requirements.lock"),
    *("docs/library.md", "glue/README.md", "wikihop/README.md", "data/*/README.md", "experiments/lra/README.md"),
)
"""What a copy holds: no data, of which folders of the project may be full."""

_HEADING = re.compile(r"(#+) (.*)")
_FENCE = re.compile(r"```(\S*)$")
_NAMES_FILE = re.compile(r"`([^`\s]+)`.*:$")


@dataclass(frozen=True)
class Block:
    """A block of code; file: what the line before it names, None for one that is of no file."""

    file: str | None
    language: str
    text: str


def blocks(path: Path, section: str) -> list[Block]:
    """The blocks below a heading and the smaller ones after it, in order."""
    lines = _section(path.read_text(encoding="utf-8").splitlines(), section)
    made: list[Block] = []
    before = ""
    for line in lines:
        fence = _FENCE.match(line)
        if fence is not None:
            text = "".join(f"{inside}\n" for inside in iter(lambda: next(lines), "```"))
            named = _NAMES_FILE.match(before)
            made.append(Block(named[1] if named else None, fence[1], text))
        before = line or before
    return made


def _section(lines: Iterable[str], section: str) -> Iterator[str]:
    depth = 0
    fenced = False
    for line in lines:
        fenced ^= line.startswith("```")
        heading = None if fenced else _HEADING.match(line)
        if heading and depth and len(heading[1]) <= depth:
            return
        if depth:
            yield line
        elif heading and heading[2] == section:
            depth = len(heading[1])
    assert depth, f"there is no section {section!r}"


def copy_of_project(folder: Path) -> Path:
    """The project's code, tests and configurations in a folder of their own."""
    for pattern in _COPIED:
        for path in ROOT.glob(pattern):
            if "__pycache__" not in path.parts:
                to = folder / path.relative_to(ROOT)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, to)
    return folder


def apply(examples: Sequence[Block], project: Path) -> list[Path]:
    """Write the files of the blocks that name one, and make the changes; returns their paths."""
    touched = []
    for block in examples:
        if block.file is None:
            continue
        path = project / block.file
        touched.append(path)
        if block.language == "diff":
            path.write_text(_changed(path.read_text(encoding="utf-8"), block), encoding="utf-8")
        else:
            assert not path.exists(), f"{block.file} is there already: show a change of it, as a diff"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
    return touched


def _changed(text: str, block: Block) -> str:
    for is_mark, group in groupby(block.text.splitlines(), key=lambda line: line.startswith("@@")):
        if is_mark:
            continue
        change = list(group)
        assert all(line[:1] in ("", " ", "-", "+") for line in change), change
        before, after = ("".join(f"{line[1:]}\n" for line in change if line[:1] != other) for other in ("+", "-"))
        count = text.count(before)
        assert count == 1, f"expected once in {block.file}, found {count} times:\n{before}"
        text = text.replace(before, after)
    return text


def commands(examples: Sequence[Block]) -> list[list[str]]:
    """The words of each command in the blocks of shell commands, without comments."""
    lines = [
        line
        for block in examples
        if block.language in ("", "sh", "bash") and block.file is None
        for line in block.text.replace("\\\n", " ").splitlines()
    ]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run(words: Sequence[str], project: Path, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a documented command in a copy of the project; `python` is this interpreter. It has to succeed."""
    program = [sys.executable, *words[1:]] if words[0] == "python" else list(words)
    environment = {**os.environ, "PYTHONPATH": str(project / "code")}
    done = subprocess.run(
        program, cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=seconds
    )
    assert done.returncode == 0, f"{shlex.join(words)}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
