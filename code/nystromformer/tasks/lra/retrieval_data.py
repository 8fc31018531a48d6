"""Pairs of papers of the ACL Anthology Network as bytes: whether one cites the other."""

from collections.abc import Iterator
from pathlib import Path

from nystromformer.bounded import read_lines
from nystromformer.errors import UserError
from nystromformer.tasks.lra.sources import missing_files
from nystromformer.tasks.lra.stored import Example

KINDS, CLASSES = 256, 2
LENGTH = 4000
"""Bytes that the Long Range Arena keeps of a sequence."""
RELEASE_FILES = {
    "train": "new_aan_pairs.train.tsv",
    "validation": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
"""In `tsv_data/` of the release."""
SIZES = {"train": 147_086, "validation": 18_090, "test": 17_437}
"""Of the release."""
_COLUMNS = ("label", "id1", "id2", "text1", "text2")
_LONGEST_LINE = 16 << 20


def released(folder: Path, partial: bool) -> dict[str, Path]:
    """The files of a release by split.

    Raises:
        UserError: one is missing; lists which files were looked for.
    """
    return missing_files(folder, RELEASE_FILES, partial, "the pairs of papers")


def read_pairs(path: Path) -> Iterator[Example]:
    """The pairs of a file.

    Raises:
        UserError: a line with other columns, another label, or without text; says where.
    """
    with path.open("rb") as file:
        for number, line in enumerate(read_lines(file, path, _LONGEST_LINE), start=1):
            cells = line.rstrip(b"\r\n").split(b"\t")
            if len(cells) != len(_COLUMNS):
                raise UserError(
                    f"{path}, line {number}: expected {len(_COLUMNS)} columns between tabs ({', '.join(_COLUMNS)}), "
                    f"found {len(cells)}"
                )
            label, _, _, first, second = cells
            if label not in (b"0.0", b"1.0", b"0", b"1"):
                shown = label[:20].decode("utf-8", "replace")
                raise UserError(f"{path}, line {number}: expected the label 0.0 or 1.0, found {shown!r}")
            if not first or not second:
                raise UserError(f"{path}, line {number}: a paper has no text")
            yield [first, second], int(label.startswith(b"1"))
