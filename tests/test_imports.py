"""Who may import whom. Read from the source: nothing is imported here, and imports within functions count too."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "nystromformer"

PLAIN = ("errors", "files", "wording")
LIBRARY = ("config", "attention", "model", "interop")
TASKS = (
    *("tasks.declaration", "tasks.experiment", "tasks.pretraining", "tasks.finetuning", "tasks.documents"),
    *("tasks.glue", "tasks.imdb", "tasks.lra", "tasks.transactions", "tasks.wikihop"),
)
TRAINING = (*PLAIN, *LIBRARY, "data", "training")
MEASURED = ("files.checked_json", "runs", "tables", "machine")

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    # What everything may stand on, and knows nothing of the rest.
    "errors": (),
    "files": ("errors",),
    "files.checked_json": ("errors", "files", "config"),
    "files.parts": (*PLAIN, "files.checked_json"),
    "command_line": ("errors", "files", "wording", "attention"),  # an attention of one's own, where a flag names it
    "machine": ("command_line",),
    "tables": (),
    "wording": (),
    # The library: one way, each only what stands before it.
    "config": PLAIN,
    "attention": ("config",),
    "model": ("config", "attention"),
    "interop": ("config", "attention", "model"),
    # What others call things, which knows nothing of runs; interop.experiments makes experiments of it.
    "interop.formats": (*PLAIN, "config", "attention", "model", "interop"),
    "objectives": (),
    # For models of other people: tasks have their own.
    "nn": ("config", "attention", "model"),
    # What training reads, and the loop: neither knows the other, a model or a task.
    "data": (*PLAIN, "files.checked_json"),
    "data.preprocessing": (*PLAIN, "files.checked_json", "files.parts", "command_line", "data"),
    "training": (*PLAIN, "command_line"),
    # What people bring, whichever task reads it.
    "tabular": (*PLAIN, "data"),
    "tasks.declaration": ("errors",),
    # What a run keeps in its folder.
    "runs": (*PLAIN, "files.checked_json", "command_line", "config", "machine"),
    # Tasks: what all experiments share; pretraining and fine-tuning side by side; each data set by itself.
    "tasks.experiment": (*TRAINING, "interop.formats"),
    "tasks.pretraining": (
        *(*TRAINING, "interop.formats", "files.checked_json", "tables", "machine", "tasks.experiment"),
    ),
    "tasks.finetuning": (
        *TRAINING,
        "objectives",
        "command_line",
        "tables",
        "machine",
        "runs",
        "tasks.experiment",
    ),
    "tasks.documents": (
        *(*TRAINING, "files.checked_json", "tables", "tabular", "runs"),
        *("tasks.declaration", "tasks.experiment", "tasks.finetuning"),
    ),
    "tasks.glue": (*TRAINING, "tabular", "tasks.declaration", "tasks.finetuning", "tasks.documents"),
    "tasks.imdb": (*TRAINING, "tasks.declaration", "tasks.finetuning", "tasks.documents"),
    "tasks.lra": (
        *(*TRAINING, "files.checked_json", "files.parts", "data.preprocessing", "runs"),
        *("tasks.declaration", "tasks.experiment", "tasks.finetuning", "tasks.imdb"),
    ),
    "tasks.transactions": (
        *(*TRAINING, "files.checked_json", "files.parts", "tabular", "runs"),
        *("tasks.declaration", "tasks.experiment", "tasks.finetuning", "tasks.documents"),
    ),
    "tasks.wikihop": (*TRAINING, "tasks.declaration", "tasks.finetuning"),
    # Finished runs of the tasks on text, on new texts.
    "prediction": (
        *(*TRAINING, "interop.formats", "files.parts", "tabular", "runs"),
        *("tasks.experiment", "tasks.finetuning", "tasks.documents", "tasks.glue", "tasks.imdb", "tasks.transactions"),
    ),
    # A step for pipelines of datatrove; nothing else stands on it.
    "datatrove": ("wording", "command_line", "prediction"),
    # What makes experiments of other people's models, and such models of experiments; nothing else stands on it.
    "interop.experiments": (
        *(*TRAINING, *MEASURED, "files.parts", "command_line", "tabular", "interop.formats", "data.preprocessing"),
        *("tasks.declaration", "tasks.documents", "tasks.experiment", "tasks.finetuning", "tasks.glue"),
    ),
    # What measures, and what shows; nothing else stands on these.
    "benchmark": (*TRAINING, *TASKS, *MEASURED, "command_line", "data.preprocessing"),
    "report": (*TRAINING, *TASKS, *MEASURED, "benchmark"),
    # Containers know scripts by their names and experiments by their folders.
    "container": (*PLAIN, "command_line", "tables", "config", "tasks.declaration", "tasks.experiment"),
}
"""Rooms of the package, and the rooms that each may import beside itself. A module is in the longest name it begins
with."""

NOT_WHEN_IMPORTED = {"torch", "transformers", "datasets", "triton", "sklearn", "matplotlib", "tensorboard"}
"""Libraries that take a second or more to import."""
QUICK = (
    *("command_line", "errors", "files", "config", "container"),
    *("data", "data.preprocessing", "runs"),
)
"""Rooms and packages that import none of these before one of their functions is called, nor anything that does:
mistakes in a command show at once.
"""


@dataclass(frozen=True)
class Import:
    """A module that is imported, by its whole name, and where."""

    target: str
    line: int
    within_function: bool


def name_of(path: Path) -> str:
    """The dotted name of a module, after the package's own; empty for the package."""
    parts = path.relative_to(ROOT / "code" / PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted((ROOT / "code" / PACKAGE).rglob("*.py"))}
