"""The log of a run, with the peak of the memory in use, and the validations that its checkpoints have."""

import json
from pathlib import Path

import pytest
import torch
from small import CPU

from nystromformer.errors import UserError
from nystromformer.training.device import peak_memory_in_mib
from nystromformer.training.log import RunLog, figure, read_log


def train_line(step: int) -> bytes:
    return json.dumps({"type": "train", "step": step, "loss": step / 3}).encode()


def resumed(folder: Path, step: int) -> None:
    """The log as a run that goes on at a step makes it."""
    log = RunLog(folder, step, 100)
    log.event("start", step)
    log.close()


def test_going_on_drops_later_steps_and_what_a_kill_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\n".join([*map(train_line, (2, 4, 6, 8)), b'{"type": "tr']))
    assert [record["step"] for record in read_log(path)] == [2, 4, 6, 8]
    resumed(tmp_path, 6)
    assert [record["step"] for record in read_log(path)] == [2, 4, 6, 6]
    assert path.read_bytes().startswith(b"\n".join(map(train_line, (2, 4, 6))) + b"\n{")


@pytest.mark.parametrize("line", [b"", b"\xff", b"[1, 2]", b'{"type": "train"}', b'{"type": 3, "step": 1}'])
def test_a_line_that_is_no_record_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\n".join([train_line(2), line, train_line(4)]) + b"\n")
    with pytest.raises(UserError, match=r"log\.jsonl, line 2: expected a record of a run"):
        read_log(path)


@pytest.mark.parametrize(("text", "value"), [("1.5", 1.5), ("null", None), ('"1"', None), ("NaN", None)])
def test_figures_are_finite_numbers(text: str, value: float | None) -> None:
    assert figure(json.loads(f'{{"loss": {text}}}'), "loss") == value
    assert figure({}, "loss") is None


def test_the_peak_counts_what_was_freed() -> None:
    before = peak_memory_in_mib(CPU.device)
    torch.ones(int(before) + 200, 2**18)  # as many MiB, freed at once
    assert peak_memory_in_mib(CPU.device) > before + 150


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
