"""Imports go one way: which package may know which."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "code" / "nystromformer"

_MODELS = {"config", "attention", "model", "interop"}
_TASKS = _MODELS | {"data", "data.preprocessing", "training"}
_SHARED = {"tasks.experiment", "tasks.finetuning"}
_ALL_TASKS = _SHARED | {"tasks.pretraining", "tasks.glue", "tasks.imdb", "tasks.wikihop"}

MAY_KNOW: dict[str, set[str]] = {
    "config": set(),
    "attention": {"config"},
    "model": {"config", "attention"},
    "interop": {"config", "attention", "model"},
    "data": set(),
    "data.preprocessing": {"data"},
    "training": set(),
    "tasks.experiment": _TASKS - {"data.preprocessing"},
    "tasks.pretraining": _TASKS - {"data.preprocessing"} | {"tasks.experiment"},
    "tasks.finetuning": _TASKS - {"data.preprocessing"} | {"tasks.experiment"},
    "tasks.glue": _TASKS - {"data.preprocessing"} | _SHARED,
    "tasks.imdb": _TASKS - {"data.preprocessing"} | _SHARED,
    "tasks.wikihop": _TASKS - {"data.preprocessing"} | _SHARED,
    "report": _TASKS | _ALL_TASKS | {"benchmark"},
    "benchmark": _TASKS | _ALL_TASKS,
    "container": _TASKS | _ALL_TASKS,
}
"""Besides themselves and the modules beside the packages. Every package stands here."""


def package_of(module: str) -> str | None:
    """The longest package of MAY_KNOW that a module's name, without "nystromformer.", is in; None: beside them."""
    names = [name for name in MAY_KNOW if module == name or module.startswith(f"{name}.")]
    return max(names, key=len, default=None)


def imported(path: Path) -> Iterator[str]:
    """Names of the project's modules that a file imports, anywhere in it, without "nystromformer."."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = ("nystromformer", *path.relative_to(PACKAGE).parent.parts)
            base = ".".join(parents[: len(parents) - node.level + 1]) + "." if node.level else ""
            module = f"{base}{node.module or ''}".rstrip(".")
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.removeprefix("nystromformer.") for name in names if name.startswith("nystromformer."))


def test_every_package_has_its_rule() -> None:
    # Folders that hold code: tasks/ itself is empty, its own packages have the rules.
    folders = {
        ".".join(path.relative_to(PACKAGE).parts[:-1]) for path in PACKAGE.rglob("*.py") if path.stat().st_size
    } - {""}
    assert [folder for folder in sorted(folders) if package_of(folder) is None] == []
    assert set(MAY_KNOW) <= folders


@pytest.mark.parametrize("package", MAY_KNOW)
def test_a_package_imports_what_stands_below_it_alone(package: str) -> None:
    wrong = []
    for path in sorted((PACKAGE / package.replace(".", "/")).rglob("*.py")):
        if package_of(".".join(path.relative_to(PACKAGE).with_suffix("").parts)) != package:
            continue
        known = {package_of(name) for name in imported(path)} - {None, package}
        wrong += [f"{path.relative_to(PACKAGE)} imports {name}" for name in sorted(map(str, known - MAY_KNOW[package]))]
    assert not wrong


def test_no_package_imports_the_scripts() -> None:
    scripts = {path.stem for path in PACKAGE.parent.glob("*.py")}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not scripts & {alias.name for alias in node.names}, path
            elif isinstance(node, ast.ImportFrom):
                assert node.level or node.module not in scripts, path
