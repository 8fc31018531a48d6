"""What all tests share."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

# Two test processes share the cores: more threads than that only wait for each other. Whatever the caller has set: a
# run that is forked has one thread, and its bits are compared with those of one that is not.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A shell's background jobs ignore it, and so would all commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import settings


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "FILE.py:CLASS,KEY=VALUE,…: tests/attention/test_contract.py tests this attention instead of the package's"
    parser.addoption("--attention", default="", help=told)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--attention"):
        os.environ["NYSTROM_ATTENTION"] = config.getoption("--attention")


settings.register_profile("no test measures time", deadline=None)
settings.load_profile("no test measures time")


def _without_waiting(file: int | IO[bytes]) -> None:
    os.fstat(file if isinstance(file, int) else file.fileno())  # as before, an error where it is none


# Tests end with no power cut, and waiting for a disk is most of what writing small checkpoints takes. Commands that
# tests start in a process of their own wait for it.
os.fsync = _without_waiting


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """A benchmark that a test runs here sets the threads of the whole process, and bits of later runs with them."""
    yield
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def dataset_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset; read-only by agreement."""
    from small import write_dataset

    return write_dataset(tmp_path_factory.mktemp("dataset"))


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Path:
    """The folder of a pretrained experiment, with cp-0000 and cp-0001; read-only by agreement."""
    from finetuning import pretrained

    return pretrained(tmp_path_factory.mktemp("pretrained"), dataset_folder).folder


@pytest.fixture(scope="session")
def two_epochs(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Path:
    """The folder of a finished pretraining of twice ten steps; read-only by agreement."""
    from finetuning import pretrained

    changes = {"pretraining_setting__batches_per_epoch": 10}
    return pretrained(tmp_path_factory.mktemp("two-epochs"), dataset_folder, **changes).folder


@pytest.fixture(scope="session")
def finished(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run on SST-2, four folders deep in its experiment; read-only by agreement."""
    from finetuning import finetuned_glue

    return finetuned_glue(source, tmp_path_factory.mktemp("finished"), "SST-2")
