"""A command's runs as a table for a terminal."""

import textwrap
from collections.abc import Mapping, Sequence

from nystromformer.runs.figures import (
    UNITS,
    Spread,
    difference_of,
    power_note,
    rows_behind,
    shown,
    smallest_difference,
)
from nystromformer.runs.objective import TEMPERATURE, THRESHOLD
from nystromformer.runs.record import Run, find_runs, ranked, spread_of, tested_weights
from nystromformer.tables import Column, aligned
from nystromformer.tasks.finetuning.opening import Opened
from nystromformer.wording import number_of

_WIDTH = 100
"""Characters of the lines below the table, at most."""
_SETTINGS = (Column("batch", 5), Column("lr", 8, gap=1), Column("seeds", 5, gap=1))

Baselines = Mapping[str, Mapping[str, Spread]]


def summary(opened: Opened, results: Sequence[Run]) -> str:
    """What is shown of finished runs, with the guessers beside them where they are asked for; of none, the guessers."""
    if not results:
        names = list(dict.fromkeys(name for metrics in opened.baselines.values() for name in metrics))
        columns = [Column("baseline", is_text=True), *(Column(name, max(8, len(name))) for name in names)]
        lines = aligned(columns, [[each, *_cells(metrics, names)] for each, metrics in opened.baselines.items()])
        return "\n".join(["", f"{opened.task.name}, in percent", *lines])
    first = results[0]
    others = [
        run
        for run in find_runs(opened.folder)
        if (run.data, run.origin, run.settings.freeze) == (first.data, first.origin, not first.settings.freeze)
    ]
    title = f"{opened.task.name}, {opened.experiment.folder}, {first.origin.checkpoint or 'from initial weights'}"
    return f"\n{title}\n{table(results, opened.baselines, others)}"


def table(results: Sequence[Run], baselines: Baselines | None = None, others: Sequence[Run] = ()) -> str:
    """All combinations of a task beside each other, best first, for a terminal. `others` are runs on the same data
    whose encoder is frozen where that of `results` is not, or the other way round.
    """
    first, compared = results[0], baselines or {}
    names = [name for name in first.last.metrics if not name.startswith(("loss", THRESHOLD, TEMPERATURE))]
    names.sort(key=lambda name: name != first.main_metric)
    groups = ranked(results)
    best = Column("best epoch" if first.settings.every is None else "best step", 10, gap=1)
    heading, *settings = aligned((*_SETTINGS, best), map(_settings, groups))
    columns = [Column(heading, is_text=True)]
    for name in names:
        least = max(14, len(name) + 6)
        columns += [Column(f"{name}, best", least), Column(f"{name}, last", least, gap=1)]
    rows = []
    for text, runs in zip(settings, groups, strict=True):
        epochs = [run.best for run in runs], [run.last for run in runs]
        spreads = [(name, Spread.of([one.metrics[name] for one in each])) for name in names for each in epochs]
        rows.append([text, *(shown(*each) for each in spreads)])
    for baseline, metrics in compared.items():
        rows.append([baseline, *(cell for guess in _cells(metrics, names) for cell in (guess, ""))])
    validated = ", ".join(f"{number_of(count, 'example')} of {name}" for name, count in first.rows.items())
    every = first.settings.every
    counted = "epochs count from 0, as in cp-0000.model"
    if every is not None:
        counted = f"validated every {number_of(every, 'step')}; cp-0000.model is from the first validation"
    in_units = "".join(f", {name} in {UNITS[kind]}" for name in names for kind in UNITS if name.startswith(kind))
    text = f"in percent{in_units}, on the validation data; {counted}; {validated}"
    below = [*textwrap.wrap(text, _WIDTH), *_below(groups, compared)]
    below += textwrap.wrap(_verdict(groups[0], compared, others), _WIDTH)
    return "\n".join([*aligned(columns, rows), *below])


def _cells(metrics: Mapping[str, Spread], names: Sequence[str]) -> list[str]:
    return [shown(name, metrics[name]) if name in metrics else "" for name in names]


