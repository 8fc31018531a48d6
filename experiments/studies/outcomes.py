"""What the runs of a study have reached, and a table of it: means over seeds, and differences from one of its rows."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nystromformer.files.writing import write_json, write_text
from nystromformer.runs.figures import Difference, Spread, pooled_variance, shown, standard_error
from nystromformer.runs.record import Run, find_runs
from nystromformer.tables import markdown


@dataclass(frozen=True)
class Record:
    """What a run has reached."""

    metrics: Mapping[str, float]
    seed: int = 0
    rows: int = 0
    """That the metrics are of; 0: not known."""
    right: Any = None
    """For each row 1 where it was predicted right, else 0."""
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """All but the single rows, for a file."""
        return {"seed": self.seed, "rows": self.rows, "metrics": self.metrics, "baselines": self.baselines}


def read_runs(folder: Path) -> list[Record]:
    """The finished runs of fine-tuning in an experiment folder."""
    return [_record(run) for run in find_runs(folder / "model")]


def _record(run: Run) -> Record:
    """Of test rows where they have labels, else of the validation rows after the epoch that predicted."""
    split, ending = ("test", "_test") if run.test_metrics else ("dev", "")
    metrics = run.test_metrics or run.epochs[run.tested_epoch].metrics
    rows = run.tested_rows(run.main_metric) if run.test_metrics else run.rows["validation"]
    right = None
    for path in run.folder.glob(f"predictions/{split}.tsv"):
        predicted = pd.read_csv(path, sep="\t", quoting=3, dtype=str)
        right = predicted["label"].eq(predicted["prediction"]).to_numpy(float)
    baselines = {
        name: {metric: figures[f"{metric}{ending}"].mean for metric in metrics if f"{metric}{ending}" in figures}
        for name, figures in run.baselines.items()
    }
    return Record(metrics, run.settings.seed, rows, right, baselines)


def write_table(
    place: Path,
    markers: Mapping[str, Path],
    found: Mapping[str, Sequence[Record]],
    metrics: Sequence[str],
    base: str,
    by_seed: bool,
) -> None:
    """Write the table of what lines have reached, and all figures with what ran: `place` with .md and .json.

    Args:
        markers: what was written about each line when it was done.
        base, by_seed: as of a stage.
    """
    done = {line: json.loads(marker.read_text()) for line, marker in markers.items()}
    rows: dict[str, list[Record]] = {}
    for line, records in found.items():
        rows.setdefault(line.partition("/")[0], []).extend(records)
    figures = {row: [record.data() for record in own] for row, own in rows.items()}
    write_json(place.with_name(f"{place.name}.json"), {"lines": done, "figures": figures})
    facts = [
        f"{fact} {', '.join(sorted({str(one[fact]) for one in done.values()}))}"
        for fact in ("date", "commit", "processor")
    ]
    title = f"# {place.parent.name}: {place.name}"
    parts = [title, table(rows, metrics, base, by_seed), f"{'; '.join(facts)}.\n"]
    write_text(place.with_name(f"{place.name}.md"), "\n\n".join(parts))


def table(rows: Mapping[str, Sequence[Record]], metrics: Sequence[str], base: str, by_seed: bool) -> str:
    """Mean and deviation over the runs of each row, its difference from the base in the first metric, and the smallest
    difference that the table would have shown in four of five repetitions.
    """
    compared = [f"difference from {base}, points (95 %)", "detectable, points"] if base in rows else []
    spreads = [(Spread.of([each.metrics[metrics[0]] for each in own]), len(own)) for own in rows.values()]
    lines = []
    for name, own in rows.items():
        cells = [shown(metric, Spread.of([each.metrics[metric] for each in own])) for metric in metrics]
        differences = [""] * len(compared)
        if compared and name != base:
            pair = (own, rows[base], metrics[0])
            found = compare_seeds(*pair) if by_seed else compare(*pair, *pooled_variance(spreads))
            differences = [str(found), f"{100 * found.smallest:.1f}"]
        lines.append([name, *cells, *differences, str(len(own))])
    baselines = {name: one for own in rows.values() for each in own for name, one in each.baselines.items()}
    for name, one in baselines.items():
        cells = [f"{100 * one[metric]:.1f}" if metric in one else "" for metric in metrics]
        lines.append([f"*{name}*", *cells, *[""] * len(compared), ""])
    return markdown(["", *metrics, *compared, "runs"], lines)


def compare(own: Sequence[Record], base: Sequence[Record], metric: str, pooled: float, freedom: int) -> Difference:
    """Two rows of a table, over the same examples where it is known which were predicted right.

    Args:
        pooled: the variance over seeds, which is that of all rows of the table, with its degrees of freedom.
    """
    means = [float(np.mean([each.metrics[metric] for each in row])) for row in (own, base)]
    right = [[each.right for each in row if each.right is not None] for row in (own, base)]
    if metric == "accuracy" and all(right):
        paired = np.mean(right[0], 0) - np.mean(right[1], 0)
        of_rows = float(paired.var(ddof=1) / paired.size)
    else:
        known = zip(means, (own[0].rows, base[0].rows), strict=True)
        of_rows = sum(standard_error(metric, mean, rows) ** 2 for mean, rows in known if rows)
    return Difference.of(means[0] - means[1], of_rows, pooled * (1 / len(own) + 1 / len(base)), freedom)


def compare_seeds(own: Sequence[Record], base: Sequence[Record], metric: str) -> Difference:
    """Two rows of a table, of the same seeds, whose differences alone count."""
    known = {each.seed: each.metrics[metric] for each in base}
    paired = np.array([each.metrics[metric] - known[each.seed] for each in own])
    return Difference.of(float(paired.mean()), 0.0, float(paired.var(ddof=1) / len(own)), len(own) - 1)
