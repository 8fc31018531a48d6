"""ListOps' data: drawn, or read from the Long Range Arena's release, every label computed again."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial as partial_of
from pathlib import Path

from nystromformer.errors import UserError
from nystromformer.files.reading import read_lines
from nystromformer.tasks.lra.listops import BRACKETS, CLASSES, TOKENS, Expressions, draw, evaluate, parse
from nystromformer.tasks.lra.prepare import TaskData, find_files, prepare_drawn, prepare_read
from nystromformer.tasks.lra.store import Example, Manifest

LISTOPS = TaskData("listops", CLASSES, {"train": 96_000, "validation": 2_000, "test": 2_000}, kinds=len(TOKENS))
WITH_BRACKETS = replace(LISTOPS, kinds=len(TOKENS) + len(BRACKETS))
_RELEASE_FILES = {"train": ["basic_train.tsv"], "validation": ["basic_val.tsv"], "test": ["basic_test.tsv"]}
_HEADER = "Source\tTarget"
_LONGEST_LINE = 1 << 20


def draw_listops(folder: Path, wanted: Expressions, sizes: Mapping[str, int], seed: int, workers: int) -> Manifest:
    """Draw ListOps into a folder.

    Args:
        sizes: examples of each split.

    Raises:
        UserError: lengths that no expression has; as `prepare_drawn`.
    """
    if wanted.longer_than + 1 >= wanted.shorter_than:
        raise UserError(
            f"--shorter_than: expected more than {wanted.longer_than + 1}, for expressions of more than "
            f"--longer_than = {wanted.longer_than} tokens, found {wanted.shorter_than}"
        )
    if wanted.of("train").longer_than > wanted.longer_than:
        raise UserError(
            f"--train_longer_than {wanted.train_longer_than}: expected at most --longer_than = {wanted.longer_than}: "
            "training may have shorter expressions than the other splits, not only longer ones"
        )
    longest = 1
    for _ in range(wanted.depth - 1):
        longest = 2 + wanted.most_values * longest
    if longest <= wanted.longer_than:
        raise UserError(
            f"--longer_than {wanted.longer_than}: expressions of --depth {wanted.depth} and --most_values "
            f"{wanted.most_values} have at most {longest:,} tokens"
        )
    warning = "drawn here as the Long Range Arena draws: its own expressions are others"
    if wanted != Expressions() or sizes != LISTOPS.official:
        warning = "not the Long Range Arena's ListOps: other lengths, sizes or tokens"
    data = WITH_BRACKETS if wanted.brackets else LISTOPS
    settings = {"seed": seed, **asdict(wanted)}
    return prepare_drawn(folder, data, partial_of(draw_example, wanted, seed), settings, sizes, workers, [warning])


def draw_example(wanted: Expressions, seed: int, split: str, number: int, attempt: int) -> tuple[bytes, int]:
    """Tokens and value of an expression of a split."""
    return draw(random.Random(f"listops {seed} {split} {number} {attempt}"), wanted.of(split))


def read_listops(folder: Path, release: Path, brackets: bool, partial: bool, seed: int) -> Manifest:
    """Take ListOps from the release into a folder.

    Raises:
        UserError: files are missing, or one is malformed or has a wrong label; as `prepare_read`.
    """
    place, files = find_files(release, "listops-1000", _RELEASE_FILES, partial, "ListOps' files")
    expressions = {split: read_expressions(path, brackets) for split, (path,) in files.items()}
    warnings = ["with the brackets that group: 17 kinds of token, the Long Range Arena's have 15"] * brackets
    data, settings = WITH_BRACKETS if brackets else LISTOPS, {"brackets": brackets}
    return prepare_read(folder, data, place, "release", expressions, settings, partial, seed, warnings=warnings)


def read_expressions(path: Path, brackets: bool) -> Iterator[Example]:
    """The expressions of a file, whose labels are computed again.

    Raises:
        UserError: another header, a line that is no expression and digit, or whose label is not its value; says where.
    """
    with path.open("rb") as file:
        lines = (line.decode("utf-8", "replace").rstrip("\r\n") for line in read_lines(file, path, _LONGEST_LINE))
        header = next(lines, "")
        if header != _HEADER:
            raise UserError(f"{path}: expected the header {_HEADER!r}, found {header[:60]!r}")
        for number, text in enumerate(lines, start=2):
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
