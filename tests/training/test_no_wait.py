"""Between two lines of the log no step waits for the device.

On a CPU nothing shows such a wait, so what would wait on a GPU is caught as it is called, by PyTorch's operators and by
the methods of tensors; on a GPU torch's own check finds the rest.
"""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from finetuning import copy_of, finetune, write_sst2
from small import write_experiment
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from wikihop_files import record, write_records

from nystromformer.tasks.glue.catalog import find_tasks
from nystromformer.tasks.glue.task import Glue
from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.tasks.wikihop.task import WikiHop
from nystromformer.training import Device, choose_device
from nystromformer.training.loop import Trainer

OPERATORS = {
    "_local_scalar_dense",  # item(), float(), bool(), int(), "if tensor"
    "nonzero",
    "masked_select",
    "equal",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "repeat_interleave",
}
METHODS = {"tolist", "numpy", "cpu", "item", "__array__"}
FUNCTIONS = {"tensor", "as_tensor", "from_numpy"}


class Waits(AssertionError):
    """What would wait for a GPU was called."""


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.rstrip("_")
        by_bools = name in ("index", "index_put", "_index_put_impl") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        # repeat_interleave knows how much to make where output_size says so.
        if by_bools or (func.overloadpacket.__name__ in OPERATORS and (kwargs or {}).get("output_size") is None):
            raise Waits(str(func))
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        is_method = name in METHODS and bool(args) and isinstance(args[0], Tensor)
        if is_method or (name in FUNCTIONS and getattr(torch, name) is func):
            raise Waits(name)
        return func(*args, **(kwargs or {}))


class Guard:
    """Checks the loop of a trainer, but for where it reports, validates and writes checkpoints."""

    def __init__(self) -> None:
        self.steps = 0
        self._open = False
        self._modes: list[Any] = []

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("_metrics", "_report", "_end_epoch", "_save_between", "_check_before_saving"):
            monkeypatch.setattr(Trainer, name, self._unwatched(getattr(Trainer, name)))
        step, run = Trainer._step, Trainer.run

        def counted(trainer: Trainer, *args: Any) -> Tensor:
            norm = step(trainer, *args)
            self.steps += self._open
            return norm

        def ended(trainer: Trainer, title: str) -> Any:
            try:
                return run(trainer, title)
            finally:
                self.close()

        monkeypatch.setattr(Trainer, "_step", counted)
        monkeypatch.setattr(Trainer, "run", ended)

    def _unwatched(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def allowed(*args: Any) -> Any:
            was_open = self._open
            self.close()
            result = method(*args)
            # The first report ends what is done once: kernels are tried, moments are made.
            if was_open or method.__name__ == "_report":
                self.open()
            return result

        return allowed

    def open(self) -> None:
        if self._open:
            return
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("error")
        self._modes = [_Methods(), _Operators()] if not torch.cuda.is_available() else []
        for mode in self._modes:
            mode.__enter__()
        self._open = True

    def close(self) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(None, None, None)
        self._modes = []
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("default")
        self._open = False


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guard]:
    guard = Guard()
    guard.watch(monkeypatch)
    yield guard
    guard.close()


def here(precision: str | bool) -> Device:
    return choose_device("auto", precision) if torch.cuda.is_available() else choose_device("cpu", precision)


@pytest.mark.parametrize("precision", [False, "fp16"], ids=["float32", "fp16"])
def test_no_step_of_pretraining_waits(
    guard: Guard, tmp_path: Path, dataset_folder: Path, precision: str | bool
) -> None:
    # Reports after steps 4, 8, 12 and 16; the steps from the first one on are watched.
    shape = {"batches_per_report": 4, "batches_per_epoch": 8, "epoch": 2}
    changes = {f"pretraining_setting__{key}": value for key, value in shape.items()}
    assert pretrain(write_experiment(tmp_path, **changes), dataset_folder, here(precision)) is None
    assert guard.steps == 12


@pytest.mark.parametrize("name", ["SST-2", pytest.param("wikihop", marks=pytest.mark.slow)])
def test_no_step_of_finetuning_waits(guard: Guard, source: Path, tmp_path: Path, name: str) -> None:
    experiment = copy_of(source, tmp_path / "run", "pretraining_setting.batches_per_report=2")
    if name == "wikihop":
        write_records(tmp_path / "data" / "train.json", [record(number) for number in range(40)])
        write_records(tmp_path / "data" / "dev.json")
        definition: Any = WikiHop(tmp_path / "data", None, 0)
    else:
        definition = Glue(find_tasks(name)[0], write_sst2(tmp_path / "data"))
    finetune(experiment, definition, here(False))
    assert guard.steps > 4
