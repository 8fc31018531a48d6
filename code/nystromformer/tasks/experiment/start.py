"""Where a new run's weights come from: config.json's `from_cp`, another run's checkpoint."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nystromformer.config import ExperimentConfig
from nystromformer.data.dataset import Dataset
from nystromformer.errors import UserError
from nystromformer.files import sha256_of
from nystromformer.interop.transfer import DoesNotFit, Transfer, transfer_weights
from nystromformer.tasks.experiment.folder import Experiment, check_same_tokenizer
from nystromformer.training.checkpoint import read_checkpoint
from nystromformer.training.group import Group

logger = logging.getLogger(__name__)


def start_weights(
    model: nn.Module,
    experiment: Experiment,
    dataset: Dataset,
    resumed: Mapping[str, Any] | None = None,
    group: Group = Group(),  # noqa: B008  # immutable
) -> dict[str, Any]:
    """Give a new run's model the weights of `from_cp`, where config.json names one.

    Args:
        model: as built from config.json, not yet distributed; its weights are replaced.
        resumed: content of the run's own checkpoint, if it has one: then `from_cp` is not used.
        group: the processes that train together; each calls this.

    Returns:
        `started_from` (path as in config.json, sha256, step), which the run's checkpoints carry; None for a run that
        began with initial weights.

    Raises:
        UserError: missing, unreadable, with another tokenizer, or of another architecture (lists all that differs).
    """
    name = experiment.config.from_cp
    if resumed is not None:
        origin = resumed.get("started_from")
        if group.is_main and name is not None and name != (origin or {}).get("path"):
            began = "its initial weights" if origin is None else origin["path"]
            logger.info(
                "from_cp %s is not used: this run began with %s and goes on from its own checkpoint; start in a new "
                "folder to begin with other weights",
                *(name, began),
            )
        return {"started_from": origin}
    if name is None:
        return {"started_from": None}
    path = experiment.path(name)
    step, transfer = group.check(lambda: _read(path, model, experiment.config, dataset))
    model.load_state_dict(transfer.weights)
    if group.is_main:
        logger.info("weights from %s (step %d)", path, step)
        for line in transfer.notes:
            logger.info("  %s", line)
    sha256 = group.on_main(lambda: sha256_of(path))
    return {"started_from": {"path": name, "sha256": sha256, "step": step}}


def _read(path: Path, model: nn.Module, config: ExperimentConfig, dataset: Dataset) -> tuple[int, Transfer]:
    if not path.is_file():
        raise UserError(_nothing_there(path))
    content = read_checkpoint(path)
    weights = content["model"]
    absent = [key for key in ("config", "tokenizer", "step") if key not in content]
    if absent or not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        lacks = f"without {', '.join(absent)}" if absent else '"model" is not a dict of tensors'
        raise UserError(f"{path}: not a checkpoint of a run: {lacks}")
    check_same_tokenizer(content, dataset, path)
    now = config.model.model_dump(mode="json", by_alias=True)
    try:
        transfer = transfer_weights(model.state_dict(), now, weights, content["config"]["model"], config.from_cp_resize)
    except DoesNotFit as error:
        raise refusal(
            path, error, "max_seq_len, num_sen_type, attn_type and its parameters, and the objectives"
        ) from error
    return int(content["step"]), transfer


def refusal(path: Path, error: DoesNotFit, may_differ: str) -> UserError:
    """What to say of a checkpoint whose weights do not fit the model."""
    lines = "".join(f"\n  {problem}" for problem in error.problems)
    return UserError(
        f"{path}: of another architecture than the model in config.json:{lines}\nThe model may differ in {may_differ}."
    )


def _nothing_there(path: Path) -> str:
    """What to say of a `from_cp` that is not a file, with the checkpoints that lie nearby."""
    folder = path if path.is_dir() else path.parent
    found = sorted(other.name for other in folder.glob("*") if other.suffix in (".model", ".cp") and other.is_file())
    reason = "a folder, where from_cp needs a checkpoint" if path.is_dir() else "no such checkpoint (from_cp)"
    if found:
        return f"{path}: {reason}; {folder} has {', '.join(found)}"
    return (
        f"{path}: {reason}. Copy the .model or .cp of another run there (such as its model/cp-0099.model), or remove "
        "from_cp to begin with initial weights."
    )
