"""Passages told by what words and character n-grams they have: logistic regression, without a network.

`python results/authors/guessers.py TABLES --length N --out FILE`: TABLES holds what run.py writes. The penalty is the
best one on the passages that are held out.
"""

import argparse
import csv
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline

from nystromformer.files import write_json

WAYS = ("first", "second")
STRENGTHS = (1.0, 10.0, 100.0, 1000.0)
"""Inverse penalties to choose from."""
FEATURES: dict[str, dict[str, Any]] = {
    "words": {"sublinear_tf": True, "token_pattern": r"\w+"},
    "character n-grams": {"sublinear_tf": True, "analyzer": "char_wb", "ngram_range": (2, 5), "max_features": 100_000},
}


@dataclass(frozen=True)
class Passages:
    """Those of a table."""

    texts: list[str]
    authors: list[str]

    @classmethod
    def read(cls, path: Path) -> "Passages":
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return cls([row["text"] for row in rows], [row["author"] for row in rows])


def fitted(train: Passages, features: str, strength: float) -> Pipeline:
    regression = LogisticRegression(C=strength, max_iter=1000)
    return make_pipeline(TfidfVectorizer(**FEATURES[features]), regression).fit(train.texts, train.authors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    flags = parser.parse_args()
    if flags.out.exists():
        sys.exit(0)
    csv.field_size_limit(1 << 24)
    rows = []
    for way, other in zip(WAYS, reversed(WAYS), strict=True):
        train, held_out, test = (
            Passages.read(flags.tables / f"{part}-{side}-{flags.length}.csv")
            for part, side in (("train", way), ("held-out", way), ("all", other))
        )
        for features in FEATURES:
            began = time.monotonic()
            models = {strength: fitted(train, features, strength) for strength in STRENGTHS}
            # The strongest penalty among equals, which is the first.
            best = max(STRENGTHS, key=lambda one: models[one].score(held_out.texts, held_out.authors))
            rows.append({
                "guesser": features,
                "way": way,
                "passage": flags.length,
                "strength": best,
                "accuracy": models[best].score(test.texts, test.authors),
                "rows": len(test.texts),
                "seconds": time.monotonic() - began,
            })  # fmt: skip
    write_json(flags.out, rows)


if __name__ == "__main__":
    main()
