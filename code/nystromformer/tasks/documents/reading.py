"""How a table is read where its file does not say it: the flags that commands on tables share.

The launcher imports this too, on machines that have neither torch nor numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TextIO

import typer

from nystromformer.errors import UserError


@dataclass(frozen=True)
class Reading:
    """How a table is read; each field is a flag.

    Raises:
        UserError: an unknown encoding.
    """

    encoding: Annotated[
        str,
        typer.Option(
            "--encoding",
            help="Encoding of CSV, TSV, JSON and text files, such as cp1252.",
            rich_help_panel="More about the table",
        ),
    ] = "utf-8"
    sheet: Annotated[
        str | None,
        typer.Option(
            "--sheet", help="Sheet of an Excel file that has several.", rich_help_panel="More about the table"
        ),
    ] = None

    def __post_init__(self) -> None:
        try:
            is_text = "\n;".encode(self.encoding) == b"\n;"
        except (LookupError, UnicodeError):
            is_text = False
        if not is_text:
            raise UserError(
                f"--encoding {self.encoding!r:.40}: expected a known encoding whose line ends are single bytes, such "
                "as utf-8 or cp1252"
            )

    def open(self, path: Path, newline: str | None = None) -> TextIO:
        """A text file; a byte that the encoding has not becomes half a character, which is no text, see `text_of`."""
        encoding = "utf-8-sig" if self.encoding == "utf-8" else self.encoding
        return path.open(encoding=encoding, errors="surrogateescape", newline=newline)
