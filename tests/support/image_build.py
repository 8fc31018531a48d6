"""The Dockerfile as data, and its build on a base image that is made from a folder."""

import ast
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import docker
import docker.utils.build
from container_engine import Engine
from small import ROOT

BASE = "nystromformer-base"
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@dataclass(frozen=True)
class Instruction:
    """One instruction: COPY, say, and what follows it on all its lines."""

    name: str
    arguments: str


def instructions(dockerfile: Path = ROOT / "Dockerfile") -> list[Instruction]:
    text = re.sub(r"^#.*\n", "", dockerfile.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [Instruction(name, " ".join(arguments.split())) for name, arguments in lines]


def variables(name: str) -> dict[str, str]:
    """What all instructions ENV (or LABEL, or ARG) of that name set."""
    given = [item for each in instructions() if each.name == name for item in shlex.split(each.arguments)]
    return {key: value for key, _, value in (item.partition("=") for item in given)}


def context_files(folder: Path) -> set[str]:
    """The files that a build in `folder` is sent."""
    lines = (folder / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    return {name for name in docker.utils.build.exclude_paths(str(folder), patterns) if (folder / name).is_file()}


def copy_context(folder: Path) -> None:
    """A folder that a build can be made in, for changing files."""
    for name in context_files(ROOT):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)


def import_base(engine: Engine, rootfs: Path) -> None:
    """Make the folder a base image, in which pip and apt find what they find here."""
    configuration = "".join(f"{key} = {value}\n" for key, value in inner_pip_settings().items())
    archive = engine.folder / "base.tar"
    subprocess.run(["tar", "-C", str(rootfs), "-cf", str(archive), "."], check=True)
    with tarfile.open(archive, "a") as layer:
        for name, text in (
            ("etc/pip.conf", f"[global]\n{configuration}"),
            ("etc/apt/apt.conf.d/80-retries", 'Acquire::Retries "3";\n'),
        ):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text.encode()), 0o644
            layer.addfile(entry, io.BytesIO(text.encode()))
    engine.import_image(BASE, archive)
    archive.unlink()


def build(engine: Engine, context: Path, arguments: Mapping[str, str]) -> docker.models.images.Image:
    proxies = {name: os.environ[name] for name in PROXIES if name in os.environ}
    extra = {"PIP_EXTRA_INDEX_URL": value} if (value := pip_settings().get("extra-index-url")) else {}
    try:
        image, _ = engine.client.images.build(
            path=str(context),
            tag=engine.image,
            network_mode="host",
            buildargs={"BASE_IMAGE": f"docker.io/library/{BASE}:latest", **proxies, **extra, **arguments},
        )
    except docker.errors.BuildError as error:
        log = "".join(str(part.get("stream", part)) for part in error.build_log)
        raise RuntimeError(f"{error}\n{log[-5000:]}") from error
    return image


def torch_index(folder: Path) -> dict[str, str]:
    """The arguments of a build that takes the torch that pip finds here.

    Where that is a build for CPUs, which the lock does not know, it is the only file of an index that is made in
    `folder`; a container needs that folder.
    """
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet"]
    pinned = re.search(r"^torch==\S+$", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None
    said = subprocess.run([*command, "--report", "-", pinned[0]], check=True, capture_output=True, text=True).stdout
    (torch,) = json.loads(said)["install"]
    if "+" not in torch["metadata"]["version"]:
        return {}
    page = folder / "torch" / "index.html"
    page.parent.mkdir(parents=True)
    url = torch["download_info"]["url"]
    page.write_text(f'<!DOCTYPE html><a href="{url}">{url.rpartition("/")[2]}</a>', encoding="utf-8")
    return {"TORCH_INDEX_URL": folder.as_uri()}


def pip_settings() -> dict[str, str]:
    """pip's settings here, from its files and the environment, which comes first."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    items = [line.partition("=") for line in sorted(lines, key=lambda line: line.startswith(":env:"))]
    return {name.rpartition(".")[2]: " ".join(ast.literal_eval(value).split()) for name, _, value in items}


def inner_pip_settings() -> dict[str, str]:
    """Those of them that make sense in a container with `pip_volumes`; other indexes come as arguments of the build."""
    kept = ("cert", "default-timeout", "find-links", "index-url", "proxy", "timeout", "trusted-host")
    return {key: value for key, value in pip_settings().items() if key in kept} | (
        {"cert": "/opt/host-pip/cert.pem"} if "cert" in pip_settings() else {}
    )


def pip_volumes() -> list[str]:
    """The files and folders here that pip's settings name."""
    settings = pip_settings()
    places = settings.get("find-links", "").split()
    # The pages of an index link to files beside it.
    urls = [*settings.get("index-url", "").split(), *settings.get("extra-index-url", "").split()]
    places += [str(Path(url.removeprefix("file://")).parent) for url in urls if url.startswith("file://")]
    folders = {place.removeprefix("file://") for place in places}
    volumes = [f"{folder}:{folder}:ro" for folder in sorted(folders) if Path(folder).is_dir()]
    # Not at its own path, which the image's own certificates may have.
    return volumes + ([f"{settings['cert']}:/opt/host-pip/cert.pem:ro"] if "cert" in settings else [])
