"""One fact in a long text: which attentions find it in all-MiniLM-L6-v2, by distance (docs/results/long.md).

DIR holds wiki, and minilm as of minilm.py. With softmax the encoder learns the question on rows of 128 tokens; then
each attention takes its place, on rows of 512 and of 2,048 tokens. Some five core-hours.
"""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from outcomes import Record, read_runs
from study import OUT, Line, Stage, main

NEAR_FAR = {"name": "near_far", "num_landmarks": 16, "num_blocks": 2}
LONGFORMER = {"name": "longformer", "window": 192}
BIGBIRD = {"name": "bigbird", "block_size": 32, "num_random_blocks": 2, "num_global_blocks": 1}
ATTENTIONS: Mapping[str, Mapping[str, Any]] = {
    "softmax": {"name": "softmax"},
    "near_far": NEAR_FAR,
    "local": {"name": "local", "block_size": 64},
    "longformer": LONGFORMER,
    "longformer-question": LONGFORMER | {"num_global_tokens": 16},
    "bigbird": BIGBIRD,
    "nystrom": {"name": "nystrom"},
    "linear": {"name": "linear"},
}
"""All but softmax, nystrom and linear read 192 keys a query, near_far with its means; `longformer-question` has the
question, at most 13 tokens, among its global tokens."""
ENDS = (0, 256, 512, 1024, 2048)
"""Of the bins of distances, in tokens."""
TABLES = "--text question,text --label city --device cpu --task needle --validation 0.02"
COUNTED = "--epoch 1 --lr 1e-4 --batch_size 8 --seed 0,1 --predict last"


def rows(length: int) -> str:
    """Draw rows to train on and to test: 400 and 1,000, of the parent's length more."""
    drawn = "--train 3264" if length == 128 else ""
    needs = "--corpus {out}/corpus/wiki/unified --tokenizer {out}/original/softmax/model/tokenizer"
    return f"experiments/needle/draw.py {needs} --length {length} {drawn} --out {{here}}"


def ask(length: int, more: str, cut: str = "") -> str:
    """Fine-tune and test on rows of a length."""
    tables = f"--train {{out}}/rows/{length}/train.jsonl --test {{out}}/rows/{length}/test.jsonl"
    return f"code/run_classify.py --model {{here}} {tables} {TABLES} {cut or f'--length {length}'} {more}"


def in_its_place(length: int, more: str) -> list[Line]:
    """The parent with each attention."""
    found = []
    for name, keys in ATTENTIONS.items():
        own = dict(keys) | ({"num_landmarks": length // 8} if name == "nystrom" else {})
        found.append(Line(name, ask(length, more), "parent/encoder", {"model": {"attn_type": own}}))
    return found


def read_distances(folder: Path) -> list[Record]:
    """Accuracy of all rows, and of those whose fact is at most so many tokens away."""
    table = pd.read_json(OUT / "rows" / folder.parent.name.partition("-")[0] / "test.jsonl", lines=True)
    bins = np.digitize(table["distance"], ENDS)
    found = []
    for record in read_runs(folder):
        own = {f"to {end}": float(np.mean(record.right[bins == n])) for n, end in enumerate(ENDS) if any(bins == n)}
        found.append(replace(record, metrics={"accuracy": record.metrics["accuracy"], **own}))
    return found


def keep(trained: Annotated[Path, typer.Argument()], out: Annotated[Path, typer.Argument()]) -> None:
    """Make an experiment of an experiment's fine-tuned encoder."""
    (weights,) = trained.glob("model/documents/*/*/cp-0001.model")
    shutil.copytree(trained / "model" / "tokenizer", out / "model" / "tokenizer", dirs_exist_ok=True)
    shutil.copyfile(trained / "config.json", out / "config.json")
    shutil.copyfile(weights, out / "model" / "cp-0000.model")


def stage(lines: list[Line], length: int) -> Stage:
    """What is scored by distance."""
    return Stage(
        lines, ("accuracy", *(f"to {end}" for end in ENDS[1:] if end <= length)), "softmax", read=read_distances
    )


FIRST = {"model": {"pooling": "first"}}
PARENT = f"{ask(128, '--epoch 1 --lr 2e-4 --batch_size 32 --predict last')} && experiments/studies/needle.py keep"
WINDOWS = Line("windows of 512", ask(2048, COUNTED, "--length 512 --cut windows"), "parent/encoder")
STAGES = {
    "corpus": Stage([Line("wiki", "data-preprocessing/wiki/preprocess.py --source {data}/wiki --out {here}/unified")]),
    "original": Stage([Line("softmax", "code/run_export.py import {data}/minilm {here} --attention softmax")]),
    "rows": Stage([Line(str(length), rows(length)) for length in (128, 512, 2048)]),
    "parent": Stage(
        [Line("softmax", f"{PARENT} {{here}} {{out}}/parent/encoder", "original/softmax", FIRST)],
        ("accuracy",),
    ),
    "512-frozen": stage(in_its_place(512, "--freeze"), 512),
    "512": stage(in_its_place(512, COUNTED), 512),
    "2048": stage([*in_its_place(2048, COUNTED), WINDOWS], 2048),
}

if __name__ == "__main__":
    main(STAGES, keep)
