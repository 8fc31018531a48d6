"""Training for a metric beside training by cross-entropy whose threshold and epoch the metric chooses
(docs/objectives.md).

DIR holds glue and, as minilm/, the files of all-MiniLM-L6-v2 (see minilm.py). Every method has the same seeds, batches
and steps. Some four core-hours.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from study import Line, Stage, main

from nystromformer.tasks.transactions.generator import World, draw_clients

METHODS: Mapping[str, Sequence[str]] = {
    "f_beta": ("dual",),
    "auroc": ("eban", "dual"),
    "average_precision": ("eban",),
    "precision_at_recall": ("eban", "dual"),
    "recall_at_precision": ("eban",),
}
TARGETS = ("precision_at_recall", "recall_at_precision")
TABLES = "--events {out}/tables/drawn/events --clients {out}/tables/drawn/clients.csv"
COLUMNS = "--client client --time time --target default --date date --truth truth"
RARE = (
    "code/run_transactions.py --model {here} --data {out}/clients/drawn --task rare --attention softmax --epoch 4 "
    "--lr 1e-3 --batch_size 64 --set model.max_seq_len=128"
)
PAIRS = "code/run_glue.py --model {here} --glue {data}/glue --task MRPC --train_rows 1500 --epoch 2 --lr 5e-5"
PIXELS = (
    "code/run_lra.py --model {here} --task pathfinder_path --data {out}/pictures/drawn --steps 400 --every 100 "
    "--batch_size 16 --lr 2e-3 --attention near_far --conv 0 --set pretraining_setting.warmup=0.1 "
    "--set model.positions=rotary --set model.position_offset=2 --baselines"
)


def draw(out: Annotated[Path, typer.Argument()]) -> None:
    """Draw 20,000 clients of whom 2 % default."""
    draw_clients(World(mean_length=60, most_events=240, intercept=-7.2), 20_000, 0, out)


def stage(metric: str, methods: Sequence[str], command: str, start: str, stratified: bool = True) -> Stage:
    """A metric by each method; differences are those of equal seeds."""
    target = ",target=0.5" if metric in TARGETS else ""
    options = f"{target}{',stratify=true' if stratified else ''}"
    seeds = "--seed 0,1,2,3,4 --device cpu"
    lines = [
        Line(method, f"{command} {seeds} --objective {metric},method={method}{options}", start)
        for method in ("cross_entropy", *methods)
    ]
    return Stage(lines, (metric,), "cross_entropy", by_seed=True)


STAGES = {
    "tables": Stage([Line("drawn", "experiments/studies/objectives.py draw {here}")]),
    "clients": Stage([Line("drawn", f"experiments/transactions/prepare.py long {TABLES} {COLUMNS} --out {{here}}")]),
    "original": Stage([Line("softmax", "code/run_export.py import {data}/minilm {here}")]),
    "pictures": Stage([
        Line(
            "drawn",
            "experiments/lra/prepare.py pathfinder_path --contour 9 --no_distractors --train 1500 --validation 200 "
            "--test 400 --out {here}",
        ),
    ]),
    **{f"rare-{name}": stage(name, methods, RARE, "transactions/encoder") for name, methods in METHODS.items()},
    **{
        f"pairs-{name}": stage(
            name, METHODS[name], f"{PAIRS} --batch_size 16 --set model.pooling=mean", "original/softmax"
        )
        for name in ("f_beta", "average_precision")
    },
    "pixels-iou": stage("iou", ("dual",), PIXELS, "lra/pathfinder_path", stratified=False),
}  # fmt: skip

if __name__ == "__main__":
    main(STAGES, draw)
