"""Prepare clients' events for run_transactions.py: one's own tables, or public data."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.errors import UserError
from nystromformer.tasks.transactions.clients import Client, Division, read_clients
from nystromformer.tasks.transactions.formats import read_sparkov, read_tabformer, read_uci
from nystromformer.tasks.transactions.prepare import describe, prepare
from nystromformer.tasks.transactions.store import Form, Manifest, open_stored
from nystromformer.tasks.transactions.tables import (
    EventTable,
    choose_columns,
    describe_columns,
    open_source,
    table_like,
)

Out = Annotated[Path, typer.Option(help="Folder for the prepared data.")]
Source = Annotated[Path, typer.Option(help="File, or folder of files.")]
Events = Annotated[Path, typer.Option(help="A .csv, .tsv or .parquet file of events, or a folder of such files.")]


@dataclass(frozen=True)
class TableFlags:
    """What is what in tables of one's own; each field is a flag."""

    client: Annotated[str, typer.Option(help="Column of the client; of `long` also in --clients.")]
    time: Annotated[str, typer.Option(help="Column of the events' times: dates, or numbers.")]
    target: Annotated[str, typer.Option(help="Column of the labels, 0 and 1.")]
    date: Annotated[
        str | None, typer.Option(help="Column of the day on which each client was scored; later events are left out.")
    ] = None
    split: Annotated[str | None, typer.Option(help="Column with train, validation or test.")] = None
    categorical: Annotated[str, typer.Option(help="Columns of categories, separated by commas.")] = ""
    numerical: Annotated[
        str,
        typer.Option(help="Columns of numbers, separated by commas; a:scale: scaled as they are, not by logarithm."),
    ] = ""
    ignore: Annotated[str, typer.Option(help="Columns to leave out, separated by commas.")] = ""

    def prepare(self, name: str, events: Path, clients: Path, division: Division, out: Path) -> None:
        if self.split is not None and division != Division():
            raise UserError("--split: expected no --out_of_time, --validation or --split_seed with it")
        numbers: dict[str, Form] = {}
        for part in _names(self.numerical):
            name, _, form = part.partition(":")
            if form not in ("", "log", "scale"):
                raise UserError(f"--numerical: expected scale or log, found {form}")
            numbers[name] = "scale" if form == "scale" else "log"
        source = open_source(events)
        columns = (self.client, self.target, self.date, self.split)
        named = (self.client, self.time, _names(self.categorical), numbers, _names(self.ignore))
        table = choose_columns(source, *named, [column for column in columns[1:] if column])
        known = read_clients(clients, columns, table.has_dates)
        _prepare(name, table, out, [*dict.fromkeys((events, clients))], division, known, of_clients=columns)


@with_flag_groups
def long(
    events: Events,
    clients: Annotated[Path, typer.Option(help="Table with a row for each client: .csv, .tsv, .jsonl or .parquet.")],
    out: Out,
    *,
    table: TableFlags,
    division: Division,
) -> None:
    """A row for each event, those of a client together."""
    table.prepare("long", events, clients, division, out)


@with_flag_groups
def nested(
    events: Annotated[Path, typer.Option(help="A .parquet file with a row for each client, whose events are lists.")],
    out: Out,
    *,
    table: TableFlags,
    division: Division,
) -> None:
    """A row for each client with lists, as pytorch-lifestream has them."""
    table.prepare("nested", events, events, division, out)


def new(
    events: Events,
    like: Annotated[Path, typer.Option(help="Prepared folder whose columns, vocabularies and scales to use.")],
    out: Out,
) -> None:
    """Events of other clients, without labels, for run_predict.py: a row for each event, or for each client."""
    known = open_stored(like)
    _prepare("new", table_like(open_source(events), known), out, [events, like], Division(), like=known.manifest)


@with_flag_groups
def uci(source: Source, out: Out, *, division: Division) -> None:
    """UCI's default of credit card clients, UCI_Credit_Card.csv: six months of each client, who have no dates: the
    last rows are tested on."""
    _prepare("uci", read_uci(source), out, [source], division)


@with_flag_groups
def tabformer(source: Source, out: Out, *, division: Division) -> None:
    """TabFormer's card_transaction.v1.csv: whether a card has a fraud."""
    _prepare("tabformer", read_tabformer(source), out, [source], division)


@with_flag_groups
def sparkov(source: Source, out: Out, *, division: Division) -> None:
    """Sparkov's generated card transactions: whether a card has a fraud."""
    _prepare("sparkov", read_sparkov(source), out, [source], division)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _prepare(
    name: str,
    table: EventTable,
    out: Path,
    places: list[Path],
    division: Division,
    clients: Mapping[str, Client] | None = None,
    like: Manifest | None = None,
    of_clients: tuple[str | None, ...] = (),
) -> None:
    typer.echo(describe_columns(table))
    origin = {"format": name, "sources": [str(place.resolve()) for place in places], "of_clients": of_clients}
    stored = prepare(out, f"experiments/transactions/prepare.py {name}", origin, table, division, clients, like)
    typer.echo(describe(stored))


if __name__ == "__main__":
    logging.getLogger("nystromformer").setLevel(logging.INFO)
    cli.run_one_of(long, nested, new, uci, tabformer, sparkov)
