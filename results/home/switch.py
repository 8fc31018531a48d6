"""A softmax encoder of transformers with another attention in softmax's place: its loss before any training with it,
and after 50 and 500 steps.

`python results/home/switch.py EXPORTED --experiment DIR --dataset DIR --attention softmax|nystrom-M[-LANDMARKS]
--trained STEPS --out FILE`: EXPORTED is a folder that transformers loads as BERT, as `run_export.py export` writes it;
the experiment tells how its rows are masked and how large batches are; its own run has taken STEPS, and the rows that
came next in it are trained on. Softmax's own further training is the control.
"""

import argparse
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForMaskedLM

from nystromformer.files import write_json
from nystromformer.interop.drop_in import check, register
from nystromformer.machine import machine_facts
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.pretraining.batches import PretrainingSteps, RowPreparation, ValidationBatches
from nystromformer.training.trainable import Batch

TOLD = (0, 50, 500)
RATE = 3e-4
VALIDATED = 400
"""Rows."""


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


def validated(switched: Switched, batches: ValidationBatches) -> dict[str, float]:
    switched.model.eval()
    loss, right, count = 0.0, 0, 0
    with torch.no_grad():
        for index in range(len(batches)):
            part_loss, part_right, part = switched.sums(batches[index])
            loss, right, count = loss + float(part_loss), right + int(part_right), count + part
    return {"mlm_loss": loss / count, "mlm_accuracy": right / count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exported", type=Path)
    parser.add_argument("--experiment", type=Path, required=True)
    parser.add_argument("--dataset", type=Path, required=True)
    parser.add_argument("--attention", required=True)
    parser.add_argument("--trained", type=int, required=True)
    parser.add_argument("--steps", type=int, default=max(TOLD))
    parser.add_argument("--out", type=Path, required=True)
    flags = parser.parse_args()
    if flags.out.exists():
        return
    experiment = open_experiment(flags.experiment)
    dataset, setting = experiment.dataset(flags.dataset), experiment.config.pretraining_setting
    preparation = RowPreparation(dataset, experiment.config)
    steps = PretrainingSteps(dataset.train, preparation, setting.batch_size, setting.seed)
    batches = ValidationBatches(dataset.validation, preparation, VALIDATED)
    torch.manual_seed(0)
    switched = Switched(flags.exported, flags.attention)
    optimizer = torch.optim.AdamW(switched.model.parameters(), lr=RATE, weight_decay=0.01)
    told = []
    for step in range(flags.steps + 1):
        if step in TOLD or step == flags.steps:
            told.append({"attention": flags.attention, "steps": step, **validated(switched, batches)})
            switched.model.train()
        if step == flags.steps:
            break
        micro_batches = steps[flags.trained + step].micro_batches
        count = sum(int((batch["labels_BK"] >= 0).sum()) for batch in micro_batches)
        for batch in micro_batches:
            (switched.sums(batch)[0] / count).backward()
        torch.nn.utils.clip_grad_norm_(switched.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    write_json(flags.out, {"machine": machine_facts(), "learning_rate": RATE, "rows": told})


if __name__ == "__main__":
    main()
