"""One table of what `efficiency --peers` measured of many attentions: each beside the best public implementation.

`python -m nystromformer.benchmark.method_summary FOLDER` prints it from the folder's `attention-*.json`.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nystromformer.benchmark.attention import CONTROL, SOFTMAX
from nystromformer.tables import markdown


def summary(folder: Path) -> str:
    """Markdown: of each attention and length times and memory, and each figure's ratio to the best one of a public
    implementation there.
    """
    header = [
        "attention",
        "tokens",
        "forward, ms",
        "forward + backward, ms",
        "MiB",
        "the best other implementation of each figure",
    ]
    header += ["forward / its", "forward + backward / its", "memory / its"]
    lines = []
    for path in sorted(folder.glob("attention-*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        name = data["settings"]["attention"]["name"]
        for length in data["settings"]["lengths"]:
            rows = [row for row in data["rows"] if row["length"] == length]
            lines.append([f"`{name}`", str(length), *_cells(name, rows)])
    return markdown(header, lines)


def _cells(name: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    (ours,) = (row for row in rows if row["method"] == name)
    others = [row for row in rows if row["method"] not in (name, SOFTMAX, CONTROL)]
    cells = [_shown(ours["forward"]), _shown(ours["both"]), f"{ours['memory']:.0f}"]
    if not others:
        return [*cells, "none known", "", "", ""]
    # The best one of each figure, which may be another one.
    parts = ("forward", "both", "memory")
    bests = [min(others, key=lambda row: _number(row, part)) for part in parts]
    ratios = [_number(ours, part) / _number(best, part) for part, best in zip(parts, bests, strict=True)]
    names = dict.fromkeys(str(best["method"]) for best in bests)
    return [*cells, "; ".join(names), *(f"{ratio:.2f}" for ratio in ratios)]


def _number(row: Mapping[str, Any], part: str) -> float:
    return float(row[part] if part == "memory" else row[part]["median"])


def _shown(timing: Mapping[str, float]) -> str:
    return f"{timing['median']:.1f} ({timing['low']:.1f}–{timing['high']:.1f})"


if __name__ == "__main__":
    sys.stdout.write(summary(Path(sys.argv[1])) + "\n")
