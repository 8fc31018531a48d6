"""The peak of the memory in use, in the log."""

import re
from pathlib import Path

import pytest
import torch
from run_files import records
from small import CPU, write_experiment

from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.training import loop
from nystromformer.training.device import peak_memory_in_mib
from nystromformer.training.group import Group

SHORT = {"pretraining_setting__batches_per_epoch": 4, "pretraining_setting__epoch": 1}


def test_the_peak_counts_what_was_freed() -> None:
    before = peak_memory_in_mib(CPU.device)
    torch.ones(int(before) + 200, 2**18)  # as many MiB, freed at once
    assert peak_memory_in_mib(CPU.device) > before + 150


def test_the_log_has_the_peak_of_the_process_with_most(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, dataset_folder: Path
) -> None:
    monkeypatch.setattr(loop, "peak_memory_in_mib", lambda device: 2048.4)
    # Another process takes twice as much.
    highest = Group.highest
    monkeypatch.setattr(
        Group, "highest", lambda group, *numbers: (4096,) if numbers == (2048,) else highest(group, *numbers)
    )
    with caplog.at_level("INFO"):
        pretrain(write_experiment(tmp_path, **SHORT), dataset_folder, CPU)
    assert [line["memory_mib"] for line in records(tmp_path, "train")] == [4096.0, 4096.0]
    assert len(re.findall(r"peak memory 4\.00 GiB", caplog.text)) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_the_peak_is_the_allocators_and_reading_it_waits_for_nothing() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    before = peak_memory_in_mib(device)
    torch.ones(int(before) + 200, 2**18, device=device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert peak_memory_in_mib(device) > before + 150
    finally:
        torch.cuda.set_sync_debug_mode("default")
