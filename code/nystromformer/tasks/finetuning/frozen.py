"""A linear head on an encoder that keeps its pretrained weights (`--freeze`): each text's vector is computed once, and
the head is the optimum of a convex loss, without steps, learning rates or random numbers.

Shapes: n texts, I examples of a batch, E width, C outputs.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nystromformer.errors import UserError
from nystromformer.model import ClassificationModel
from nystromformer.model.finetuning import mean_over
from nystromformer.progress import SECONDS_BETWEEN_LINES, WorkDone
from nystromformer.runs.store import Pieces, Store
from nystromformer.tasks.finetuning.examples import Examples, Labels
from nystromformer.tasks.finetuning.target import Target
from nystromformer.tasks.finetuning.trainable import Finetuning
from nystromformer.training.archive import FORMAT, write_checkpoint
from nystromformer.training.checkpoint import epoch_name

logger = logging.getLogger(__name__)

STRENGTHS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 3e-4, 1e-4, 3e-5, 1e-5)
"""L2 penalties to choose from, strongest first: the factor of half the squared weights of vectors with deviation 1,
beside the mean loss."""
_PIECE = 2048
"""Texts whose vectors are one file: what an interrupted command keeps."""
_STEPS, _TOLERANCE, _LEAST_CHANGE = 500, 1e-7, 1e-13
_SCALE = 2.0**-8
"""By which the head's first layer scales a vector, so that its tanh leaves it as it is: of a number of 2 it takes
2e-5. A power of two rounds nothing."""
_LEAST_DEVIATION = 1e-6


@dataclass(frozen=True)
class Head:
    """Of vectors as the encoder gives them."""

    weight_CE: Tensor
    """float64, as is the bias."""
    bias_C: Tensor
    strength: float
    """The penalty that it was chosen with."""


def fit_head(finetuning: Finetuning, folder: Path, facts: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    """Fit the head to all training examples, and write the model as weights of epoch 0.

    Args:
        finetuning: with the pretrained encoder.
        folder: of the run.
        facts: what its checkpoints say about where they come from.
        cache: a folder for the vectors; removed at the end.

    Returns:
        The content of the weights' file.

    Raises:
        UserError: a file cannot be written, or the vectors are not finite.
    """
    model, device, target = finetuning.model, finetuning.device, finetuning.target
    assert isinstance(model, ClassificationModel)
    model.eval()
    began = time.monotonic()
    with Store(cache, "--freeze", facts["finetuning"], "choose the folder of another experiment") as store:
        with torch.inference_mode(), device.autocast():
            found_nE = _vectors(finetuning, finetuning.train, "train", store.pieces)
            known_nE = _vectors(finetuning, finetuning.validation[""], "validation", store.pieces)
        vectors, fitting = time.monotonic() - began, time.monotonic()
        labels, held_out = finetuning.train.labels, finetuning.validation[""].labels
        assert labels is not None
        assert held_out is not None
        outputs = model.head.classifier.out_features
        head = choose_head(target, outputs, (found_nE, labels), (known_nE, held_out))
        put_head(model, head)
        seconds = vectors, time.monotonic() - fitting
        logger.info("vectors took %.1f s, the head %.1f s (L2 penalty %g)", *seconds, head.strength)
        with torch.no_grad(), device.autocast():
            scores = {"": model.logits(known_nE.to(device.device)).float().cpu()}
            others = {name: each for name, each in finetuning.validation.items() if name}
            scores |= {name: finetuning.scores(examples) for name, examples in others.items()}
        metrics = finetuning.measured(scores)
        content = {
            "format": FORMAT,
            **facts,
            "step": 1,
            "epoch": 0,
            "history": [{"epoch": 0, "step": 1, "metrics": metrics}],
            "model": {name: weight.cpu() for name, weight in model.state_dict().items()},
        }
        path = folder / f"{epoch_name(0)}.model"
        write_checkpoint(content, path)
        store.remove()
    return content


def choose_head(target: Target, outputs: int, train: tuple[Tensor, Labels], validation: tuple[Tensor, Labels]) -> Head:
    """The head, fitted to training rows, whose penalty gives the lowest loss on validation rows; of equal ones that of
    the strongest.

    Args:
        outputs: of the head.
        train, validation: vectors (n, E) and labels.

    Raises:
        UserError: vectors are not finite.
    """
    vectors_nE, labels = train[0].double(), _tensor(train[1])
    known_nE, held_out = validation[0].double(), _tensor(validation[1])
    if not torch.isfinite(vectors_nE).all():
        raise UserError("--freeze: the encoder's vectors are not finite: its weights are damaged")
    mean_E = vectors_nE.mean(0)
    deviation_E = vectors_nE.std(0, correction=0).clamp(min=_LEAST_DEVIATION)
    scaled_nE = (vectors_nE - mean_E) / deviation_E
    heads, losses = [], []
    start = scaled_nE.new_zeros(outputs, scaled_nE.shape[1] + 1)
    for strength in STRENGTHS:
        start = optimum(target, scaled_nE, labels, strength, start)
        weight_CE = start[:, 1:] / deviation_E
        head = Head(weight_CE, start[:, 0] - weight_CE @ mean_E, strength)
        scores_nC = known_nE @ head.weight_CE.T + head.bias_C
        heads.append(head)
        losses.append(float(target.losses(scores_nC, held_out).mean()))
    return heads[losses.index(min(losses))]


def optimum(target: Target, vectors_nE: Tensor, labels: Tensor, strength: float, start: Tensor) -> Tensor:
    """Bias and weights (C, 1 + E) with the lowest sum of mean loss and half of `strength` times the squared weights.

    Args:
        vectors_nE: float64.
        start: of the search (L-BFGS), as what is returned.
    """
    found = start.clone().requires_grad_()
    tolerances = {"tolerance_grad": _TOLERANCE, "tolerance_change": _LEAST_CHANGE}
    search = torch.optim.LBFGS([found], max_iter=_STEPS, line_search_fn="strong_wolfe", **tolerances)  # type: ignore[arg-type]

    def closure() -> Tensor:
        search.zero_grad()
        scores_nC = vectors_nE @ found[:, 1:].T + found[:, 0]
        loss = target.losses(scores_nC, labels).mean() + strength / 2 * found[:, 1:].square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    search.step(closure)  # type: ignore[no-untyped-call]
    return found.detach()


def put_head(model: ClassificationModel, head: Head) -> None:
    """Give a model the head."""
    state = model.head.state_dict()
    width = head.weight_CE.shape[1]
    own = {
        "dense.weight": _SCALE * torch.eye(width),
        "dense.bias": torch.zeros(width),
        "classifier.weight": head.weight_CE / _SCALE,
        "classifier.bias": head.bias_C,
    }
    model.head.load_state_dict({name: own[name].to(weight) for name, weight in state.items()})


def _vectors(finetuning: Finetuning, examples: Examples, name: str, pieces: Pieces) -> Tensor:
    """Of all examples of a split, (n, E) float32; those of an earlier start are read."""
    found, said = [], time.monotonic()
    for start in range(0, len(examples), _PIECE):
        numbers = np.arange(start, min(start + _PIECE, len(examples)))
        piece = f"{name}-{start:08d}"
        if (content := pieces.read(piece)) is None:
            vectors_nE = finetuning.computed(examples, numbers, vectors_of)
            with pieces.write(piece) as writer:
                writer.write(vectors_nE.numpy().astype("<f4").tobytes())
        else:
            vectors_nE = torch.from_numpy(np.frombuffer(content, dtype="<f4").reshape(len(numbers), -1).copy())
        found.append(vectors_nE)
        if time.monotonic() - said >= SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            done = start + len(numbers)
            logger.info("%s", WorkDone(f"vectors of {examples.name}", done, len(examples), "texts"))
    return torch.cat(found)


def vectors_of(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """What the head gets of each of a batch's examples, (I, E)."""
    assert isinstance(model, ClassificationModel)
    pooled_BE = model.pooled(batch["tokens_BN"], batch["mask_BN"], batch.get("types_BN"))
    return mean_over(pooled_BE, batch.get("rows_I"))


def _tensor(labels: Labels) -> Tensor:
    tensor = torch.from_numpy(labels)
    return tensor.double() if tensor.is_floating_point() else tensor
