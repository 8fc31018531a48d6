"""The Dockerfile and what a build is sent: checks that need no engine."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from container_engine import ENVIRONMENT, MOUNT_POINTS
from image_build import context_files, instructions, variables
from small import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
HADOLINT = shutil.which("hadolint", path=str(Path(sys.prefix) / "bin"))


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed")
def test_hadolint_has_nothing_to_say() -> None:
    assert HADOLINT is not None
    ended = subprocess.run([HADOLINT, "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")


def test_the_classic_builder_can_build_it() -> None:
    for instruction in instructions():
        assert not re.search(r"--mount|--chmod|--link|--network|--security|<<", instruction.arguments), instruction
    assert not re.search(r"^#\s*(syntax|check)\s*=", DOCKERFILE, re.MULTILINE | re.IGNORECASE)


def test_anyone_can_use_it() -> None:
    names = [each.name for each in instructions()]
    assert names[-1] == "USER"
    assert "ENTRYPOINT" not in names, "the documented lines name their own command"
    assert "VOLUME" not in names
    assert variables("ARG")["UID"] == variables("ARG")["GID"] == "1000"


def test_its_words_on_torch_are_current() -> None:
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None
    assert f"torch {pinned[1]}'s wheels are built for CUDA 13.0" in DOCKERFILE, "another torch may need another base"
    assert "ARG BASE_IMAGE=nvidia/cuda:13.0." in DOCKERFILE


def test_the_test_engines_image_is_like_it() -> None:
    assert variables("ENV") == ENVIRONMENT
    made = " ".join(each.arguments for each in instructions() if each.name == "RUN")
    assert all(re.search(rf"mkdir [^&]*/{name}\b", made) for name in MOUNT_POINTS)


def test_the_context_is_what_the_dockerfile_copies() -> None:
    code = {path.relative_to(ROOT).as_posix() for path in (ROOT / "code").rglob("*") if path.is_file()}
    code = {name for name in code if "__pycache__" not in name and ".egg-info" not in name}
    scripts = {*(ROOT / "data-preprocessing").glob("*.py"), *(ROOT / "data-preprocessing").glob("*/preprocess.py")}
    others = {"LICENSE", "requirements.lock"}
    expected = code | {path.relative_to(ROOT).as_posix() for path in scripts} | others
    assert {"code/run_pretrain.py", "code/nystromformer/py.typed", "data-preprocessing/wiki/preprocess.py"} < expected
    # A build is always sent these two.
    assert context_files(ROOT) - {"Dockerfile", ".dockerignore"} == expected


@pytest.mark.parametrize(
    "name",
    [
        ".env",
        ".git/config",
        "README.md",  # whose edit rebuilds nothing
        "nystrom-512/model/cp-0000.cp",
        "data-preprocessing/512-roberta/train.bin",
        "data-preprocessing/wiki/unified/corpus.py",
        "code/nystromformer.egg-info/PKG-INFO",
        "code/nystromformer/__pycache__/errors.cpython-311.pyc",
    ],
)
def test_the_context_leaves_out(tmp_path: Path, name: str) -> None:
    shutil.copy(ROOT / ".dockerignore", tmp_path)
    for each in (name, "code/nystromformer/errors.py"):
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).touch()
    assert context_files(tmp_path) - {"Dockerfile", ".dockerignore"} == {"code/nystromformer/errors.py"}
