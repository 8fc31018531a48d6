"""The tables of what was learned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from nystromformer.benchmark.abilities.learning import HEADS, LAYERS, RATE, ROWS, SOLVED, WIDTH, Cell
from nystromformer.benchmark.abilities.tasks import TASKS
from nystromformer.tables import markdown


@dataclass(frozen=True, order=True)
class Panel:
    """What the cells of one table have in common."""

    length: int
    taps: int

    @property
    def title(self) -> str:
        return f"{self.length} tokens, " + (f"convolution of {self.taps} taps" if self.taps else "no convolution")


@dataclass(frozen=True)
class Budget:
    """Settings of one attention that differ in one parameter, on one task."""

    panel: Panel
    task: str
    label: str
    """Of the attention with its other parameters."""
    parameter: str
    cells: Mapping[int, Sequence[Cell]]
    """By the parameter's value, in order; a cell each seed."""

    @property
    def enough(self) -> int | None:
        """The least value from which on every seed solves the task; None where the greatest does not."""
        enough = None
        for value, cells in reversed(list(self.cells.items())):
            if not all(cell.solved for cell in cells):
                break
            enough = value
        return enough


def panels(cells: Sequence[Cell]) -> dict[Panel, list[Cell]]:
    """The cells of each table, in order."""
    found: dict[Panel, list[Cell]] = {}
    for cell in cells:
        found.setdefault(Panel(cell.setting.length, cell.setting.taps), []).append(cell)
    return dict(sorted(found.items()))


def columns(cells: Sequence[Cell]) -> list[str]:
    """The tasks with their pairs, in order."""
    order = list(TASKS)
    wanted = {(order.index(cell.setting.task), cell.setting.pairs or 0): column(cell) for cell in cells}
    return [name for _, name in sorted(wanted.items())]


def column(cell: Cell) -> str:
    """Such as `lookup, 8 pairs`."""
    pairs = cell.setting.pairs
    return cell.setting.task if pairs is None else f"{cell.setting.task}, {pairs} pairs"


