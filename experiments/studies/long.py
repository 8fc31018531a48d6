"""Long reviews: what an encoder gains from reading more than 512 tokens, with softmax and with near_far
(docs/results/long.md).

DIR holds imdb/aclImdb_v1.tar.gz, and minilm as of minilm.py. All reviews have more than 512 tokens: 1,000 to train on,
of which 200 choose the epoch, and 2,000 for the test. The archive numbers the reviews of a class film by film, so
blocks of consecutive numbers stay on one side. The learning rate is the best of three for softmax and for near_far
alike on other reviews (finetune.py). Some eight core-hours.

What each outcome means, written before the runs. Softmax on 1,024 tokens above 512, and near_far equal to it: length
pays, and near_far keeps the gain at its price. Windows equal to 1,024 tokens: windows suffice. Softmax gains nothing:
its untrained positions are the obstacle, and nothing is said about attentions.
"""

import json
import random
import tarfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from minilm import CONVERTED, STEPS
from outcomes import Record
from study import Line, Stage, main

from nystromformer import Predictor
from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.files.writing import write_json, write_text
from nystromformer.machine import machine_facts
from nystromformer.runs.record import find_runs
from nystromformer.tables import markdown
from nystromformer.tasks.finetuning.examples import Texts
from nystromformer.tasks.finetuning.linear import fit_words
from nystromformer.tasks.finetuning.target import Classes

BLOCK, LEAST = 250, 513
"""Reviews of a class with consecutive numbers; tokens of a review."""
SIZES = {"test": 2000, "choose": 200, "train": 800}
Folder = Annotated[Path, typer.Argument()]


