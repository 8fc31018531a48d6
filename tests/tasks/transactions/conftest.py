"""What the tests of transactions share."""

from pathlib import Path

import pytest
from clients import draw, prepare_drawn

from nystromformer.tasks.transactions.store import Stored, open_stored


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of drawn clients."""
    return draw(tmp_path_factory.mktemp("drawn"), 120)


@pytest.fixture(scope="session")
def stored(drawn: Path, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """The same, prepared."""
    folder = tmp_path_factory.mktemp("clients") / "data"
    prepare_drawn(drawn, folder)
    return open_stored(folder)
