"""One process for each GPU that a container sees."""

import re
from typing import Any

import pytest

from nystromformer.container import per_gpu

TORCHRUN = ("torchrun", "--standalone")


@pytest.mark.parametrize(
    ("gpus", "command"),
    [
        (1, ("python3", "run.py", "--lr", "1")),
        (2, (*TORCHRUN, "--nproc_per_node", "2", "--shutdown_timeout", "280", "run.py", "--lr", "1")),
    ],
)
def test_the_gpus_that_are_seen_count(gpus: int, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[Any] = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("os.execvp", lambda *words: became.append(words))
    per_gpu.main(["run.py", "--lr", "1"])
    assert became == [(command[0], command)]


@pytest.mark.parametrize("gpus", [2, 3])
def test_as_many_as_it_was_started_for(gpus: int) -> None:
    argv = [*per_gpu.expecting(2)[len(per_gpu.PROGRAM) :], "run.py", "--expect", "4"]
    assert per_gpu.command(gpus, argv) == (*per_gpu.torchrun(2), "run.py", "--expect", "4")


@pytest.mark.parametrize(
    ("gpus", "argv", "seen"),
    [
        (0, ["run.py"], "no GPU.* all of them"),
        (0, ["--expect", "2", "run.py"], "no GPU.* 2"),
        (1, ["--expect", "2"], "1 GPU"),
    ],
)
def test_fewer_than_it_was_started_for(
    gpus: int, argv: list[str], seen: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    with pytest.raises(SystemExit, match="2"):
        per_gpu.main(argv)
    assert re.match(rf"error: this container sees {seen}.*--gpus none", capsys.readouterr().err)
