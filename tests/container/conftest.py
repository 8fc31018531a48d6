"""A container engine that the tests of this folder share."""

from collections.abc import Iterator

import pytest
from container_engine import Engine, host_image, host_volumes, missing, start_engine


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """An engine with an image "nystromformer" that runs the tests' own Python; whatever it holds goes with it."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with start_engine(host_volumes()) as started:
        started.import_image(started.image, *host_image())
        yield started
