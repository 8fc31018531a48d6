"""Documents a second: `load_run(RUN).predict(texts)` beside transformers' text-classification pipeline with its
Nyströmformer and with RoBERTa, of BERT-small's size (4 layers, width 512).

`python experiments/studies/predict.py run`, with nothing beside it, writes results/predict; `collect` writes its table
again. Texts are made-up words, weights are those of a training of
one step: speed depends on neither. All ways read the same texts with the same tokenizer, tokenising included. Each
pipeline has the batch size that is fastest for it. transformers' Nyströmformer takes rows of one length alone and fails
on a mask: of mixed lengths it is given padded rows without one, which computes something else in the same time.

Where predictions have oneDNN compute their products, as `fast_products` says, the pipelines are measured under it, too.
"""

import random
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from serve import make_words
from transformers import (
    NystromformerConfig,
    NystromformerForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    pipeline,
)

import nystromformer
from nystromformer import studies
from nystromformer.benchmark.one_step import VOCABULARY, run_of_one_step
from nystromformer.benchmark.timing import time_side_by_side
from nystromformer.files.writing import write_json
from nystromformer.machine import machine_facts
from nystromformer.tables import markdown
from nystromformer.training.device import fast_products

RESULTS = studies.RESULTS / "predict"
COUNTS = {("full rows", 512): 32, ("mixed lengths", 512): 64, ("full rows", 4096): 8}
"""Documents of each case; of mixed lengths they have 10 tokens to a row's, each as likely."""
BATCHES = (1, 8)
FAST = "fast products"
REPEATS = 5
LANDMARKS, TAPS = 64, 33
SHAPE = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048}


def make_texts(kind: str, length: int, count: int) -> list[str]:
    """More words than a row has tokens, so that all are cut; or fewer."""
    draw = random.Random(f"{kind} {length}")
    words = make_words(draw)
    sizes = [length if kind == "full rows" else draw.randint(10, length) for _ in range(count)]
    return [" ".join(draw.choices(words, k=size)) for size in sizes]


def pipeline_of(kind: str, length: int, tokenizer_file: Path, padded: bool) -> Callable[..., object]:
    """A pipeline of transformers with random weights."""
    common = {"vocab_size": VOCABULARY, "num_labels": 2, "pad_token_id": 1} | SHAPE
    if kind == "Nyströmformer":
        config = NystromformerConfig(
            **common, max_position_embeddings=length, segment_means_seq_len=length, num_landmarks=LANDMARKS,
            conv_kernel_size=TAPS,
        )  # fmt: skip
        model = NystromformerForSequenceClassification(config)
    else:
        model = RobertaForSequenceClassification(RobertaConfig(**common, max_position_embeddings=length + 2))
    names = ["input_ids"] if kind == "Nyströmformer" else ["input_ids", "attention_mask"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_file), pad_token="<pad>", model_max_length=length, model_input_names=names
    )
    classify = pipeline("text-classification", model=model.eval(), tokenizer=tokenizer, device="cpu")
    how = {"truncation": True, "max_length": length, "padding": "max_length" if padded else True}
    return lambda documents, batch: classify(documents, batch_size=batch, **how)


def with_fast_products(call: Callable[..., object], documents: Sequence[str]) -> object:
    with fast_products():
        return call(documents, 1)


def measure(run: Any, tokenizer_file: Path, kind: str, length: int, count: int) -> list[dict[str, Any]]:
    """All ways on the same documents, in turn."""
    documents = make_texts(kind, length, count)
    pipelines = {
        name: pipeline_of(name, length, tokenizer_file, name != "RoBERTa") for name in ("Nyströmformer", "RoBERTa")
    }
    works: dict[str, Callable[[], object]] = {"ours": lambda: run.predict(documents)}
    for name, call in pipelines.items():
        for batch in BATCHES:
            works[f"{name}, {batch} at a time"] = lambda call=call, batch=batch: call(documents, batch)
        works[f"{name}, 1 at a time, {FAST}"] = lambda call=call: with_fast_products(call, documents)
    timings = time_side_by_side(works, REPEATS, warmup=1)
    return [
        {"case": kind, "tokens": length, "documents": count, "way": way, **asdict(timing)}
        | {"documents_per_second": 1e3 * count / timing.median}
        for way, timing in timings.items()
    ]


def best(rows: Sequence[dict[str, Any]], name: str, fast: bool) -> float:
    """Documents a second of the fastest batch size."""
    own = [row for row in rows if row["way"].startswith(name) and row["way"].endswith(FAST) == fast]
    return max(row["documents_per_second"] for row in own)


def run() -> None:
    """Measure, and write predict.json and predict.md."""
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        learned = make_texts("mixed lengths", 512, 40)
        lengths = sorted({length for _, length in COUNTS})
        runs = {length: run_of_one_step(Path(name), length, learned) for length in lengths}
        for (kind, length), count in COUNTS.items():
            tokenizer_file = runs[length] / "tokenizer" / "tokenizer.json"
            rows += measure(nystromformer.load_run(runs[length]), tokenizer_file, kind, length, count)
    with fast_products() as are_fast:
        facts = machine_facts() | {"fast_products": are_fast}
    write_json(RESULTS / "predict.json", {"machine": facts, "repeats": REPEATS, "rows": rows})
    collect()


def collect() -> None:
    """Write predict.md."""
    rows = studies.read_json(RESULTS / "predict.json")["rows"]
    lines = []
    for kind, length in COUNTS:
        own = [row for row in rows if (row["case"], row["tokens"]) == (kind, length)]
        ours = best(own, "ours", fast=False)
        for fast in (False, True):
            theirs = [best(own, name, fast) for name in ("Nyströmformer", "RoBERTa")]
            values = [f"{value:.2f}" for value in (ours, *theirs, *(ours / value for value in theirs))]
            lines.append([kind, f"{length:,}", FAST if fast else "as it is", *values])
    header = ["documents", "tokens", "transformers", "ours, a second", "its Nyströmformer", "its RoBERTa",
              "ours / Nyströmformer", "ours / RoBERTa"]  # fmt: skip
    studies.write_page(RESULTS / "predict.md", markdown(header, lines))


if __name__ == "__main__":
    studies.run_commands(run, collect)
