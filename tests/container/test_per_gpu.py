"""One process for each GPU that a container sees."""

from typing import Any

import pytest

from nystromformer.container import per_gpu

TORCHRUN = ("python3", "/code/torchrun.py", "--standalone")


@pytest.mark.parametrize(
    ("gpus", "command"),
    [
        (1, ("python3", "run.py", "--lr", "1")),
        (2, (*TORCHRUN, "--nproc_per_node", "2", "--shutdown_timeout", "280", "run.py", "--lr", "1")),
        (8, (*TORCHRUN, "--nproc_per_node", "8", "--shutdown_timeout", "280", "run.py", "--lr", "1")),
    ],
)
def test_the_gpus_that_are_seen_count(gpus: int, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[Any] = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("os.execvp", lambda *words: became.append(words))
    per_gpu.main(["run.py", "--lr", "1"])
    assert became == [(command[0], command)]


def test_no_gpu_is_seen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(SystemExit) as info:
        per_gpu.main(["run.py"])
    assert info.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: this container sees no GPU")
    assert "--gpus none" in said
