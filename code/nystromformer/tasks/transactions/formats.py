"""Public data of clients' events, as they come: maps of the columns of UCI's credit cards, TabFormer's and Sparkov's
card transactions."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.tasks.transactions.batches import Roles
from nystromformer.tasks.transactions.clients import Clients
from nystromformer.tasks.transactions.tables import TableReader, open_source
from nystromformer.wording import first_names

_UCI_MONTHS = ("2005-04-01", "2005-05-01", "2005-06-01", "2005-07-01", "2005-08-01", "2005-09-01")
_UCI_STEPS = {"status": (6, 12), "bill": (12, 18), "paid": (18, 24)}
"""Columns X6 to X23 of three kinds, each from September 2005 back to April."""
_UCI_FIXED = {"limit": 1, "sex": 2, "education": 3, "marriage": 4, "age": 5}
_UCI_ROLES = Roles(
    "client",
    "time",
    ("sex", "education", "marriage", "status"),
    (("limit", "log"), ("age", "scale"), ("bill", "log"), ("paid", "log")),
)
_TABFORMER = (
    *("User", "Card", "Year", "Month", "Day", "Time", "Amount", "Use Chip", "Merchant Name", "Merchant City"),
    *("Merchant State", "Zip", "MCC", "Errors?", "Is Fraud?"),
)
_SPARKOV_ROLES = Roles(
    "cc_num",
    "unix_time",
    ("category", "merchant", "gender", "state", "job"),
    (
        *(("amt", "log"), ("city_pop", "log"), ("lat", "scale"), ("long", "scale")),
        *(("merch_lat", "scale"), ("merch_long", "scale")),
    ),
)


def read_uci(path: Path) -> tuple[TableReader, Clients]:
    """Default of credit card clients (Yeh and Lien 2009): six monthly steps of 24,000 or 30,000 clients; of nested
    batches.

    Columns ID, X1 … X23 and Y, or by their longer names in the same order. What does not change stands at each step.

    Raises:
        UserError: other columns, or a cell that is none.
    """
    arrow = importlib.import_module("pyarrow")
    source = open_source(path)
    names = list(source.columns)
    if len(names) != 25:
        raise UserError(
            f"{path}: expected the 25 columns ID, X1 to X23 and Y, found {len(names)}: {first_names(names)}"
        )
    months = [arrow.scalar(month).cast(arrow.timestamp("us")) for month in _UCI_MONTHS]
    clients, batches = Clients(place=str(path)), []
    for file, batch in source.read(names, {}):
        columns: dict[str, Any] = {"client": batch.column(names[0])}
        columns["time"] = arrow.array([months] * batch.num_rows, arrow.list_(arrow.timestamp("us")))
        columns |= {name: batch.column(names[place]) for name, place in _UCI_FIXED.items()}
        for name, (first, end) in _UCI_STEPS.items():
            steps = zip(*(batch.column(names[place]).to_pylist() for place in reversed(range(first, end))), strict=True)
            columns[name] = arrow.array([list(row) for row in steps])
        for client, label in zip(columns["client"].to_pylist(), batch.column(names[24]).to_pylist(), strict=True):
            if label not in (0, 1):
                raise UserError(f"{file}: client {client}: {names[24]}: expected 0 or 1, found {label}")
            clients.labels[str(client)] = int(label)
        batches.append((file, arrow.RecordBatch.from_pydict(columns)))
    schema = batches[0][1].schema
    kinds = dict(zip(schema.names, schema.types, strict=True))
    return TableReader(replace(source, columns=kinds, read=lambda *wanted: iter(batches)), _UCI_ROLES), clients


def read_tabformer(path: Path) -> TableReader:
    """TabFormer's card_transaction.v1.csv (Padhi et al. 2021): a client is a card of a user, with label 1 where one of
    its transactions is a fraud, which is no feature.

    Raises:
        UserError: other columns.
    """
    source = open_source(path)
    source.check(_TABFORMER)
    arrow, compute = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.compute")

    def read(wanted: Sequence[str], kinds: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for file, batch in source.read(_TABFORMER, dict.fromkeys(_TABFORMER, arrow.string())):
            cells = {name: batch.column(name) for name in _TABFORMER}
            month, day = (compute.utf8_lpad(cells[name], 2, "0") for name in ("Month", "Day"))
            date = compute.binary_join_element_wise(cells["Year"], month, day, "-")
            made = {
                "card": compute.binary_join_element_wise(cells["User"], cells["Card"], "-"),
                "time": compute.binary_join_element_wise(date, cells["Time"], " "),
                "amount": compute.replace_substring_regex(cells["Amount"], "[$,]", ""),
                **{name: cells[name] for name in _TABFORMER[7:]},
            }
            yield file, arrow.RecordBatch.from_pydict({name: made[name] for name in wanted})

    roles = Roles("card", "time", _TABFORMER[7:-1], (("amount", "log"),))
    columns = dict.fromkeys(("card", "time", *_TABFORMER[7:]), arrow.string())
    return TableReader(replace(source, columns=columns, read=read), roles, marks=("Is Fraud?", ("Yes",)))


def read_sparkov(path: Path) -> TableReader:
    """Sparkov's generated transactions, a file or a folder of them, in which a file of customers is left alone: a
    client is a card, with label 1 where one of its transactions is a fraud, which is no feature.

    Raises:
        UserError: other columns.
    """
    source = open_source(path, "unix_time")
    roles = _SPARKOV_ROLES
    source.check((roles.client, roles.time, *roles.categorical, *roles.numbers, "is_fraud"))
    reader = TableReader(source, roles, marks=("is_fraud", ("1", "1.0")))
    reader.has_dates = True  # its numbers are seconds since 1970
    return reader
