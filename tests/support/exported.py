"""Experiments of many kinds to hand on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import small
import torch
from finetuning import pretrained, write_table
from small import VOCABULARY
from torch import Tensor

from nystromformer.model import ClassificationModel, PretrainingModel
from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.documents.task import Documents
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.training.checkpoint import read_checkpoint, write_checkpoint

SOFTMAX: dict[str, Any] = {f"model__{key}": value for key, value in small.SOFTMAX.items()}
MADE: dict[str, dict[str, Any]] = {
    "nystrom": {},
    "strided": {"model__attn_type": {"name": "nystrom", "landmarks": "strided", "pinv_iterations": 4}},
    "another for each layer": {"model__attn_type": ["nystrom", "softmax"]},
    "pre-norm, rotary, mean": {
        "model__norm": "pre",
        "model__positions": "rotary",
        "model__pooling": "mean",
        "model__embedding_norm": False,
    },
    "switches": {
        "model__attn_type": ["nystrom", {"name": "local", "block_size": 4}],
        "model__conv_kernel_size": None,
        "model__positions": "rotary",
        "model__rope_theta": 500.0,
        "model__rope_theta_local": 20.0,
        "model__norm": "pre",
        "model__norm_type": "rms_norm",
        "model__skip_first_prenorm": True,
        "model__feed_forward": "glu",
        "model__activation": "silu",
        "model__bias": False,
        "model__head_transform": False,
    },
    "a gate after norms, a narrower embedding": {
        "model__feed_forward": "glu",
        "model__bias": False,
        "model__embedding_dim": 12,
        "model__activation": "gelu",
        "model__num_sen_type": 1,
    },
    "near and far": {
        "model__attn_type": {
            "name": "near_far",
            "block_size": 4,
            "num_landmarks": 3,
            "num_selected": 2,
            "num_blocks": 1,
        },
        "model__num_landmarks": None,
    },
    "softmax with convolution": SOFTMAX | {"model__conv_kernel_size": 5},
    "softmax": SOFTMAX,
    "softmax from row 0": SOFTMAX | {"model__position_offset": 0, "model__activation": "gelu"},
}
WITHOUT_FILE = ("softmax", "softmax from row 0")


def experiment(folder: Path, dataset: Path, **changes: Any) -> Experiment:
    few = {"pretraining_setting__epoch": 1, "pretraining_setting__batches_per_epoch": 2}
    made = pretrained(folder, dataset, **few | changes)
    # Of two steps, biases and norms are hardly others than at first: what they are for would not show.
    path = made.checkpoints / "cp-0000.model"
    content = read_checkpoint(path)
    generator = torch.Generator().manual_seed(1)
    for weight in content["model"].values():
        if weight.is_floating_point():
            weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    write_checkpoint(content, path)
    return made


def of_table(folder: Path, examples: Sequence[tuple[str, str]], kind: Any = "classes") -> Documents:
    """The task of texts and labels that are written as a table, of which a quarter is for validation."""
    table = write_table(folder / "t.csv", ("body", "label"), examples)
    wanted = "several,separator=;" if kind == "several" else kind
    return Documents(Question(str(table), "body", "label", kind=wanted, cut="head", validation="0.25"))


def rows(batch: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, mask and types: the first row is full, the others are padded, the last from the left."""
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(5, VOCABULARY, (batch, length), generator=generator)
    lengths = torch.randint(1, length + 1, (batch,), generator=generator)
    lengths[0] = length
    mask = torch.arange(length) < lengths[:, None]
    if batch > 2:
        mask[-1] = mask[-1].flip(0)
    return tokens, mask, (torch.arange(length) >= lengths[:, None] // 2).long().expand(batch, -1)


def logits(model: PretrainingModel | ClassificationModel, batch: tuple[Tensor, Tensor, Tensor], types: bool) -> Tensor:
    tokens, mask, types_BN = batch
    chosen = types_BN if types else None
    with torch.no_grad():
        if isinstance(model, ClassificationModel):
            classified: Tensor = model(tokens, mask, chosen)
            return classified
        guessed: Tensor = model.mlm(model.encoder(tokens, mask, chosen), model.encoder.embeddings.word.weight)
    return guessed


def given(batch: tuple[Tensor, Tensor, Tensor], types: bool) -> dict[str, Tensor]:
    tokens, mask, types_BN = batch
    given = {"input_ids": tokens, "attention_mask": mask.long()}
    return given | ({"token_type_ids": types_BN} if types else {})


def assert_equal(theirs: Tensor, ours: Tensor) -> None:
    assert float((theirs - ours).abs().max()) <= 1e-5 * max(1.0, float(ours.abs().max()))
