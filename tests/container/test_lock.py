"""requirements.lock: in step with requirements.txt, complete, and all of it checked by the image."""

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from image_build import instructions, locked
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from small import ROOT

LOCK = ROOT / "requirements.lock"
HOW = "requirements.lock is older than requirements.txt: `make lock`"
# Where images run: the Pythons of Ubuntu 24.04 and Debian 12.
PLACES = [
    {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": machine}
    | {"python_version": version, "python_full_version": f"{version}.7", "implementation_name": "cpython"}
    for version in ("3.11", "3.12")
    for machine in ("x86_64", "aarch64")
]


def requirements() -> list[Requirement]:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def in_place(name: str, place: dict[str, str]) -> list[Version]:
    """The versions of a package that the lock installs there."""
    entries = locked().get(canonicalize_name(name), [])
    return [Version(e.version) for e in entries if not e.marker or Marker(e.marker).evaluate(place)]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place['python_version']}-{place['platform_machine']}")
def test_what_is_pinned_is_locked_and_each_package_has_one_version(place: dict[str, str]) -> None:
    for requirement in requirements():
        (pin,) = requirement.specifier
        assert in_place(requirement.name, place) == [Version(pin.version)], f"{requirement}: {HOW}"
    assert [name for name in locked() if len(in_place(name, place)) > 1] == []


def test_every_entry_has_the_hashes_of_its_files_and_names_no_index() -> None:
    entries = locked()
    assert len(entries) > len(requirements())
    bare = [name for name, versions in entries.items() for each in versions if not each.hashes]
    assert bare == []
    assert "://" not in LOCK.read_text(encoding="utf-8")


def installed_needs() -> Iterator[tuple[str, Requirement]]:
    """What each locked package needs, of those that are installed here in that very version."""
    for name, entries in locked().items():
        try:
            here = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if here.version.partition("+")[0] in [each.version for each in entries]:
            for line in here.requires or ():
                need = Requirement(line)
                if need.marker is None or need.marker.evaluate({**PLACES[0], "extra": ""}):
                    yield name, need


def test_what_the_locked_need_is_locked() -> None:
    needs = list(installed_needs())
    assert len(needs) > 20
    for name, need in needs:
        versions = in_place(need.name, PLACES[0])
        assert versions, f"{name} needs {need}: {HOW}"
        assert need.specifier.contains(versions[0], prereleases=True), f"{name} needs {need}, and {versions} is locked"


def splitter() -> str:
    """The program with which the Dockerfile divides the lock."""
    (run,) = (each.arguments for each in instructions() if "awk" in each.arguments)
    return run


def test_the_dockerfile_divides_it_without_a_loss(tmp_path: Path) -> None:
    torch, others = tmp_path / "torch.lock", tmp_path / "others.lock"
    script = splitter().replace("/torch.lock", str(torch)).replace("/others.lock", str(others))
    subprocess.run(["/bin/sh", "-ec", script.replace("/requirements.lock", str(LOCK))], check=True)
    assert locked(torch).keys().isdisjoint(locked(others))
    assert {**locked(torch), **locked(others)} == locked()
    assert {"torch", "triton", "nvidia-cudnn-cu13", "cuda-toolkit"} <= locked(torch).keys()
    of_gpus = re.compile(r"torch|triton|cuda-.+|nvidia-.+")
    assert all(of_gpus.fullmatch(name) for name in locked(torch)), "the rest is installed beside a CPU build, too"
    assert "torchmetrics" in locked(others)
    pinned = re.search(r"^torch==[^ ]*", torch.read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None, "what another index is asked for"


def test_the_image_takes_nothing_unlocked() -> None:
    text = " ".join(each.arguments for each in instructions() if each.name == "RUN")
    installs = [re.split(r"&&|;|\bfi\b", part)[0] for part in text.split("pip install")[1:]]
    others = [install for install in installs if "--require-hashes" not in install]
    assert len(installs) == 4
    assert len(others) == 2
    for install in others:
        assert '--index-url "${TORCH_INDEX_URL}"' in install, "another index has builds of its own"
    for install in installs:
        assert "--no-deps" in install or "/tmp/libraries.txt" in install


PIP = """#!/bin/sh
echo "$@"
for last; do true; done
case $last in *.txt) cat "$last";; esac
"""


@pytest.mark.parametrize(
    ("build", "needs", "installed"),
    [
        ("cpu", ["filelock", "sympy>=1.13.3", 'pyyaml; extra == "pyyaml"'], []),
        (
            "cu126",
            [
                "filelock",
                "cuda-bindings<13,>=12.9.4; platform_system == 'Linux'",
                "nvidia-cudnn-cu12==9.10.2.21; platform_system == 'Linux'",
                "triton==3.7.1; platform_system == 'Linux'",
                'optree>=0.13.0; extra == "optree"',
            ],
            ["cuda-bindings", "nvidia-cudnn-cu12", "triton"],
        ),
    ],
)
def test_a_cuda_build_of_another_index_gets_its_libraries(
    tmp_path: Path, build: str, needs: list[str], installed: list[str]
) -> None:
    (run,) = (each.arguments for each in instructions() if "torch.lock" in each.arguments and "pip" in each.arguments)
    info = tmp_path / "installed" / "torch-2.13.0.dist-info"
    info.mkdir(parents=True)
    requires = "".join(f"Requires-Dist: {need}\n" for need in needs)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+{build}\n{requires}")
    for name, text in (("pip", PIP), ("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    # /tmp first: the other two may lie below it here.
    for path, here in (("/tmp", tmp_path), ("/opt/nystromformer/torch.lock", LOCK), ("/opt/venv", tmp_path / "venv")):
        run = run.replace(path, str(here))
    (tmp_path / "venv").mkdir()
    index = "https://builds.example/whl"
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(info.parent), "TORCH_INDEX_URL": index}
    # Docker begins it so.
    done = subprocess.run(["/bin/sh", "-c", run], env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"install --no-cache-dir --no-deps --index-url {index} torch=={pinned_torch()}")
    assert [re.split(r"[<=>;]", line)[0] for line in lines[2:]] == installed
    assert all(f"--index-url {index} " in line and "--no-deps" not in line for line in lines[1:2])
    assert not (tmp_path / "libraries.txt").exists()


def pinned_torch() -> str:
    (entry,) = locked()["torch"]
    return entry.version


def test_what_libraries_of_gpus_need_are_such_libraries() -> None:
    """Or the image would take them from another index, unlocked."""
    of_gpus = re.compile(r"cuda-|nvidia-|triton")
    text = LOCK.read_text(encoding="utf-8").split("\n")
    needed = {name for name in locked() if not of_gpus.match(name)}
    for index, line in enumerate(text):
        if (match := re.match(r"([a-z0-9-]+)==", line)) and match[1] in needed:
            rest = text[index + 1 :]
            end = next((i for i, each in enumerate(rest) if not each.startswith(" ")), len(rest))
            by = re.findall(r"# +(?:via )?(\S+)$", "\n".join(rest[:end]), re.MULTILINE)
            assert not [name for name in by if of_gpus.match(name)], match[1]
