"""What a run of pretraining leaves in its experiment folder."""

from pathlib import Path
from typing import Any

from torch import Tensor
from torch.testing import assert_close

from nystromformer.training.checkpoint import read_checkpoint
from nystromformer.training.log import read_log


def records(experiment: Path, *kinds: str) -> list[dict[str, Any]]:
    """The lines of its log, of these kinds if any are named."""
    log = experiment / "model" / "log.jsonl"
    lines = read_log(log) if log.exists() else []
    return [line for line in lines if not kinds or line["type"] in kinds]


def last_step(experiment: Path) -> int:
    """The last step of its log; 0 without one."""
    return max((line["step"] for line in records(experiment)), default=0)


def weights(experiment: Path, name: str) -> dict[str, Tensor]:
    """Those of a checkpoint."""
    content: dict[str, Tensor] = read_checkpoint(experiment / "model" / name)["model"]
    return content


def assert_same_weights(one: Path, other: Path, name: str) -> None:
    """To the bit."""
    assert_close(weights(one, name), weights(other, name), rtol=0, atol=0)
