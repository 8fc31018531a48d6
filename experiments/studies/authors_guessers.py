"""Passages told by what words and character n-grams they have: logistic regression, without a network. What
experiments/studies/authors.py starts.
"""

import time
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from authors import WAYS
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline

from nystromformer import studies
from nystromformer.files.writing import write_json

STRENGTHS = (1.0, 10.0, 100.0, 1000.0)
"""Inverse penalties to choose from."""
FEATURES: dict[str, dict[str, Any]] = {
    "words": {"sublinear_tf": True, "token_pattern": r"\w+"},
    "character n-grams": {"sublinear_tf": True, "analyzer": "char_wb", "ngram_range": (2, 5), "max_features": 100_000},
}


def fit(train: pd.DataFrame, features: str, strength: float) -> Pipeline:
    """To tell the author of a text."""
    regression = LogisticRegression(C=strength, max_iter=1000)
    return make_pipeline(TfidfVectorizer(**FEATURES[features]), regression).fit(train["text"], train["author"])


def guess(
    tables: Annotated[Path, typer.Argument(help="Folder with the tables that authors.py writes.")],
    length: Annotated[int, typer.Option()],
    out: Annotated[Path, typer.Option()],
) -> None:
    """Learn from each side, and tell the other's. The penalty is the best one on the passages that are held out."""
    rows = []
    for way, other in zip(WAYS, reversed(WAYS), strict=True):
        train, held_out, test = (
            pd.read_csv(tables / f"{part}-{side}-{length}.csv", keep_default_na=False)
            for part, side in (("train", way), ("held-out", way), ("all", other))
        )
        for features in FEATURES:
            began = time.monotonic()
            models = {strength: fit(train, features, strength) for strength in STRENGTHS}
            # The strongest penalty among equals, which is the first.
            best = max(STRENGTHS, key=lambda one: models[one].score(held_out["text"], held_out["author"]))
            rows.append({
                "guesser": features,
                "way": way,
                "passage": length,
                "strength": best,
                "accuracy": models[best].score(test["text"], test["author"]),
                "rows": len(test),
                "seconds": time.monotonic() - began,
            })  # fmt: skip
    write_json(out, rows)


if __name__ == "__main__":
    studies.run_commands(guess)
