"""ListOps' data: drawn, or read from the Long Range Arena's release, every label computed again."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nystromformer.bounded import read_lines
from nystromformer.errors import UserError
from nystromformer.tasks.lra.listops import BRACKETS, CLASSES, TOKENS, Expressions, draw, evaluate, parse
from nystromformer.tasks.lra.sources import missing_files
from nystromformer.tasks.lra.stored import Example

RELEASE_FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
"""In `listops-1000/` of the release."""
SIZES = {"train": 96_000, "validation": 2_000, "test": 2_000}
_HEADER = "Source\tTarget"
_LONGEST_LINE = 1 << 20


@dataclass(frozen=True)
class DrawnListOps:
    """Expressions of a seed's own."""

    wanted: Expressions
    seed: int

    @property
    def kinds(self) -> int:
        return kinds_of(self.wanted.brackets)

    classes = CLASSES

    def settings(self) -> Mapping[str, Any]:
        return {"task": "listops", "seed": self.seed, **asdict(self.wanted)}

    def example(self, split: str, number: int, attempt: int) -> Example:
        tokens, value = draw(random.Random(f"listops {self.seed} {split} {number} {attempt}"), self.wanted.of(split))
        return [tokens], value


def kinds_of(brackets: bool) -> int:
    """Kinds of token."""
    return len(TOKENS) + len(BRACKETS) * brackets


def released(folder: Path, partial: bool) -> dict[str, Path]:
    """The files of a release by split; with `partial`, those there are.

    Raises:
        UserError: one is missing; lists which files were looked for.
    """
    return missing_files(folder, RELEASE_FILES, partial, "ListOps' files")


def read_released(path: Path, brackets: bool) -> Iterator[Example]:
    """The expressions of a file, whose labels were computed again.

    Raises:
        UserError: another header, a line that is no expression and digit, or whose label is not its value; says where.
    """
    with path.open("rb") as file:
        for number, line in enumerate(read_lines(file, path, _LONGEST_LINE), start=1):
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if number == 1:
                if text != _HEADER:
                    raise UserError(f"{path}: expected the header {_HEADER!r}, found {text[:60]!r}")
                continue
            source, tab, target = text.rpartition("\t")
            try:
                if not tab:
                    raise ValueError(f"expected an expression, a tab and a digit, found {text[:60]!r}")
                tokens = parse(source, brackets)
                value = evaluate(tokens)
                if target != str(value):
                    raise ValueError(f"its value is {value}, its label {target[:20]!r}")
            except ValueError as error:
                raise UserError(f"{path}, line {number}: {error}") from None
            yield [tokens], value
