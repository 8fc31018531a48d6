"""Where a new run's weights come from: config.json's `from_cp`, another run's checkpoint."""

import logging
from collections.abc import Mapping
from typing import Any

from torch import nn

from nystromformer.data.dataset import Dataset
from nystromformer.tasks.experiment import Experiment, check_same_tokenizer
from nystromformer.training.checkpoint import load_weights, read_checkpoint
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
        model: not yet distributed.
        resumed: content of the run's own checkpoint, if it has one: then `from_cp` is not used.

    Returns:
        What checkpoints of the run say about it.

    Raises:
        UserError: missing, unreadable, of another architecture or with another tokenizer.
    """
    name = experiment.config.from_cp
    if name is None or resumed is not None:
        return {}
    path = experiment.path(name)
    content = read_checkpoint(path)
    check_same_tokenizer(content, dataset, path)
    load_weights(model, content["model"], path)
    logger.info("weights from %s (step %d)", path, content["step"])
    return {}
