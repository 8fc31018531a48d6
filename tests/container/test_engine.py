"""The tests' own engine: its image runs the project as any user, and nothing of an engine stays."""

import subprocess
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


def processes() -> str:
    return subprocess.run(["ps", "-ewwo", "args"], check=True, capture_output=True, text=True).stdout
