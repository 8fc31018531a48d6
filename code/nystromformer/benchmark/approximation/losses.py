"""What the error costs: a softmax checkpoint's loss on validation rows with other attentions in softmax's place."""

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nystromformer import __version__
from nystromformer.benchmark.approximation.candidates import SOFTMAX, Candidate
from nystromformer.config import AttentionConfig, ModelConfig
from nystromformer.errors import UserError
from nystromformer.files.writing import write_json
from nystromformer.model import PretrainingModel
from nystromformer.tasks.experiment.folder import Experiment, open_experiment
from nystromformer.tasks.experiment.opening import OpenedScoring
from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.tasks.pretraining.trainable import Pretraining
from nystromformer.training.archive import read_checkpoint

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loss:
    """Of one candidate in all layers."""

    method: str
    width: int | None
    steps: int
    """Of training with it; 0: none."""
    mlm_loss: float
    mlm_accuracy: float


def check_is_softmax(config: ModelConfig, path: Path) -> None:
    """Check that there is a softmax to replace.

    Raises:
        UserError: an attention of the model is another.
    """
    if len({attention.conv_kernel_size for attention in config.attentions}) > 1:
        raise UserError(
            f"{path}: expected the same convolution in all layers, because the compared attentions use it too, found "
            "different ones"
        )
    names = {attention.name for attention in config.attentions}
    if names != {"softmax"}:
        raise UserError(
            f"{path}: expected softmax in all layers, because it is replaced by other attentions, found "
            f"{', '.join(sorted(names))}; --parts errors,maps accepts any model"
        )


def swap_attention(config: ModelConfig, attention: AttentionConfig) -> dict[str, Any]:
    """The section "model" with another attention in all layers, and the convolution that they have."""
    kernels = {each.conv_kernel_size for each in config.attentions}
    (kernel,) = kernels
    said = attention.model_dump(mode="json") | {"conv_kernel_size": kernel}
    data = config.model_dump(mode="json", by_alias=True)
    return data | {"attn_type": said, "num_landmarks": None, "conv_kernel_size": None}


def score_untrained(opened: OpenedScoring, candidates: Sequence[Candidate], rows: int) -> Iterator[Loss]:
    """Losses of a checkpoint with each candidate in softmax's place, softmax first."""
    (path,) = opened.checkpoints
    weights = read_checkpoint(path)["model"]
    for candidate in (SOFTMAX, *candidates):
        torch.manual_seed(0)
        config = ModelConfig.model_validate(swap_attention(opened.config.model, candidate.config))
        model = PretrainingModel(config, opened.config.pretraining_setting.objectives)
        # What they draw themselves, such as random features, is not the checkpoint's.
        model.load_state_dict(model.state_dict() | weights)
        yield _score(opened, model.to(opened.device.device).eval(), candidate, 0, rows)


def _score(opened: OpenedScoring, model: PretrainingModel, candidate: Candidate, steps: int, rows: int) -> Loss:
    with torch.no_grad(), opened.device.autocast():
        metrics = Pretraining(model, opened.config, opened.dataset, opened.device).score(rows)
    logger.info("%s, %d steps of training: loss %.4f", candidate.label, steps, metrics["loss"])
    loss = metrics.get("mlm_loss", metrics["loss"])
    return Loss(candidate.name, candidate.width, steps, loss, metrics["mlm_accuracy"])


def score_adapted(
    opened: OpenedScoring, candidates: Sequence[Candidate], rows: int, steps: int, folder: Path
) -> Iterator[Loss]:
    """Losses after so many steps of pretraining with each candidate, and with softmax, from the same checkpoint on the
    same rows; each in an experiment folder of its own, which goes on where it was stopped.

    Args:
        folder: where the experiment folders are put.

    Raises:
        SystemExit: a signal stopped the training.
    """
    for candidate in (SOFTMAX, *candidates):
        experiment = _experiment(opened, candidate, steps, folder)
        signal = pretrain(experiment, opened.dataset.folder, opened.device)
        if signal is not None:
            raise SystemExit(128 + signal)
        config = experiment.config.model
        model = PretrainingModel(config, opened.config.pretraining_setting.objectives)
        model.load_state_dict(read_checkpoint(experiment.checkpoints / "cp-0000.model")["model"])
        yield _score(opened, model.to(opened.device.device).eval(), candidate, steps, rows)


def _experiment(opened: OpenedScoring, candidate: Candidate, steps: int, folder: Path) -> Experiment:
    (checkpoint,) = opened.checkpoints
    data = opened.config.model_dump(mode="json", by_alias=True)
    data["model"] = swap_attention(opened.config.model, candidate.config)
    data["model_checkpoints"] = "model"
    data["pretraining_setting"] |= {"epoch": 1, "batches_per_epoch": steps, "validate_batches_per_epoch": 1}
    # Whatever decides the weights is in the folder's name: of another one nothing is taken over.
    decides = [hashlib.sha256(checkpoint.read_bytes()).hexdigest(), opened.dataset.fingerprint, data, __version__]
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:12]
    readable = re.sub(r"[^\w-]+", "-", candidate.label).strip("-")
    place = folder / f"{readable}-{steps}-{digest}"
    place.mkdir(parents=True, exist_ok=True)
    data["from_cp"] = str(checkpoint.resolve())
    if not (place / "config.json").exists() or json.loads((place / "config.json").read_text()) != data:
        write_json(place / "config.json", data)
    return open_experiment(place)