def by_place(cells: Sequence[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """The cells of all seeds by attention and column."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.setting.seed):
        found.setdefault((cell.setting.label, column(cell)), []).append(cell)
    return found


def budgets(cells: Sequence[Cell]) -> list[Budget]:
    """Of each attention that was measured with several values of a parameter: these, task by task.

    The parameter is the one of which there are most values; what else differs is another label.
    """
    found = []
    for panel, inside in panels(cells).items():
        by_name: dict[tuple[str, str], list[Cell]] = {}
        for cell in inside:
            by_name.setdefault((column(cell), str(cell.setting.attention["name"])), []).append(cell)
        for (task, _), ones in by_name.items():
            found += _budgets_of(panel, task, ones)
    return found


def _budgets_of(panel: Panel, task: str, cells: Sequence[Cell]) -> list[Budget]:
    values: dict[str, set[int]] = {}
    for cell in cells:
        for key, value in cell.setting.attention.items():
            if type(value) is int:
                values.setdefault(key, set()).add(value)
    varied = {key: len(each) for key, each in values.items() if len(each) > 1}
    if not varied:
        return []
    parameter = max(varied, key=lambda key: varied[key])
    groups: dict[str, dict[int, list[Cell]]] = {}
    for cell in cells:
        parameters = {key: value for key, value in cell.setting.attention.items() if key != "conv_kernel_size"}
        others = ", ".join(f"{key} {value}" for key, value in parameters.items() if key not in ("name", parameter))
        label = f"{parameters['name']} ({others})" if others else str(parameters["name"])
        if type(parameters.get(parameter)) is int:
            groups.setdefault(label, {}).setdefault(parameters[parameter], []).append(cell)
    return [
        Budget(panel, task, label, parameter, dict(sorted(group.items())))
        for label, group in groups.items()
        if len(group) > 1
    ]


def to_read(cells: Sequence[Cell], header: str, commands: Sequence[str]) -> str:
    """The page; with no commands, for a terminal, the tables alone."""
    parts = [_head(cells, header, commands)] if commands else []
    for panel, inside in panels(cells).items():
        parts += [f"## {panel.title[0].upper()}{panel.title[1:]}", _table(inside)]
    if found := budgets(cells):
        parts += ["## The least budget that is enough", _ENOUGH, _budget_table(found)]
    return "\n\n".join(parts) + "\n"


_ENOUGH = (
    f"The least value of the parameter from which on every seed reaches {SOLVED:.0%}, of the values in brackets. A "
    "dash: the greatest is not enough either."
)


def _head(cells: Sequence[Cell], header: str, commands: Sequence[str]) -> str:
    commits = ", ".join(sorted({cell.commit for cell in cells}))
    hours = sum(cell.seconds for cell in cells) / 3600
    paragraphs = [
        "# Which attention can do what",
        f"An encoder of {LAYERS} layers of width {WIDTH} with {HEADS} heads learns a task from fresh rows, {ROWS} a "
        f"step, at a learning rate of {RATE:g}. It stops when it gives {SOLVED:.0%} of the answers of other rows "
        f"(bold, with the seconds that this took), or after {_limits(cells)} seconds of one core. The table shows the "
        "accuracy in % on further rows, with at least 2,048 answers: its standard error is at most 1.1 points, and "
        "0.22 at 99 %. With several seeds it shows the mean, and the least and the greatest in brackets. Positions are "
        "learned; those of recall are rotary, except for synthesizer, which compares no queries with keys. "
        "*guessing* is the accuracy of the task's simplest rule, without any learning: "
        + "; ".join(f"{name}, {task(64, None).rule}" for name, task in TASKS.items())
        + ".",
        f"{header}, commits {commits}; {hours:.1f} core-hours.",
        "\n".join(f"`{command}`" for command in commands),
    ]
    return "\n\n".join(paragraphs)


def _limits(cells: Sequence[Cell]) -> str:
    """The seconds after which cells end, with the columns that have others than most."""
    found: dict[float, list[str]] = {}
    for cell in cells:
        if column(cell) not in (names := found.setdefault(cell.setting.seconds, [])):
            names.append(column(cell))
    (most, _), *few = sorted(found.items(), key=lambda item: -len(item[1]))
    others = "; ".join(f"{seconds:g} for {', '.join(names)}" for seconds, names in few)
    return f"{most:g}" + (f" ({others})" if others else "")


def _table(cells: Sequence[Cell]) -> str:
    places, names = by_place(cells), columns(cells)
    labels = sorted({label for label, _ in places}, key=lambda label: (label != "softmax", label))
    guessing = {name: [cell.guessing for cell in cells if column(cell) == name] for name in names}
    rows = [[f"`{label}`", *(_cell(places.get((label, name), [])) for name in names)] for label in labels]
    rows.append(["*guessing*", *(f"{100 * mean(guessing[name]):.1f}" for name in names)])
    return markdown(["attention", *names], rows)


def _cell(cells: Sequence[Cell]) -> str:
    if not cells:
        return ""
    accuracies = [100 * cell.accuracy for cell in cells]
    text = f"{mean(accuracies):.1f}"
    if len(cells) > 1:
        text += f" ({min(accuracies):.1f} to {max(accuracies):.1f})"
    if all(cell.solved for cell in cells):
        text = f"**{text}** ({mean(cell.seconds for cell in cells):.0f} s)"
    return text


def _budget_table(found: Sequence[Budget]) -> str:
    names = list(dict.fromkeys(f"{each.task}, {each.panel.title}" for each in found))
    rows: dict[str, dict[str, str]] = {}
    for each in found:
        tried = ", ".join(map(str, each.cells))
        enough = "–" if each.enough is None else f"**{each.enough}**"
        place = rows.setdefault(f"`{each.label}`: {each.parameter}", {})
        place[f"{each.task}, {each.panel.title}"] = f"{enough} ({tried})"
    return markdown(
        ["attention", *names], [[label, *(row.get(name, "") for name in names)] for label, row in rows.items()]
    )
