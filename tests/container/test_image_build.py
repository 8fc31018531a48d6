"""A build of the Dockerfile, and the image at work: on a small base, with whatever torch pip finds."""

import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_engine import Engine, missing, start_engine
from image_build import build, copy_context, import_base, pip_volumes, torch_index
from small import ROOT, write_experiment

ROOTFS = Path(os.environ.get("NYSTROM_BASE_IMAGE_ROOTFS") or "/proc/nonexistent")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.image,
    pytest.mark.skipif(not ROOTFS.is_dir(), reason="NYSTROM_BASE_IMAGE_ROOTFS names no root file system"),
]
USER = 4321


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Those of the build."""
    return torch_index(tmp_path_factory.mktemp("index"))


@pytest.fixture(scope="module")
def built(arguments: dict[str, str]) -> Iterator[Engine]:
    """An engine whose image is the project's own."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    index = arguments.get("TORCH_INDEX_URL", "").removeprefix("file://")
    with start_engine([*pip_volumes(), *([f"{index}:{index}:ro"] if index else [])]) as engine:
        import_base(engine, ROOTFS)
        copy_context(context(engine))
        build(engine, context(engine), arguments)
        yield engine


def context(engine: Engine) -> Path:
    return engine.folder / "context"


def run(engine: Engine, script: str, *options: str, user: str | None = f"{USER}:{USER}") -> str:
    """A container's output. As in Docker, /etc/passwd does not know the user."""
    who = ["--user", user] if user else []
    options = ("--rm", "--init", "--passwd=false", "--network=host", "--ipc=host", *who, *options)
    return engine.podman("run", *options, engine.image, "/bin/bash", "-c", f"set -eu; {script}").strip()


def python(code: str) -> str:
    return f"python -c {shlex.quote(code)}"


def own(folder: Path) -> Path:
    """Give a folder, and all in it, to the user of the containers."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER)
    return folder


def test_the_copied_code_runs_as_any_user(built: Engine) -> None:
    code = "import torch, transformers, datasets, nystromformer; print(nystromformer.__file__)"
    assert run(built, python(code)) == "/code/nystromformer/__init__.py"
    assert "Usage: run_pretrain.py" in run(built, "python3 /code/run_pretrain.py --help")
    assert "Usage: preprocess.py" in run(built, "python3 /data-preprocessing/wiki/preprocess.py --help")


def test_a_mounted_clone_is_what_runs(built: Engine, tmp_path: Path) -> None:
    (tmp_path / "nystromformer").mkdir()
    (tmp_path / "nystromformer" / "__init__.py").write_text("print('the mounted one')\n")
    assert run(built, python("import nystromformer"), f"--volume={own(tmp_path)}:/code") == "the mounted one"
    assert not list(tmp_path.rglob("__pycache__")), "nothing is left in a clone"


def test_without_a_user_it_is_not_root(built: Engine) -> None:
    assert run(built, "id -u; id -g; echo $HOME; touch ~/file", user=None).split() == ["1000", "1000", "/home/nystrom"]


def test_a_user_without_a_name_can_compile_and_has_caches(built: Engine) -> None:
    compiled = "import torch; print(torch.compile(lambda x: x.sin() + 1, fullgraph=True)(torch.zeros(3)).tolist())"
    name = "import getpass; print(getpass.getuser())"
    output = run(built, f"{python(compiled)}; {python(name)}; ls ~/.cache; stat -c %u ~/.cache")
    assert output.splitlines() == ["[1.0, 1.0, 1.0]", "nystrom", "torchinductor", str(USER)]


def test_what_triton_compiles_finds_its_headers(built: Engine) -> None:
    include = python("import sysconfig; print(sysconfig.get_path('include'))")
    run(built, f"echo '#include <Python.h>' | gcc -fsyntax-only -x c -I$({include}) -")
    installed = python("import importlib.util; print(importlib.util.find_spec('triton') is not None)")
    if run(built, installed) == "True":
        run(built, python("import triton.language"))


def test_pretraining_by_the_documented_line(built: Engine, tmp_path: Path, dataset_folder: Path) -> None:
    model = own(write_experiment(tmp_path / "model", pretraining_setting__epoch=1).folder)
    line = "exec python3 /code/run_pretrain.py >> /model/pretrain.txt 2>&1"
    dataset = own(shutil.copytree(dataset_folder, tmp_path / "dataset"))
    run(built, line, f"--volume={model}:/model", f"--volume={dataset}:/dataset:ro")
    written = {path.name: path.stat() for path in (model / "model").rglob("*")}
    assert {"cp-0000.cp", "cp-0000.model", "log.jsonl"} <= written.keys()
    assert {status.st_uid for status in written.values()} == {USER}
    assert "loss" in (model / "pretrain.txt").read_text()


def test_all_imports_succeed_without_the_test_suites(built: Engine) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    optional_extras = ("gpu", "export", "serve", "excel", "ray", "datatrove")
    named = [re.split(r"[><=\[;]", each)[0] for extra in optional_extras for each in extras[extra]]
    optional = [name.replace("-", "_") for name in named]
    tried = f"""
import importlib, pkgutil, nystromformer
names = [each.name for each in pkgutil.walk_packages(nystromformer.__path__, "nystromformer.")]
assert len(names) > 100
optional = {optional!r}
for name in [*names, "torch.testing", "torch.distributed.run", "torch.utils.tensorboard.writer", "numpy.testing",
             "scipy.stats", "sklearn.metrics", "matplotlib.pyplot", "pandas", "datasets", "sympy", "tensorboard.main"]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name.partition(".")[0]
        assert missing in optional and importlib.util.find_spec(missing) is None, (name, error)
"""
    run(built, python(tried))
