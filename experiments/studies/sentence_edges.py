"""What the edges of a row's sides tell of their order.

`NYSTROM_DATA=DIR python experiments/studies/sentence_edges.py` writes results/sentence-order/order.json. DIR holds
wiki/, bookcorpus/, stories/ and roberta-base/; it needs the environment of `make test`, with whose
tests/support/sentence_order.py it measures.
"""

import sys
import tempfile
from pathlib import Path

from nystromformer import studies
from nystromformer.files.paths import PROJECT

sys.path.insert(0, str(PROJECT / "tests" / "support"))

from sentence_order import RULES, Text, cut_anywhere, encoded, naive_bayes, packed, real_documents


def figures_of(text: Text, length: int) -> dict[str, float | int]:
    """Of a corpus in rows of so many tokens."""
    edges, opens, fills = packed(text, length)
    inner = [sides for sides, first in zip(edges, opens, strict=True) if not first]
    figures: dict[str, float | int] = {
        "documents": len(text.documents),
        "rows": len(fills),
        "labelled_share": len(edges) / len(fills),
        "text_mean": float(fills.mean()),
        "text_least": float(fills.min()),
    }
    if len(inner) >= 1000:
        figures |= {
            "told_of_rows_cut_anywhere": naive_bayes(cut_anywhere(text, length)),
            "told_of_labelled_rows": naive_bayes(edges),
            "told_of_those_that_open_no_document": naive_bayes(inner),
        }
    return figures


def run() -> None:
    """Measure, and write order.json."""
    results: dict[str, dict[str, float | int]] = {}
    for name in RULES:
        with tempfile.TemporaryDirectory() as folder:
            text = encoded(list(real_documents(name, Path(folder))))
        results |= {f"{name}, {length}": figures_of(text, length) for length in (512, 4096)}
    studies.write_figures(studies.RESULTS / "sentence-order" / "order.json", results=results)


if __name__ == "__main__":
    studies.run_commands(run)
