"""A container engine that the tests of this folder share."""

import shutil
from collections.abc import Iterator

import pytest
from container_engine import Engine, host_image, host_volumes, missing, start_engine


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


@pytest.fixture(scope="session")
def docker_command() -> str:
    """Docker's command line, which is a client of whatever engine DOCKER_HOST names."""
    found = shutil.which("docker")
    if found is None:
        pytest.skip("no docker command (the client alone is enough)")
    return found
