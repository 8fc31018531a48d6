"""The tests' own engine: its image runs the project as any user, and nothing of an engine stays."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from container_engine import Engine, host_image, host_volumes, start_engine
from small import ROOT

pytestmark = pytest.mark.engine


def test_the_project_runs_as_any_user(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model").chmod(0o777)
    output = engine.client.containers.run(
        engine.image,
        [
            "/bin/bash",
            "-c",
            "python -c 'import nystromformer as n; print(n.__file__)'; touch ~/file /model/file; id -u",
        ],
        volumes=[f"{ROOT / 'code'}:/code:ro", f"{tmp_path / 'model'}:/model"],
        user="1234:1234",
        network_mode="host",
        ipc_mode="host",
        init=True,
        remove=True,
    )
    assert output.decode().split() == ["/code/nystromformer/__init__.py", "1234"]
    assert (tmp_path / "model" / "file").stat().st_uid == 1234


def test_an_ending_engine_takes_along_all_it_has_and_leaves_others(engine: Engine) -> None:
    with start_engine(host_volumes()) as other:
        assert other.client.images.list() == [], "engines share no images"
        other.import_image(other.image, *host_image())
        container = other.client.containers.run(other.image, ["sleep", "98765"], detach=True, network_mode="host")
        assert container.exec_run(["echo", "well"]).output == b"well\n"
        assert "sleep 98765" in processes()
        folder = other.folder
        assert str(folder) in processes()
    assert "sleep 98765" not in processes()
    assert str(folder) not in processes(), "what watches over a program within a container ends minutes after that"
    assert not folder.exists()
    assert str(folder) not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    assert engine.client.images.get(engine.image).tags


def test_all_it_has_is_in_its_own_folder(engine: Engine) -> None:
    store = json.loads(engine.podman("info", "--format", "json"))["store"]
    for key in ("graphRoot", "runRoot", "imageCopyTmpDir", "volumePath"):
        assert Path(store[key]).is_relative_to(engine.folder), key


IMPORTS_AND_RUNS = """
mount -t tmpfs none /var/lib || exit 77
[ ! -e /run/containers ] || mount -t tmpfs none /run/containers || exit 77
exec "$0" - <<'END'
from container_engine import host_image, host_volumes, start_engine
with start_engine(host_volumes()) as engine:
    engine.import_image(engine.image, *host_image())
    print(engine.client.containers.run(engine.image, ["echo", "well"], network_mode="host", remove=True).decode())
END
"""


def test_where_root_never_used_podman() -> None:
    # Hidden from this command alone, and from what it starts.
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", IMPORTS_AND_RUNS, sys.executable]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip(f"folders cannot be hidden here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["well"]


def processes() -> str:
    return subprocess.run(["ps", "-ewwo", "args"], check=True, capture_output=True, text=True).stdout
