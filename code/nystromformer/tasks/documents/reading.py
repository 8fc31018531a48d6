"""How a table is read where its file does not say it: the flags that commands on tables share.

The launcher imports this too, on machines that have neither torch nor numpy.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Annotated

import typer

from nystromformer.errors import UserError


@dataclass(frozen=True)
class Reading:
    """How a table is read.

    Args:
        quotes: whether cells of CSV and TSV may be in quotes; else a quote is a character like any other, as in GLUE's
            files.
        delimiter: of CSV and TSV; None: a tab in .tsv; in .csv a comma, or a semicolon where the header has no comma.
        encoding: of text files.
        sheet: of an Excel file; None: its only one.
    """

    quotes: bool = True
    delimiter: str | None = None
    encoding: str = "utf-8"
    sheet: str | None = None

    @property
    def given(self) -> list[str]:
        """The flags that say something else than usual."""
        usual = Reading()
        flags = {"--no_quotes": "quotes", "--delimiter": "delimiter", "--encoding": "encoding", "--sheet": "sheet"}
        return [flag for flag, name in flags.items() if getattr(self, name) != getattr(usual, name)]


@dataclass(frozen=True)
class ReadingFlags:
    """Each field is a flag; for `with_flag_groups`."""

    no_quotes: Annotated[
        bool,
        typer.Option(
            "--no_quotes",
            help="Read CSV and TSV without quoting: a quote is an ordinary character, as in GLUE's files.",
        ),
    ] = False
    delimiter: Annotated[
        str | None,
        typer.Option(
            "--delimiter",
            help="Delimiter of CSV and TSV files, one character, or tab. Default: a tab in .tsv; in .csv a comma, or a "
            "semicolon if the header has no comma (numbers may then have a decimal comma).",
        ),
    ] = None
    encoding: Annotated[
        str, typer.Option("--encoding", help="Encoding of CSV, TSV, JSON and text files, such as cp1252.")
    ] = "utf-8"
    sheet: Annotated[str | None, typer.Option("--sheet", help="Sheet of an Excel file that has several.")] = None

    def chosen(self) -> Reading:
        """What the flags say.

        Raises:
            UserError: a delimiter of several characters, or an unknown encoding.
        """
        delimiter = {"tab": "\t", r"\t": "\t"}.get(self.delimiter or "", self.delimiter)
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
            raise UserError(f"--delimiter {delimiter!r:.40}: expected one character, such as ';', or tab")
        try:
            codec = codecs.lookup(self.encoding)
            is_text = "\n;".encode(self.encoding) == b"\n;"
        except (LookupError, UnicodeError):
            raise UserError(f"--encoding {self.encoding!r:.40}: expected a known encoding, such as cp1252") from None
        if not is_text:
            raise UserError(
                f"--encoding {self.encoding}: expected an encoding whose line ends are single bytes, such as utf-8 or "
                "cp1252: convert the file, such as by iconv"
            )
        return Reading(not self.no_quotes, delimiter, codec.name, self.sheet)
