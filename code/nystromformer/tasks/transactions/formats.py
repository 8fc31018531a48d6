"""Public data of clients' events, as they come: maps of the columns of UCI's credit cards, TabFormer's and Sparkov's
card transactions."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nystromformer.errors import UserError
from nystromformer.tasks.transactions.tables import EventTable, Source, open_source
from nystromformer.wording import first_names

_UCI_MONTHS = ("2005-04-01", "2005-05-01", "2005-06-01", "2005-07-01", "2005-08-01", "2005-09-01")
_UCI_STEPS = {"status": range(11, 5, -1), "bill": range(17, 11, -1), "paid": range(23, 17, -1)}
"""Columns X6 to X23 of three kinds, each from September 2005 back to April."""
_UCI_FIXED = {"client": 0, "limit": 1, "sex": 2, "education": 3, "marriage": 4, "age": 5, "default": 24}
_TABFORMER = (
    *("User", "Card", "Year", "Month", "Day", "Time", "Amount", "Use Chip", "Merchant Name", "Merchant City"),
    *("Merchant State", "Zip", "MCC", "Errors?", "Is Fraud?"),
)


def read_uci(path: Path) -> EventTable:
    """Default of credit card clients (Yeh and Lien 2009): six monthly steps of 24,000 or 30,000 clients.

    Columns ID, X1 … X23 and Y, or by their longer names in the same order. What does not change stands at each step.
    """
    source = open_source(path)
    rows, names = source.rows, source.rows.column_names
    if len(names) != 25:
        raise UserError(
            f"{path}: expected the 25 columns ID, X1 to X23 and Y, found {len(names)}: {first_names(names)}"
        )
    clients = np.repeat(np.arange(rows.num_rows), len(_UCI_MONTHS))
    columns = {name: rows.column(place).take(clients) for name, place in _UCI_FIXED.items()}
    columns["time"] = pa.array(list(_UCI_MONTHS) * rows.num_rows).cast(pa.timestamp("us"))
    for name, places in _UCI_STEPS.items():
        cells = zip(*(rows.column(place).to_pylist() for place in places), strict=True)
        columns[name] = pa.array(list(chain.from_iterable(cells)))
    return EventTable(
        Source(source.name, pa.table(columns), source.is_typed),
        "client",
        "time",
        ("sex", "education", "marriage", "status"),
        {"limit": "log", "age": "scale", "bill": "log", "paid": "log"},
        marks=("default", ("1",)),
    )


def read_tabformer(path: Path) -> EventTable:
    """TabFormer's card_transaction.v1.csv (Padhi et al. 2021): a client is a card of a user, with label 1 where one of
    its transactions is a fraud, which is no feature.
    """
    source = open_source(path)
    source.check(_TABFORMER)
    cells = {name: source.rows.column(name).cast(pa.string()) for name in _TABFORMER}
    month, day = (pc.utf8_lpad(cells[name], 2, "0") for name in ("Month", "Day"))
    date = pc.binary_join_element_wise(cells["Year"], month, day, "-")
    columns = {
        "card": pc.binary_join_element_wise(cells["User"], cells["Card"], "-"),
        "time": pc.binary_join_element_wise(date, cells["Time"], " "),
        "amount": pc.replace_substring_regex(cells["Amount"], "[$,]", ""),
        **{name: cells[name] for name in _TABFORMER[7:]},
    }
    cards = Source(source.name, pa.table(columns), is_typed=True)
    return EventTable(cards, "card", "time", _TABFORMER[7:-1], {"amount": "log"}, marks=("Is Fraud?", ("Yes",)))


def read_sparkov(path: Path) -> EventTable:
    """Sparkov's generated transactions, a file or a folder of them, in which a file of customers is left alone: a
    client is a card, with label 1 where one of its transactions is a fraud, which is no feature.
    """
    table = EventTable(
        open_source(path, "unix_time"),
        "cc_num",
        "unix_time",
        ("category", "merchant", "gender", "state", "job"),
        {"amt": "log", "city_pop": "log", "lat": "scale", "long": "scale", "merch_lat": "scale", "merch_long": "scale"},
        since_1970=True,
        marks=("is_fraud", ("1", "1.0")),
    )
    table.source.check((table.client, table.time, *table.categorical, *table.numerical, "is_fraud"))
    return table
