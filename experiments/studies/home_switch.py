"""A softmax encoder of transformers with another attention in softmax's place: its loss before any training with it,
and after 50 and 500 steps. What experiments/studies/home.py starts; softmax's own further training is the control.
"""

import re
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import Tensor
from transformers import AutoModelForMaskedLM

from nystromformer import studies
from nystromformer.interop.drop_in import check, register
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.pretraining.batches import PretrainingSteps, RowPreparation, ValidationBatches
from nystromformer.training.trainable import Batch

VALIDATED_AFTER = (0, 50, 500)
RATE = 3e-4
VALIDATION_ROWS = 400


class Switched:
    """A model of transformers with the attention of a name."""

    def __init__(self, exported: Path, attention: str) -> None:
        found = re.fullmatch(r"nystrom-(\d+)(?:-(\w+))?", attention)
        name = "sdpa"
        if found is not None:
            name = "nystrom-switched"
            landmarks = {"landmarks": found[2]} if found[2] else {}
            register("nystrom", name=name, num_landmarks=int(found[1]), attention_dropout="leave_out", **landmarks)
        # No attention weights are there to drop; the control drops none either.
        self.model = AutoModelForMaskedLM.from_pretrained(
            exported, attn_implementation=name, attention_probs_dropout_prob=0.0
        )
        if found is not None:
            check(self.model)

    def sums(self, batch: Batch) -> tuple[Tensor, Tensor, int]:
        """Summed loss of the masked tokens, how many are right, and how many there are."""
        hidden_BNC = self.model.bert(
            input_ids=batch["tokens_BN"], attention_mask=batch.get("mask_BN"), token_type_ids=batch.get("types_BN")
        ).last_hidden_state
        positions_BK, labels_BK = batch["positions_BK"], batch["labels_BK"]
        hidden_BKC = hidden_BNC.take_along_dim(positions_BK[:, :, None].long(), dim=1)
        kept_BK = labels_BK >= 0
        logits_PV = self.model.cls(hidden_BKC[kept_BK])
        labels_P = labels_BK[kept_BK].long()
        right = (logits_PV.detach().argmax(-1) == labels_P).sum()
        return F.cross_entropy(logits_PV, labels_P, reduction="sum"), right, len(labels_P)


def validate(switched: Switched, batches: ValidationBatches) -> dict[str, float]:
    """Loss and accuracy of masked tokens."""
    switched.model.eval()
    loss, right, count = 0.0, 0, 0
    with torch.no_grad():
        for index in range(len(batches)):
            part_loss, part_right, part = switched.sums(batches[index])
            loss, right, count = loss + float(part_loss), right + int(part_right), count + part
    return {"mlm_loss": loss / count, "mlm_accuracy": right / count}


def switch(
    exported: Annotated[
        Path, typer.Argument(help="Folder written by `run_export.py export` that transformers loads as BERT.")
    ],
    experiment: Annotated[Path, typer.Option(help="Experiment whose masking and batch size to use.")],
    dataset: Annotated[Path, typer.Option()],
    attention: Annotated[str, typer.Option(help="softmax, or nystrom-M or nystrom-M-LANDMARKS.")],
    trained: Annotated[int, typer.Option(help="Steps of the experiment's own run; training uses the rows after them.")],
    out: Annotated[Path, typer.Option()],
    steps: int = max(VALIDATED_AFTER),
) -> None:
    """Validate, train and validate again."""
    source = open_experiment(experiment)
    rows, setting = source.dataset(dataset), source.config.pretraining_setting
    preparation = RowPreparation(rows, source.config)
    batches = PretrainingSteps(rows.train, preparation, setting)
    validation = ValidationBatches(rows.validation, preparation, VALIDATION_ROWS)
    torch.manual_seed(0)
    switched = Switched(exported, attention)
    optimizer = torch.optim.AdamW(switched.model.parameters(), lr=RATE, weight_decay=0.01)
    found = []
    for step in range(steps + 1):
        if step in VALIDATED_AFTER or step == steps:
            found.append({"attention": attention, "steps": step, **validate(switched, validation)})
            switched.model.train()
        if step == steps:
            break
        micro_batches = batches[trained + step].micro_batches
        count = sum(int((batch["labels_BK"] >= 0).sum()) for batch in micro_batches)
        for batch in micro_batches:
            (switched.sums(batch)[0] / count).backward()
        torch.nn.utils.clip_grad_norm_(switched.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    studies.write_figures(out, learning_rate=RATE, rows=found)


if __name__ == "__main__":
    studies.run_commands(switch)