SCRIPTS = sorted([*(ROOT / "code").glob("*.py"), *(ROOT / "data-preprocessing").rglob("*.py")])


def room_of(module: str) -> str | None:
    rooms = [room for room in MAY_IMPORT if module == room or module.startswith(f"{room}.")]
    return max(rooms, key=len, default=None)


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    return tuple(_imports(ast.parse(path.read_text(encoding="utf-8")), path, within_function=False))


def _imports(node: ast.AST, path: Path, within_function: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, within_function) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (Import(name, child.lineno, within_function) for name in _names(child, path))
        elif not _is_for_types_alone(child):
            inner = within_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, path, inner)


def _names(node: ast.ImportFrom, path: Path) -> set[str]:
    """What `from origin import name` imports: the modules that the names are, or else the origin."""
    origin = node.module or ""
    if node.level:
        folder = path.relative_to(ROOT / "code").parts[: -node.level]
        origin = ".".join((*folder, origin)).strip(".")
    whole = {f"{origin}.{alias.name}" for alias in node.names}
    return {name if inside(name) in MODULES else origin for name in whole}


def _is_for_types_alone(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def inside(target: str) -> str | None:
    """The name within the package; None for what comes from elsewhere."""
    return target.removeprefix(PACKAGE).removeprefix(".") if target.split(".")[0] == PACKAGE else None


def where(path: Path, each: Import) -> str:
    return f"{path.relative_to(ROOT)}:{each.line} imports {each.target}"


def test_every_module_has_a_room_and_every_room_a_module() -> None:
    homeless = [name for name in MODULES if room_of(name) is None and name not in ("", "tasks")]
    assert not homeless, "say in MAY_IMPORT what these may import"
    assert {room_of(name) for name in MODULES} - {None} == set(MAY_IMPORT)
    assert {room for rooms in MAY_IMPORT.values() for room in rooms} <= set(MAY_IMPORT)


def test_no_two_rooms_may_import_each_other() -> None:
    above = {room: set(rooms) for room, rooms in MAY_IMPORT.items()}
    order: list[str] = []
    while above:
        free = [room for room, rooms in above.items() if rooms <= set(order)]
        assert free, f"a circle among {sorted(above)}"
        order += free
        above = {room: rooms for room, rooms in above.items() if room not in free}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_what_it_may(room: str) -> None:
    allowed = {room, *MAY_IMPORT[room]}
    strangers = [
        where(path, each)
        for name, path in MODULES.items()
        if room_of(name) == room
        for each in imports_of(path)
        if (target := inside(each.target)) and room_of(target) not in allowed
    ]
    assert not strangers, f"{room} may import {sorted(allowed)}"


def test_the_package_itself_imports_nothing() -> None:
    """Nothing of its own before it is asked for."""
    for name in ("", "tasks"):
        at_once = {each.target for each in imports_of(MODULES[name]) if not each.within_function}
        assert at_once <= {"typing", "importlib", "pathlib"}


@cache
def imported_with(module: str) -> dict[str, tuple[str, ...]]:
    """Everything that is imported as soon as a module is, with the way that leads there."""
    ways: dict[str, tuple[str, ...]] = {module: (module,)}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        # A module's packages are imported before it.
        parents = [name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)]
        targets = [each.target for each in imports_of(MODULES[name]) if not each.within_function]
        for target in [*(f"{PACKAGE}.{parent}" for parent in parents), *targets]:
            known = inside(target)
            key = target if known is None else known
            if key not in ways:
                ways[key] = (*ways[name], key)
                if known in MODULES:
                    waiting.append(known)
    return ways


@pytest.mark.parametrize("room", QUICK)
def test_what_is_needed_to_see_a_mistake_imports_nothing_slow(room: str) -> None:
    slow = [
        " -> ".join(way)
        for name in MODULES
        if name == room or name.startswith(f"{room}.")
        for target, way in imported_with(name).items()
        if target.split(".")[0] in NOT_WHEN_IMPORTED
    ]
    assert not slow


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_script_parses_and_delegates(path: Path) -> None:
    """Its own imports are the command line's and the package's; those of what is slow stand within its function."""
    library = {"typer", "typing", "pathlib", "dataclasses", "collections", "sys", "re", "secrets", "shlex"}
    if path.parent.name not in ("code", "data-preprocessing"):
        # A corpus may bring a reader of its own, which says what a line holds.
        library.add("pydantic")
    others = {other.stem for other in SCRIPTS if other.name.startswith("run_")} if path.stem == "launch" else set()
    for each in imports_of(path):
        top = each.target.split(".")[0]
        assert top in {PACKAGE, *library, *others}, where(path, each)
        known = inside(each.target)
        if known in MODULES and not each.within_function:
            slow = NOT_WHEN_IMPORTED & {target.split(".")[0] for target in imported_with(known)}
            assert not slow, f"{where(path, each)}, and with it {sorted(slow)}"