def _settings(runs: Sequence[Run]) -> list[str]:
    run = runs[0].settings
    if run.freeze:
        return ["frozen", "", "", ""]
    found = ",".join(str(each.best.epoch if run.every is None else each.best_step) for each in runs)
    return [str(run.batch_size), f"{run.learning_rate:.3g}", str(len(runs)), found]


def _below(groups: Sequence[Sequence[Run]], baselines: Baselines) -> list[str]:
    """What is said below the table."""
    chosen, lines = groups[0], []
    if len(groups) > 1:
        lines.append("the predictions are those of the first combination")
    if fewer := sum(len(runs) < len(chosen) for runs in groups):
        have = "1 combination has" if fewer == 1 else f"{fewer} combinations have"
        lines.append(f"{have} fewer finished seeds than the first one, and so are listed below it whatever their means")
    for name in chosen[0].test_metrics:
        spread = Spread.of([result.test_metrics[name] for result in chosen])
        text = f"test {name} of {tested_weights(chosen)} weights: {shown(name, spread)}"
        others = [
            f"{other} {shown(name, metrics[name + '_test'])}"
            for other, metrics in baselines.items()
            if name + "_test" in metrics
        ]
        lines.append("; ".join([text, *others]))
    metric = chosen[0].main_metric
    figures = [(Spread.of([run.best.metrics[metric] for run in runs]), len(runs)) for runs in groups]
    note = power_note({metric: smallest_difference(metric, figures, rows_behind(metric, chosen[0].rows))})
    lines += textwrap.wrap(note, _WIDTH)
    if (objective := chosen[0].settings.objective) is not None:
        thresholds = ", ".join(f"{run.best.metrics[THRESHOLD]:.3g}" for run in chosen)
        text = f"trained for {objective}; the threshold (in log-odds) is chosen on the validation data: {thresholds}"
        lines += textwrap.wrap(text, _WIDTH)
    return lines


def _verdict(chosen: Sequence[Run], baselines: Baselines, others: Sequence[Run]) -> str:
    """Which way to predict is best on the test rows, or else on the validation rows, and by how much; empty where there
    is one alone.
    """
    first = chosen[0]
    metric, on_test = first.main_metric, all(first.main_metric in run.test_metrics for run in chosen)
    rows = first.tested_rows(metric) if on_test else rows_behind(metric, first.rows)

    def figure(runs: Sequence[Run]) -> tuple[Spread, int]:
        return spread_of(runs, lambda run: (run.test_metrics if on_test else run.best.metrics)[metric]), len(runs)

    names = {False: "the fine-tuned encoder", True: "the frozen encoder"}
    figures = {names[first.settings.freeze]: figure(chosen)}
    tested = first.tested.data if on_test and first.tested is not None else None
    if rivals := [run for run in others if not on_test or (run.tested is not None and run.tested.data == tested)]:
        figures[names[not first.settings.freeze]] = figure(ranked(rivals)[0])
    key = f"{metric}_test" if on_test else metric
    figures |= {name: (reached[key], 1) for name, reached in baselines.items() if key in reached}
    if len(figures) < 2:
        return ""
    best, second = sorted(figures, key=lambda name: -figures[name][0].mean)[:2]
    ahead = f"{100 * (figures[best][0].mean - figures[second][0].mean):+.1f} points"
    if (difference := difference_of(metric, figures[best], figures[second], rows)) is not None:
        low, high = (100 * (difference.value + sign * difference.half) for sign in (-1, 1))
        unclear = "; these rows cannot tell the two apart" if low <= 0 else ""
        ahead += f" (95 % interval {low:+.1f} to {high:+.1f}{unclear})"
    advice = {names[False]: "", "tf-idf": ": use tf-idf", names[True]: ": use --freeze" * (names[False] in figures)}
    where = "test rows" if on_test else "validation rows, which chose the epoch,"
    text = f"On the {rows:,} {where} {best} is best: {metric} {shown(metric, figures[best][0])}, {ahead} above {second}"
    return f"{text}{advice.get(best, ': guessing is as good')}."
