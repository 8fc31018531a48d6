"""Container engines, a real and a pretended one, and what tests start with them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from container_engine import Engine, host_image, host_volumes, missing, start_engine
from fake_engine import FakeEngine, Launcher
from small import write_experiment


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    engine = FakeEngine()
    monkeypatch.setattr(docker, "from_env", lambda timeout: engine)
    # Docker's own settings of who runs the tests may add variables to containers.
    monkeypatch.setenv("HOME", "/nowhere")
    return engine


@pytest.fixture
def launch(capsys: pytest.CaptureFixture[str]) -> Launcher:
    return Launcher(capsys)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An experiment folder."""
    write_experiment(tmp_path / "small")
    return tmp_path / "small"


@pytest.fixture
def words(home: Path, dataset_folder: Path) -> tuple[object, ...]:
    """What starts it."""
    return ("pretrain", home, "--dataset", dataset_folder)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """An engine with an image "nystromformer" that runs the tests' own Python; whatever it holds goes with it."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    # Several containers at a time, and the tests beside them, share few cores: waiting threads would take them.
    with start_engine(host_volumes(), ["OMP_NUM_THREADS=1"]) as started:
        started.import_image(started.image, *host_image())
        yield started


@pytest.fixture
def no_containers_left(engine: Engine) -> Iterator[None]:
    """Whatever a test leaves in the engine is removed after it."""
    yield
    for container in engine.client.containers.list(all=True, ignore_removed=True):
        container.remove(force=True)


@pytest.fixture(scope="session")
def docker_command() -> str:
    """Docker's command line, which is a client of whatever engine DOCKER_HOST names."""
    path = shutil.which("docker")
    if path is None:
        pytest.skip("no docker command (the client alone is enough)")
    return path