def reviews(archive: Annotated[Path, typer.Argument(help="aclImdb_v1.tar.gz")], tokenizer: Folder, out: Folder) -> None:
    """Write train.jsonl, choose.jsonl and test.jsonl of long reviews, and unlabelled.jsonl of all but the test's
    blocks.
    """
    blocks: dict[tuple[str, str, int], list[dict[str, str]]] = {}
    with tarfile.open(archive) as file:
        for member in file:
            parts = member.name.split("/")
            if len(parts) == 4 and parts[2] in ("neg", "pos"):
                content = file.extractfile(member)
                assert content is not None
                key = (parts[1], parts[2], int(parts[3].partition("_")[0]) // BLOCK)
                row = {"text": content.read().decode().replace("<br />", " "), "label": parts[2]}
                blocks.setdefault(key, []).append(row)
    opened, keys, written = load_tokenizer(tokenizer), sorted(blocks), {}
    opened.no_padding()
    opened.no_truncation()
    random.Random(0).shuffle(keys)
    left = list(keys)
    for name, size in SIZES.items():
        own: list[dict[str, str]] = []
        while len(own) < size:
            block = blocks[left.pop()]
            tokens = opened.encode_batch([row["text"] for row in block])
            own += [row for row, encoding in zip(block, tokens, strict=True) if len(encoding.ids) >= LEAST]
        written[name] = own[:size]
        if name == "test":
            written["unlabelled"] = [row for key in left for row in blocks[key]]
    for name, rows in written.items():
        write_text(out / f"{name}.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))


def words(folder: Folder, tokenizer: Folder, tokens: int, out: Annotated[Path, typer.Argument()]) -> None:
    """Train tf-idf on the first so many tokens of all 1,000 reviews, and test it."""
    opened = load_tokenizer(tokenizer)
    opened.no_padding()
    opened.enable_truncation(tokens)

    def read(*names: str) -> Texts:
        rows = [json.loads(line) for name in names for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        texts = [row["text"] for row in rows]
        # The last token is </s>.
        cut = [text[: each.offsets[-2][1]] for text, each in zip(texts, opened.encode_batch(texts), strict=True)]
        return Texts("reviews", cut, labels=np.array([int(row["label"] == "pos") for row in rows]))

    test = read("test")
    right = fit_words(Classes(2), read("train", "choose")).scores(test).argmax(1) == test.labels
    write_json(out / "right.json", right.tolist())


def cost(folder: Folder, texts: Path, out: Annotated[Path, typer.Argument(help="Without ending.")]) -> None:
    """What the runs of each arm cost: training, as their logs say, and predictions, which are measured in turn."""
    runs = {arm: find_runs(folder / arm / "model") for arm in ARMS}
    predictors = {arm: Predictor(own[0].folder, device="cpu") for arm, own in runs.items()}
    read = [json.loads(line)["text"] for line in texts.read_text().splitlines()]
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for arm in [*ARMS] * 3:
        begin = time.perf_counter()
        predictors[arm](read)
        seconds[arm].append((time.perf_counter() - begin) / len(read) * 1000)
    figures = {}
    for arm, own in runs.items():
        logs = [pd.read_json(run.folder / "log.jsonl", lines=True).query("type == 'train'") for run in own]
        steps = pd.concat([log.time.diff() / log.step.diff() for log in logs])
        minutes = float(steps.median()) * int(logs[0].step.max()) / 60
        memory = max(float(log.memory_mib.max()) for log in logs) / 1024
        figures[arm] = {"minutes of training": minutes, "memory, GiB": memory, "seconds per 1,000": seconds[arm]}
    shown = [
        [arm, f"{one['minutes of training']:.0f}", f"{one['memory, GiB']:.1f}", f"{np.median(seconds[arm]):.0f}"]
        for arm, one in figures.items()
    ]
    facts = machine_facts()
    write_json(out.with_suffix(".json"), {"figures": figures, **facts})
    said = "; ".join(f"{fact} {facts[fact]}" for fact in ("date", "commit", "processor", "threads"))
    write_text(out.with_suffix(".md"), f"{markdown(['', *next(iter(figures.values()))], shown)}\n\n{said}.\n")


def read_words(folder: Path) -> list[Record]:
    """What `words` has written."""
    right = np.array(json.loads((folder / "right.json").read_text()), float)
    return [Record({"accuracy": float(right.mean())}, rows=len(right), right=right)]


DATA = "--train {out}/reviews/all/train.jsonl --validation {out}/reviews/all/choose.jsonl --text text --label label"
READ = f"code/run_classify.py --model {{here}} {DATA} --task long --batch_size 16 --device cpu"
COUNTED = "--test {out}/reviews/all/test.jsonl --epoch 3 --lr 1e-4 --seed 0,1,2"
TOKENIZER = "{out}/original/softmax/model/tokenizer"
ARCHIVE = f"experiments/studies/long.py reviews {{data}}/imdb/aclImdb_v1.tar.gz {TOKENIZER} {{here}}"
WORDS = f"experiments/studies/long.py words {{out}}/reviews/all {TOKENIZER}"
ARMS = {
    # What is read, and where the encoder is from.
    "softmax-512": ("--length 512", "original/softmax"),
    "near_far-1024": ("--length 1024", "extended/near_far"),
    "softmax-1024": ("--length 1024", "extended/softmax"),
    "windows-512": ("--length 512 --cut windows", "original/softmax"),
}
CHOSEN = {**CONVERTED, "softmax": "softmax"}


def extend(name: str, steps: str = STEPS) -> Line:
    """MiniLM with 1,024 positions and another attention, converted at that length."""
    longer = "--set model.max_seq_len=1024 --set from_cp_positions=interpolate --set from_cp_resize=lossy"
    text = f"--input {{out}}/reviews/all/unlabelled.jsonl --least_tokens {LEAST} --held_out 48 --validate_every 100"
    rows = f"--rows 4 --length 1024 {longer} {steps}"
    return Line(name, f"code/run_export.py convert {{data}}/minilm {{here}} --attention {CHOSEN[name]} {text} {rows}")


STAGES = {
    "original": Stage([Line("softmax", "code/run_export.py import {data}/minilm {here}")]),
    "reviews": Stage([Line("all", ARCHIVE)]),
    "words": Stage(
        [Line(f"tf-idf, {each} tokens", f"{WORDS} {each} {{here}}") for each in (256, 512, 1024, 4096)],
        ("accuracy",), "tf-idf, 512 tokens", read=read_words,
    ),
    # Softmax is its own target: no step would change it.
    "extended": Stage([extend("near_far"), extend("softmax", "--steps 0")]),
    "read": Stage(
        [Line(arm, f"{READ} {how} {COUNTED}", start) for arm, (how, start) in ARMS.items()],
        ("accuracy",), "softmax-512",
        reports=["experiments/studies/long.py cost {out}/read {out}/reviews/all/choose.jsonl {results}/cost"],
    ),
}  # fmt: skip

if __name__ == "__main__":
    main(STAGES, reviews, words, cost)
