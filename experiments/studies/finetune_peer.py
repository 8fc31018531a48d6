"""A BERT model fine-tuned on a GLUE task by transformers, with its classification head and run_glue.py's optimizer,
schedule and settings: what the stage `peer` of finetune.py starts.
"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup

from nystromformer import studies
from nystromformer.config.schema import PretrainingConfig
from nystromformer.tasks.finetuning.examples import Texts
from nystromformer.tasks.glue.catalog import find_tasks
from nystromformer.tasks.glue.metrics import score
from nystromformer.tasks.glue.read import read_split

BATCH, WARMUP, LENGTH = 16, 0.1, 512


def main(
    model: Annotated[Path, typer.Option(help="Folder saved by transformers.")],
    glue: Annotated[Path, typer.Option(help="Folder of GLUE's files.")],
    task: Annotated[str, typer.Option()],
    out: Annotated[Path, typer.Option(help="JSON to write.")],
    lr: Annotated[float, typer.Option()],
    seed: Annotated[str, typer.Option(help="Several, separated by commas.")],
    epoch: Annotated[int, typer.Option()],
    train_rows: Annotated[
        int | None, typer.Option("--train_rows", help="Use only the first training rows. Default: all.")
    ] = None,
) -> None:
    """Train with each seed, and write the metrics of the validation rows."""
    (found,) = find_tasks(task)
    train, dev = (read_split(found, glue, split)[0] for split in ("train", "dev"))
    tokenizer = AutoTokenizer.from_pretrained(model)
    runs = []
    for number in map(int, seed.split(",")):
        torch.manual_seed(number)
        network = AutoModelForSequenceClassification.from_pretrained(model, num_labels=found.num_outputs)
        network.bert.pooler.dense.apply(network._init_weights)  # as run_glue.py's head begins
        finetune(network, tokenizer, train, train_rows or len(train), lr, epoch)
        metrics = score(found, predict(network, tokenizer, dev), dev.labels)
        rows = {"rows": len(dev), "main_metric": found.metrics[0]}
        runs.append({"seed": number, "learning_rate": lr, "metrics": metrics, **rows})
        typer.echo(f"seed {number}: {metrics}", err=True)
    studies.write_figures(out, runs=runs)


def batch_of(tokenizer: Any, texts: Texts, numbers: list[int]) -> dict[str, torch.Tensor]:
    """Rows by their numbers, padded to the longest."""
    second = None if texts.second is None else [texts.second[number] for number in numbers]
    first = [texts.first[number] for number in numbers]
    batch: dict[str, torch.Tensor] = tokenizer(
        first, second, truncation="longest_first", max_length=LENGTH, padding=True, return_tensors="pt"
    )
    return batch


def finetune(network: Any, tokenizer: Any, texts: Texts, count: int, rate: float, epochs: int) -> None:
    """Train on the first `count` rows, in another order each epoch."""
    usual = PretrainingConfig.model_fields
    decay, most, eps = (usual[key].default for key in ("weight_decay", "max_grad_norm", "adam_eps"))
    groups = [
        {"params": [p for p in network.parameters() if (p.ndim >= 2) == decays], "weight_decay": decay * decays}
        for decays in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=rate, eps=eps)
    steps = epochs * -(-count // BATCH)
    schedule = get_linear_schedule_with_warmup(optimizer, round(WARMUP * steps), steps)
    network.train()
    for _ in range(epochs):
        for numbers in torch.randperm(count).split(BATCH):
            batch = batch_of(tokenizer, texts, numbers.tolist())
            labels = torch.as_tensor(texts.labels)[numbers]
            with torch.autocast("cpu", torch.bfloat16):
                loss = network(**batch, labels=labels).loss
            loss.backward()
            if most is not None:
                torch.nn.utils.clip_grad_norm_(network.parameters(), most)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


@torch.no_grad()
def predict(network: Any, tokenizer: Any, texts: Texts) -> torch.Tensor:
    """Logits of all rows."""
    network.eval()
    parts = torch.arange(len(texts)).split(64)
    return torch.cat([network(**batch_of(tokenizer, texts, part.tolist())).logits for part in parts])


if __name__ == "__main__":
    studies.run_commands(main)
