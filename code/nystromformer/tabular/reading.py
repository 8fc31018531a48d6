"""How a table is read where its file does not say it: the flags that commands on tables share.

The launcher imports this too, on machines that have neither torch nor numpy.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TextIO

import typer

from nystromformer.errors import UserError

TABLE = "More about the table"
"""A heading of --help."""


@dataclass(frozen=True)
class Reading:
    """How a table is read; each field is a flag."""

    encoding: Annotated[
        str,
        typer.Option(
            "--encoding",
            help="Encoding of CSV, TSV, JSON and text files, such as cp1252 or utf-16.",
            rich_help_panel=TABLE,
        ),
    ] = "utf-8"
    quotes: Annotated[
        bool | None,
        typer.Option(
            "--quotes/--no_quotes",
            help="Of CSV and TSV files: --no_quotes reads quotation marks as text; --quotes accepts cells with both a "
            "delimiter and a line end, which otherwise stop the command: they may be rows that a stray quotation mark "
            "joins.",
            rich_help_panel=TABLE,
        ),
    ] = None
    as_text: Annotated[
        bool,
        typer.Option(
            "--as_text",
            help="Read numbers, dates and truth values in text columns as text instead of stopping.",
            rich_help_panel=TABLE,
        ),
    ] = False
    keep_na: Annotated[
        bool,
        typer.Option(
            "--keep_na",
            help="Read words for missing values (NA, N/A, nan, null, None, #N/A, ?) as labels.",
            rich_help_panel=TABLE,
        ),
    ] = False

    @property
    def quoting(self) -> Literal[0, 3]:
        """Whether a quotation mark at the beginning of a cell quotes it, as csv has it."""
        return csv.QUOTE_NONE if self.quotes is False else csv.QUOTE_MINIMAL

    def open(self, path: Path, newline: str | None = None) -> TextIO:
        """A text file."""
        try:
            return path.open(encoding="utf-8-sig" if self.encoding == "utf-8" else self.encoding, newline=newline)
        except LookupError as error:
            raise UserError(f"--encoding {self.encoding!r:.40}: {error}; expected such as cp1252 or utf-16") from None
