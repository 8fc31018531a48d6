"""Prepare clients' events for run_transactions.py: one's own tables, public data, or clients who are drawn."""

import nystromformer.command_line.interrupt  # noqa: F401  # first of all: for Ctrl-C within the imports below

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.config.ranges import MOST_SEED
from nystromformer.errors import UserError
from nystromformer.tasks.transactions.clients import Clients, Division, read_clients
from nystromformer.tasks.transactions.generator import CLIENTS, EVENTS, World, draw_clients
from nystromformer.tasks.transactions.prepare import Plan, describe, prepare
from nystromformer.tasks.transactions.store import Form, open_stored
from nystromformer.tasks.transactions.tables import (
    UNITS,
    TableReader,
    choose_roles,
    describe_columns,
    open_source,
    reader_like,
)

Out = Annotated[Path, typer.Option(help="Folder for the prepared data.")]
Source = Annotated[Path, typer.Option(help="File, or folder of files.")]
OutOfTime = Annotated[
    float,
    typer.Option(
        "--out_of_time", min=0.01, max=0.9, help="Share of the clients that are tested on: those with the latest dates."
    ),
]
Validation = Annotated[
    float,
    typer.Option(min=0.01, max=0.9, help="Share of the other clients, drawn at random, to select the best epoch."),
]
SplitSeed = Annotated[
    int, typer.Option("--split_seed", min=0, max=MOST_SEED, help="Random seed of the validation clients.")
]
Events = Annotated[Path, typer.Option(help="A .csv or .parquet file of events, or a folder of such files.")]
Client = Annotated[str, typer.Option(help="Column of the client, here and in --clients.")]
Time = Annotated[str, typer.Option(help="Column of the events' times: dates, or numbers.")]
Target = Annotated[str, typer.Option(help="Column of the labels, 0 and 1; empty for clients without a label.")]
DateColumn = Annotated[str | None, typer.Option("--date", help="Column of the day on which each client was scored.")]
Split = Annotated[
    str | None,
    typer.Option(help="Column with train, validation or test, in the place of --out_of_time and --validation."),
]
Truth = Annotated[str | None, typer.Option(help="Column of the true chance of a 1, where data were drawn.")]
Categorical = Annotated[str, typer.Option(help="Columns to take for categories, separated by commas.")]
Numerical = Annotated[
    str,
    typer.Option(
        help="Columns to take for numbers, separated by commas, each with its form where it is its own: a:log,b:bins."
    ),
]
FormOfNumbers = Annotated[
    str,
    typer.Option(
        "--form", help="Form of numerical columns: scale, log (the logarithm, scaled) or bins (32 quantiles)."
    ),
]
Ignore = Annotated[str, typer.Option(help="Columns to leave out, separated by commas.")]
Unit = Annotated[str, typer.Option("--time_unit", help="Of times that are numbers: seconds, milliseconds or days.")]
Sort = Annotated[bool, typer.Option("--sort", help="Sort each client's events by time instead of stopping.")]
CutAfter = Annotated[
    bool, typer.Option("--cut_after_date", help="Leave out events after the client's --date instead of stopping.")
]
SkipEmpty = Annotated[
    bool, typer.Option("--skip_empty", help="Leave out clients of --clients without events instead of stopping.")
]


def long(
    events: Events,
    clients: Annotated[Path, typer.Option(help="Table with a row for each client: .csv, .tsv, .jsonl or .parquet.")],
    client: Client,
    time: Time,
    target: Target,
    out: Out,
    date: DateColumn = None,
    split: Split = None,
    truth: Truth = None,
    categorical: Categorical = "",
    numerical: Numerical = "",
    form: FormOfNumbers = "log",
    ignore: Ignore = "",
    time_unit: Unit = "seconds",
    sort: Sort = False,
    cut_after_date: CutAfter = False,
    skip_empty: SkipEmpty = False,
    out_of_time: OutOfTime = 0.2,
    validation: Validation = 0.1,
    split_seed: SplitSeed = 0,
) -> None:
    """A row for each event, those of a client together."""
    of_clients = [name for name in (target, date, split, truth) if name is not None]
    reader = _open(events, client, time, categorical, numerical, form, ignore, time_unit, of_clients)
    known = read_clients(clients, client, target, date, split, truth, reader.unit_of_numbers)
    plan = Plan(
        reader.long(),
        reader,
        known,
        Division(out_of_time, validation, split_seed),
        sort=sort,
        cut_after_date=cut_after_date,
        skip_empty=skip_empty,
    )
    _prepare("long", plan, out, [events, clients])


def nested(
    events: Annotated[Path, typer.Option(help="A .parquet file with a row for each client, whose events are lists.")],
    client: Client,
    time: Time,
    target: Target,
    out: Out,
    date: DateColumn = None,
    split: Split = None,
    truth: Truth = None,
    categorical: Categorical = "",
    numerical: Numerical = "",
    form: FormOfNumbers = "log",
    ignore: Ignore = "",
    time_unit: Unit = "seconds",
    sort: Sort = False,
    cut_after_date: CutAfter = False,
    out_of_time: OutOfTime = 0.2,
    validation: Validation = 0.1,
    split_seed: SplitSeed = 0,
) -> None:
    """A row for each client with lists, as pytorch-lifestream has them."""
    reader = _open(events, client, time, categorical, numerical, form, ignore, time_unit, None)
    known = read_clients(events, client, target, date, split, truth, reader.unit_of_numbers)
    division = Division(out_of_time, validation, split_seed)
    plan = Plan(reader.nested(), reader, known, division, sort=sort, cut_after_date=cut_after_date)
    _prepare("nested", plan, out, [events])


