"""One table of what `efficiency --peers` measured of many attentions: each beside its fastest public implementation.

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
    """Markdown: of each attention and length times and memory, and their ratios to the public implementation whose
    forward pass is fastest there.
    """
    header = ["attention", "tokens", "forward, ms", "forward + backward, ms", "MiB", "the fastest other implementation"]
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
    best = min(others, key=lambda row: row["forward"]["median"])
    ratios = [ours[part]["median"] / best[part]["median"] for part in ("forward", "both")]
    return [*cells, best["method"], *(f"{ratio:.2f}" for ratio in (*ratios, ours["memory"] / best["memory"]))]


def _shown(timing: Mapping[str, float]) -> str:
    return f"{timing['median']:.1f} ({timing['low']:.1f}–{timing['high']:.1f})"


if __name__ == "__main__":
    sys.stdout.write(summary(Path(sys.argv[1])) + "\n")
