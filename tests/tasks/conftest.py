"""What the tests of fine-tuning runs share."""

from pathlib import Path

import pytest
from finetuning import copy_of, pretrained, sweep, write_sst2
from small import CPU

from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.finetuning.sweep import finetune
from nystromformer.tasks.glue.catalog import find_tasks
from nystromformer.tasks.glue.task import Glue


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Path:
    """The folder of a pretrained experiment, which each test copies; read-only by agreement."""
    return pretrained(tmp_path_factory.mktemp("pretrained"), dataset_folder).folder


@pytest.fixture
def experiment(source: Path, tmp_path: Path) -> Experiment:
    """A pretrained experiment that no other test has."""
    return copy_of(source, tmp_path / "experiment")


@pytest.fixture(scope="session")
def finished(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run on SST-2, four folders deep in its experiment; read-only by agreement."""
    folder = tmp_path_factory.mktemp("finished")
    glue = Glue(find_tasks("SST-2")[0], write_sst2(folder / "glue"))
    (result,) = finetune(copy_of(source, folder / "experiment"), glue, sweep(epochs=1), CPU).results
    return Path(result.folder)
