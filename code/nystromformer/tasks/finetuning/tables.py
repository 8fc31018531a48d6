"""A command's runs as a table for a terminal."""

import textwrap
from collections.abc import Mapping, Sequence

from nystromformer.tasks.finetuning.results import RunResult, ranked, tested_weights
from nystromformer.tasks.finetuning.spread import MARKS, Spread, mark, rows_behind
from nystromformer.wording import number_of

_WIDTH = 100
"""Characters of the lines below the table."""

RESAMPLED = (
    "The bag of words is fitted to all training rows; its ± is that of fits to resamples of them, one for each seed."
)
"""What varies in the baseline that has a deviation, for below a table."""

Baselines = Mapping[str, Mapping[str, Spread]]


def table(results: Sequence[RunResult], baselines: Baselines | None = None) -> str:
    """All combinations of a task beside each other, best first, for a terminal.

    Args:
        baselines: the same metrics of other ways to predict, by name; those of test data end in "_test".
    """
    first, compared = results[0], baselines or {}
    names = [name for name in first.last.metrics if not name.startswith("loss")]
    names.sort(key=lambda name: name != first.main_metric)
    groups = ranked(results)
    heading = [f"{'batch':>5} {'lr':>8} {'seeds':>5} {'best epoch':>10}"]
    widths = {name: max(14, len(name) + 6) for name in names}
    heading += [f"{name + ', best':>{widths[name]}} {name + ', last':>{widths[name]}}" for name in names]
    lines = ["  ".join(heading)]
    for runs in groups:
        run = runs[0].run
        epochs = ",".join(str(result.best.epoch) for result in runs)
        cells = [f"{run.batch_size:>5} {run.learning_rate:>8.3g} {len(runs):>5} {epochs:>10}"]
        for name in names:
            best = Spread.of([result.best.metrics[name] for result in runs])
            last = Spread.of([result.last.metrics[name] for result in runs])
            shown = [_marked(name, spread, compared, rows_behind(name, first.rows)) for spread in (best, last)]
            cells.append(" ".join(f"{text:>{widths[name]}}" for text in shown))
        lines.append("  ".join(cells))
    for name, metrics in compared.items():
        cells = [f"{name:31}"]
        for key in names:
            text = _aligned(str(metrics[key]) if key in metrics else "", "")
            cells.append(f"{text:>{widths[key]}} {'':{widths[key]}}")
        lines.append("  ".join(cells).rstrip())
    validated = ", ".join(f"{number_of(count, 'example')} of {name}" for name, count in first.rows.items())
    text = f"in percent, on the validation data; epochs count from 0, as in cp-0000.model; {validated}"
    lines += [*textwrap.wrap(text, _WIDTH), *_below(groups, compared)]
    return "\n".join(line.rstrip() for line in lines)


def _below(groups: Sequence[Sequence[RunResult]], baselines: Baselines) -> list[str]:
    """What is said below the table."""
    chosen, lines = groups[0], []
    if len(groups) > 1:
        lines.append("the first combination made the predictions")
    if fewer := sum(len(runs) < len(chosen) for runs in groups):
        have = "1 combination has" if fewer == 1 else f"{fewer} combinations have"
        lines.append(f"{have} fewer finished seeds than the first one, and so stand below it whatever their means")
    count = sum(chosen[0].test_rows.values())
    for name in chosen[0].test_metrics:
        spread = Spread.of([result.test_metrics[name] for result in chosen])
        text = f"test {name} of {tested_weights(chosen)} weights: {_marked(name, spread, baselines, count, '_test')}"
        others = [
            f"{other} {metrics[name + '_test']}" for other, metrics in baselines.items() if name + "_test" in metrics
        ]
        lines.append("; ".join([text.rstrip(), *others]))
    if baselines:
        lines += [line for text in (MARKS, RESAMPLED) for line in textwrap.wrap(text, _WIDTH)]
    return [*lines, *(f"warning: {text}" for text in chosen[0].warnings)]


def _marked(metric: str, spread: Spread, baselines: Baselines, rows: int, ending: str = "") -> str:
    key = metric + ending
    compared = [metrics[key] for metrics in baselines.values() if key in metrics]
    return _aligned(str(spread), mark(metric, spread, compared, rows)) if baselines else str(spread)


def _aligned(text: str, found: str) -> str:
    """Figures with and without marks end in one column."""
    return f"{text} {found:1}"
