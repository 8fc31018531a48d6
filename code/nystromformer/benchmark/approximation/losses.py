"""What the error costs: a softmax checkpoint's loss on validation rows with other attentions in softmax's place."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nystromformer.benchmark.approximation.candidates import SOFTMAX, Candidate
from nystromformer.config import ModelConfig
from nystromformer.errors import UserError
from nystromformer.model import PretrainingModel
from nystromformer.tasks.experiment.opening import OpenedScoring
from nystromformer.tasks.pretraining.trainable import Pretraining
from nystromformer.training.archive import read_checkpoint

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loss:
    """Of one candidate in all layers, untrained."""

    method: str
    width: int | None
    mlm_loss: float
    mlm_accuracy: float


def check_is_softmax(config: ModelConfig, path: Path) -> None:
    """Check that there is a softmax to replace, and one convolution, which what replaces it has, too.

    Raises:
        UserError: an attention of the model is another.
    """
    found = {(attention.name, attention.conv_kernel_size) for attention in config.attentions}
    if len(found) > 1 or {name for name, _ in found} != {"softmax"}:
        shown = ", ".join(f"{name} with a convolution of {taps}" for name, taps in found)
        raise UserError(
            f"{path}: expected softmax in all layers, with the same convolution, found {shown}; --parts errors "
            "accepts any model"
        )


def score_untrained(opened: OpenedScoring, candidates: Sequence[Candidate], rows: int) -> Iterator[Loss]:
    """Losses of a checkpoint with each candidate in softmax's place, softmax first."""
    (path,) = opened.checkpoints
    weights = read_checkpoint(path)["model"]
    before = opened.config.model
    data = before.model_dump(mode="json", by_alias=True) | {"num_landmarks": None, "conv_kernel_size": None}
    taps = before.attentions[0].conv_kernel_size
    for candidate in (SOFTMAX, *candidates):
        torch.manual_seed(0)
        named = candidate.config.model_dump(mode="json") | {"conv_kernel_size": taps}
        config = ModelConfig.model_validate(data | {"attn_type": named})
        model = PretrainingModel(config, opened.config.pretraining_setting.objectives)
        # What they draw themselves, such as random features, is not the checkpoint's.
        model.load_state_dict(model.state_dict() | weights)
        model.to(opened.device.device).eval()
        with torch.no_grad(), opened.device.autocast():
            metrics = Pretraining(model, opened.config, opened.dataset, opened.device).score(rows)
        loss = metrics.get("mlm_loss", metrics["loss"])
        logger.info("%s: loss %.4f", candidate.label, loss)
        yield Loss(candidate.name, candidate.width, loss, metrics["mlm_accuracy"])
