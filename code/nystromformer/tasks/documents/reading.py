"""How a table is read where its file does not say it: the flags that commands on tables share.

The launcher imports this too, on machines that have neither torch nor numpy.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass, fields
from typing import Annotated

import typer

from nystromformer.errors import UserError


@dataclass(frozen=True)
class Reading:
    """How a table is read; each field is a flag.

    Raises:
        UserError: a delimiter of several characters, or an unknown encoding.
    """

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

    def __post_init__(self) -> None:
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
        object.__setattr__(self, "delimiter", delimiter)
        object.__setattr__(self, "encoding", codec.name)

    @property
    def given(self) -> list[str]:
        """The flags that say something else than usual."""
        return [f"--{field.name}" for field in fields(self) if getattr(self, field.name) != field.default]
