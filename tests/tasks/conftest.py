"""What the tests of fine-tuning runs share."""

from pathlib import Path

import pytest
from finetuning import copy_of

from nystromformer.tasks.experiment.folder import Experiment


@pytest.fixture
def experiment(source: Path, tmp_path: Path) -> Experiment:
    """A pretrained experiment that no other test has."""
    return copy_of(source, tmp_path / "experiment")