def new(
    events: Events,
    like: Annotated[
        Path, typer.Option(help="Prepared folder, whose columns, vocabularies, scales and unit of time are taken.")
    ],
    out: Out,
    lists: Annotated[
        bool, typer.Option("--lists", help="The table has a row for each client, as for `prepare.py nested`.")
    ] = False,
    sort: Sort = False,
) -> None:
    """Events of other clients, without labels, for run_predict.py."""
    reader, manifest = reader_like(open_source(events), open_stored(like))
    batches = reader.nested() if lists else reader.long()
    plan = Plan(batches, reader, Clients(), Division(0, 0, 0), sort=sort, like=manifest)
    _prepare("new", plan, out, [events, like])


def uci(
    source: Source,
    out: Out,
    out_of_time: OutOfTime = 0.2,
    validation: Validation = 0.1,
    split_seed: SplitSeed = 0,
) -> None:
    """UCI's default of credit card clients, UCI_Credit_Card.csv: six months of each client, who have no dates: the
    last rows are tested on."""
    from nystromformer.tasks.transactions.formats import read_uci

    reader, tables, known = read_uci(source)
    plan = Plan(reader.nested(tables), reader, known, Division(out_of_time, validation, split_seed))
    _prepare("uci", plan, out, [source])


def tabformer(
    source: Source,
    out: Out,
    out_of_time: OutOfTime = 0.2,
    validation: Validation = 0.1,
    split_seed: SplitSeed = 0,
) -> None:
    """TabFormer's card_transaction.v1.csv: whether a card has a fraud."""
    from nystromformer.tasks.transactions.formats import read_tabformer

    reader, division = read_tabformer(source), Division(out_of_time, validation, split_seed)
    _prepare("tabformer", Plan(reader.long(), reader, Clients(), division), out, [source])


def sparkov(
    source: Source,
    out: Out,
    out_of_time: OutOfTime = 0.2,
    validation: Validation = 0.1,
    split_seed: SplitSeed = 0,
) -> None:
    """Sparkov's generated card transactions: whether a card has a fraud."""
    from nystromformer.tasks.transactions.formats import read_sparkov

    reader, division = read_sparkov(source), Division(out_of_time, validation, split_seed)
    _prepare("sparkov", Plan(reader.long(), reader, Clients(), division, sort=True), out, [source])


def draw(
    out: Annotated[Path, typer.Option(help="Folder for the tables: events/ and clients.csv, for `prepare.py long`.")],
    clients: Annotated[int, typer.Option(min=10, max=10**8, help="How many.")] = 10_000,
    length: Annotated[int, typer.Option(min=8, max=100_000, help="Events of a client, in the mean.")] = 350,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="What is drawn follows from it.")] = 0,
) -> None:
    """Draw clients whose true chance of default is known."""
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: expected an empty folder or none, found files: choose another --out")
    draw_clients(World(mean_length=length, most_events=12 * length), clients, seed, out)
    typer.echo(
        f"{clients:,} clients: {out}\nnext: python experiments/transactions/prepare.py long --events {out / EVENTS} "
        f"--clients {out / CLIENTS} --client client --time time --target default --date date --truth truth --out FOLDER"
    )


def _open(
    events: Path,
    client: str,
    time: str,
    categorical: str,
    numerical: str,
    form: str,
    ignore: str,
    unit: str,
    of_clients: Sequence[str] | None,
) -> TableReader:
    """The reader of a table with a row for each event, or, where `of_clients` is None, with lists."""
    seconds, usual = _unit(unit), _form("--form", form)
    numbers = {}
    for part in _names(numerical):
        name, _, own = part.partition(":")
        numbers[name] = _form("--numerical", own) if own else usual
    source, nested = open_source(events), of_clients is None
    columns = (client, time, _names(categorical), numbers, _names(ignore))
    return TableReader(source, choose_roles(source, *columns, usual, nested, of_clients or ()), seconds)


def _unit(name: str) -> float:
    if name not in UNITS:
        raise UserError(f"--time_unit {name}: expected one of {', '.join(UNITS)}")
    return UNITS[name]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _form(flag: str, text: str) -> Form:
    for form in ("scale", "log", "bins"):
        if text == form:
            return form  # type: ignore[return-value]
    raise UserError(f"{flag}: expected scale, log or bins, found {text}")


def _prepare(name: str, plan: Plan, out: Path, places: list[Path]) -> None:
    typer.echo(describe_columns(plan.reader))
    settings = {"format": name, "sources": [str(place.resolve()) for place in places]}
    stored = prepare(out, f"experiments/transactions/prepare.py {name}", settings, plan)
    typer.echo(describe(stored))


if __name__ == "__main__":
    logging.getLogger("nystromformer").setLevel(logging.INFO)
    cli.run_one_of(long, nested, new, uci, tabformer, sparkov, draw)
