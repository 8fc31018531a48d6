"""Prepare clients' events for run_transactions.py: one's own tables, public data, or clients who are drawn."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.config.ranges import MOST_SEED
from nystromformer.errors import UserError
from nystromformer.tasks.transactions.clients import Division, read_clients
from nystromformer.tasks.transactions.formats import read_sparkov, read_tabformer, read_uci
from nystromformer.tasks.transactions.generator import CLIENTS, EVENTS, World, draw_clients
from nystromformer.tasks.transactions.prepare import Plan, describe, prepare
from nystromformer.tasks.transactions.store import Form, open_stored
from nystromformer.tasks.transactions.tables import (
    UNITS,
    EventTable,
    choose_roles,
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

    client: Annotated[str, typer.Option(help="Column of the client, here and in --clients.")]
    time: Annotated[str, typer.Option(help="Column of the events' times: dates, or numbers.")]
    target: Annotated[str, typer.Option(help="Column of the labels, 0 and 1.")]
    date: Annotated[
        str | None, typer.Option(help="Column of the day on which each client was scored; later events are left out.")
    ] = None
    split: Annotated[str | None, typer.Option(help="Column with train, validation or test.")] = None
    truth: Annotated[str | None, typer.Option(help="Column of the true probability of label 1, if known.")] = None
    categorical: Annotated[str, typer.Option(help="Columns of categories, separated by commas.")] = ""
    numerical: Annotated[
        str,
        typer.Option(help="Columns of numbers, separated by commas; a:scale: scaled as they are, not by logarithm."),
    ] = ""
    ignore: Annotated[str, typer.Option(help="Columns to leave out, separated by commas.")] = ""
    time_unit: Annotated[
        Literal["seconds", "milliseconds", "days"], typer.Option("--time_unit", help="Unit of times that are numbers.")
    ] = "seconds"

    def plan(self, events: Path, clients: Path, division: Division) -> Plan:
        """What is prepared.

        Raises:
            UserError: a flag is wrong, or a table is none.
        """
        if self.split is not None and division != Division():
            raise UserError("--split: expected no --out_of_time, --validation or --split_seed with it")
        numbers: dict[str, Form] = {}
        for part in _names(self.numerical):
            name, _, form = part.partition(":")
            if form not in ("", "log", "scale"):
                raise UserError(f"--numerical: expected scale or log, found {form}")
            numbers[name] = "scale" if form == "scale" else "log"
        source = open_source(events)
        columns = (self.client, self.target, self.date, self.split, self.truth)
        named = (self.client, self.time, _names(self.categorical), numbers, _names(self.ignore))
        roles = choose_roles(source, *named, [name for name in columns[1:] if name])
        table = EventTable(source, roles, UNITS[self.time_unit])
        known = read_clients(clients, columns, None if table.has_dates else table.unit)
        return Plan(table, division, known, columns)


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
    _prepare("long", table.plan(events, clients, division), out, [events, clients])


@with_flag_groups
def nested(
    events: Annotated[Path, typer.Option(help="A .parquet file with a row for each client, whose events are lists.")],
    out: Out,
    *,
    table: TableFlags,
    division: Division,
) -> None:
    """A row for each client with lists, as pytorch-lifestream has them."""
    _prepare("nested", table.plan(events, events, division), out, [events])


def new(
    events: Events,
    like: Annotated[Path, typer.Option(help="Prepared folder whose columns, vocabularies and scales to use.")],
    out: Out,
) -> None:
    """Events of other clients, without labels, for run_predict.py: a row for each event, or for each client."""
    known = open_stored(like)
    plan = Plan(table_like(open_source(events), known), Division(), {}, like=known.manifest)
    _prepare("new", plan, out, [events, like])


@with_flag_groups
def uci(source: Source, out: Out, *, division: Division) -> None:
    """UCI's default of credit card clients, UCI_Credit_Card.csv: six months of each client, who have no dates: the
    last rows are tested on."""
    _prepare("uci", Plan(read_uci(source), division, {}), out, [source])


@with_flag_groups
def tabformer(source: Source, out: Out, *, division: Division) -> None:
    """TabFormer's card_transaction.v1.csv: whether a card has a fraud."""
    _prepare("tabformer", Plan(read_tabformer(source), division, {}), out, [source])


@with_flag_groups
def sparkov(source: Source, out: Out, *, division: Division) -> None:
    """Sparkov's generated card transactions: whether a card has a fraud."""
    _prepare("sparkov", Plan(read_sparkov(source), division, {}), out, [source])


def draw(
    out: Annotated[Path, typer.Option(help="Folder for the tables: events/ and clients.csv, for `prepare.py long`.")],
    clients: Annotated[int, typer.Option(min=10, max=10**8, help="Number of clients.")] = 10_000,
    length: Annotated[int, typer.Option(min=8, max=100_000, help="Mean number of events of a client.")] = 350,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Random seed.")] = 0,
    of_loan: Annotated[
        float,
        typer.Option("--of_loan", min=0, max=10, help="What each open loan, up to three, adds to the log-odds."),
    ] = World.of_loan,
    intercept: Annotated[
        float, typer.Option(min=-10, max=10, help="Log-odds of default of a calm client without open loans.")
    ] = World.intercept,
) -> None:
    """Draw clients whose true chance of default is known."""
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: expected an empty folder or none, found files: choose another --out")
    world = World(mean_length=length, most_events=12 * length, of_loan=of_loan, intercept=intercept)
    draw_clients(world, clients, seed, out)
    typer.echo(
        f"{clients:,} clients: {out}\nnext: python experiments/transactions/prepare.py long --events {out / EVENTS} "
        f"--clients {out / CLIENTS} --client client --time time --target default --date date --truth truth --out FOLDER"
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _prepare(name: str, plan: Plan, out: Path, places: list[Path]) -> None:
    typer.echo(describe_columns(plan.table))
    settings = {"format": name, "sources": [str(place.resolve()) for place in places]}
    stored = prepare(out, f"experiments/transactions/prepare.py {name}", settings, plan)
    typer.echo(describe(stored))


if __name__ == "__main__":
    logging.getLogger("nystromformer").setLevel(logging.INFO)
    cli.run_one_of(long, nested, new, uci, tabformer, sparkov, draw)
