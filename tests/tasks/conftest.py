"""What the tests of fine-tuning runs share."""

from pathlib import Path

import pytest
from finetuning import copy_of, pretrained

from nystromformer.tasks.experiment.folder import Experiment


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Path:
    """The folder of a pretrained experiment, which each test copies; read-only by agreement."""
    return pretrained(tmp_path_factory.mktemp("pretrained"), dataset_folder).folder


@pytest.fixture
def experiment(source: Path, tmp_path: Path) -> Experiment:
    """A pretrained experiment that no other test has."""
    return copy_of(source, tmp_path / "experiment")
