"""One fact in a long text: which attentions find it in all-MiniLM-L6-v2, by distance (docs/results/long.md).

DIR holds wiki, and minilm as of minilm.py. With softmax the encoder learns the question on rows of 40 tokens with two
facts, and then of 128 tokens with eight; then each attention takes its place, on rows of 512 tokens. Some four
core-hours.
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
"""All but softmax, nystrom and linear read 192 keys a query, near_far with its means; the global tokens of
`longformer-question` hold the question."""
ENDS = (0, 256, 512, 1024, 2048)
"""Of the bins of distances, in tokens."""
TABLES = "--text question,text --label city --device cpu --task needle"
COUNTED = "--epoch 1 --lr 1e-4 --batch_size 8 --seed 0,1 --predict last"


def draw(length: int, more: str = "") -> Line:
    """Rows of so many tokens: 400 to train on and 1,000 to test."""
    needs = "--corpus {out}/corpus/wiki/unified --tokenizer {out}/original/softmax/model/tokenizer"
    return Line(str(length), f"experiments/needle/draw.py {needs} --length {length} {more} --out {{here}}")


def ask(length: int, more: str, held_out: float = 0.02) -> str:
    """Fine-tune and test on rows of a length."""
    tables = f"--train {{out}}/rows/{length}/train.jsonl --test {{out}}/rows/{length}/test.jsonl"
    return f"code/run_classify.py --model {{here}} {tables} {TABLES} --validation {held_out} --length {length} {more}"


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
    (weights,) = trained.glob("model/documents/*/*/cp-0000.model")
    shutil.copytree(trained / "model" / "tokenizer", out / "model" / "tokenizer", dirs_exist_ok=True)
    shutil.copyfile(trained / "config.json", out / "config.json")
    shutil.copyfile(weights, out / "model" / "cp-0000.model")


def stage(lines: list[Line], length: int) -> Stage:
    """What is scored by distance."""
    return Stage(
        lines, ("accuracy", *(f"to {end}" for end in ENDS[1:] if end <= length)), "softmax", read=read_distances
    )


FIRST = {"model": {"pooling": "first", "dropout_prob": 0.0}}
LEARN = "--epoch 1 --lr 1e-4 --batch_size 32 --predict last"


def learn(name: str, length: int, start: str, config: Mapping[str, Any]) -> Stage:
    """Teach softmax on rows of a length, and keep the encoder as {out}/NAME/encoder."""
    command = f"{ask(length, LEARN)} && experiments/studies/needle.py keep {{here}} {{out}}/{name}/encoder"
    return Stage([Line("softmax", command, start, config)], ("accuracy",))


TWO_HOPS = "--facts 2 --hops 2 --train 6000 --test 500"
STAGES = {
    "corpus": Stage([Line("wiki", "data-preprocessing/wiki/preprocess.py --source {data}/wiki --out {here}/unified")]),
    "original": Stage([Line("softmax", "code/run_export.py import {data}/minilm {here}")]),
    "rows": Stage(
        [draw(40, "--facts 2 --train 3600"), draw(128, "--train 1600"), draw(48, TWO_HOPS), draw(512), draw(2048)]
    ),
    "two-facts": learn("two-facts", 40, "original/softmax", FIRST),
    "parent": learn("parent", 128, "two-facts/encoder", {}),
    # In which city does a person work, whose firm and its city are told apart?
    "two-hops": Stage(
        [Line("softmax", ask(48, "--epoch 6 --lr 1e-4 --batch_size 32 --predict last", 0.04), "parent/encoder")],
        ("accuracy",),
    ),
    "512-frozen": stage(in_its_place(512, "--freeze"), 512),
    "512": stage(in_its_place(512, COUNTED), 512),
    # Of the others nothing was to be learned, since softmax only guesses here.
    "2048": stage(in_its_place(2048, COUNTED)[:1], 2048),
}

if __name__ == "__main__":
    main(STAGES, keep)
