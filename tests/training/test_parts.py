"""Devices, the folder's lock, and the stop."""

import signal
from pathlib import Path

import pytest
import torch

from nystromformer.errors import UserError
from nystromformer.training.checkpoint import hold_folder
from nystromformer.training.device import choose_device
from nystromformer.training.loop import first_signal


@pytest.mark.parametrize("name", ["gpu", "cuda:7", "mps", "meta"])
def test_devices_that_are_not_there(name: str) -> None:
    with pytest.raises(UserError, match=f"--device {name}"):
        choose_device(name, mixed_precision=False)


def test_one_of_several_processes_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for name in ("auto", "cuda"):
        assert choose_device(name, mixed_precision=False, local_rank=3).device == torch.device("cuda:3")
    with pytest.raises(UserError, match="4 CUDA devices; start as many processes"):
        choose_device("auto", mixed_precision=False, local_rank=4)
    with pytest.raises(UserError, match="each takes its own GPU"):
        choose_device("cuda:1", mixed_precision=False, local_rank=0)


def test_precision() -> None:
    assert choose_device("cpu", mixed_precision=False).autocast_dtype is None
    assert choose_device("cpu", "bf16").autocast_dtype == torch.bfloat16
    assert choose_device("cpu", "fp16").autocast_dtype == torch.float16
    assert str(choose_device("cpu", "bf16")) == "cpu, bfloat16 autocast"
    assert [choose_device("cpu", name).precision for name in (False, "bf16", "fp16")] == ["float32", "bf16", "fp16"]


def test_a_folder_that_cannot_be_held(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/run\.lock: cannot be written: "):
        hold_folder(tmp_path / "file").__enter__()


def test_the_first_signal_waits_and_the_second_acts() -> None:
    # A process started in the background may have been told to ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with first_signal(patient=False) as received:
        signal.raise_signal(signal.SIGINT)
        assert received == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)
