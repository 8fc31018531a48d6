"""Small files of WikiHop's form."""

import json
import random
from pathlib import Path
from typing import Any

from finetuning import WORDS


def record(number: int, **changes: Any) -> dict[str, Any]:
    made = {
        "id": f"WH_train_{number}",
        "query": f"country river {number}",
        "answer": "wales",
        "candidates": ["france", "wales", "the river"][: 2 + number % 2],
        "supports": [f"The river {number} flows from Wales to France. " * (1 + i) for i in range(number % 4)],
        "annotations": [],
    }
    return {key: value for key, value in (made | changes).items() if value is not ...}


RECORDS = [record(number) for number in range(9)]


def write_records(path: Path, records: Any = RECORDS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(records, ensure_ascii=False), encoding="utf-8")
    return path


def write_wikihop(folder: Path, train: int = 9, dev: int = 6, test: int = 4) -> Path:
    """train.json, dev.json and test.json, the last without answers; each answer's word is in a support."""
    for split, count in (("train", train), ("dev", dev), ("test", test)):
        write_records(folder / f"{split}.json", [marked(split, number) for number in range(count)])
    return folder


def marked(split: str, number: int, prefix: str = "WH") -> dict[str, Any]:
    """An instance of one to five rows of 32 tokens, with two to five candidates."""
    randomness = random.Random(f"{split}{number}")
    candidates = randomness.sample(WORDS, 2 + number % 4)
    answer = candidates[number % len(candidates)]
    supports = [" ".join(randomness.choices(WORDS, k=randomness.randint(3, 12))) for _ in range(number % 3)]
    return record(
        number,
        id=f"{prefix}_{split}_{number}",
        query=f"key {randomness.choice(WORDS)}",
        candidates=candidates,
        answer=... if split == "test" else answer,
        supports=[*supports, f"softmax {answer} softmax."],
    )
