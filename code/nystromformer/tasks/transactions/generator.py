"""Clients who are drawn: card transactions with a known chance of default.

A client goes through regimes, calm, strained and distressed, which are a Markov chain and show a little in its events.
The chance of default grows with recent distress, with loans that were not paid back to the same lender, and where
salaries stopped. Clients also pay other lenders, so that which loans are open takes matching a payment with a loan that
may be hundreds of events earlier. Later clients are more often in distress, and pay more.

Shapes: B clients, N events.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from nystromformer.files.writing import NewFile, write_text
from nystromformer.tasks.transactions.store import DAY

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
EVENTS, CLIENTS = "events", "clients.csv"
KINDS = ("purchase", "cash", "transfer", "salary", "bill", "fee", "loan", "repayment")
PURCHASE, CASH, TRANSFER, SALARY, BILL, FEE, LOAN, REPAYMENT = range(len(KINDS))
CHANNELS, STATUSES = ("chip", "contactless", "online", "atm"), ("approved", "declined", "reversed")
COUNTRIES = ("AT", "CH", "CZ", "DE", "ES", "FR", "GB", "IT", "NL", "PL", "TR", "US")
CURRENCIES, CARDS = ("EUR", "USD", "GBP", "CHF", "PLN", "CZK"), ("main", "second", "virtual")
DEVICES = ("card", "phone", "watch", "browser")
_KIND_CHANCES = np.array(
    [
        # purchase, cash, transfer, salary, bill, fee: of calm, strained and distressed clients
        [0.74, 0.06, 0.10, 0.0, 0.09, 0.01],
        [0.68, 0.11, 0.11, 0.0, 0.08, 0.02],
        [0.58, 0.20, 0.12, 0.0, 0.06, 0.04],
    ]
)
_BATCH = 512
"""Clients drawn at a time; a part of what is drawn, as the seed is."""
_STREAM = 43
_FIRST_DAY = int(datetime(2022, 1, 1, tzinfo=UTC).timestamp()) // DAY
_LAST_DAY = 900
"""Days after the first from which, for half of the clients each, labels are asked for on one of 365 days."""
_MERCHANTS, _LENDERS, _BRANCHES = 2000, 30, 24
"""Lenders are the first merchants."""
_DRIFT = 0.35
"""How much likelier worse regimes are, and larger amounts, at the end of the year."""
_SPREAD = 0.35
"""Of the logarithms of clients' numbers of events, which are normal."""


@dataclass(frozen=True)
class World:
    """What decides what is drawn, beside the seed and how many clients."""

    mean_length: int = 350
    """Events of a client, in the mean."""
    most_events: int = 4096
    events_per_day: float = 2.0
    intercept: float = -4.4
    """Log-odds of default of a calm client without open loans."""
    of_loan: float = 1.6
    """What each loan that was not paid back adds, three at most."""


def draw_clients(world: World, clients: int, seed: int, out: Path) -> None:
    """Write `events/part-00000.parquet` and on, a row an event, and `clients.csv`: client, date, default, truth."""
    lines = ["client,date,default,truth"]
    for number, start in enumerate(range(0, clients, _BATCH)):
        random = np.random.default_rng([_STREAM, seed, number])
        columns, drawn = _draw_batch(world, min(_BATCH, clients - start), start, random)
        buffer = io.BytesIO()
        parquet.write_table(pa.table(columns), buffer, compression="zstd")
        with NewFile(out / EVENTS / f"part-{number:05d}.parquet") as file:
            file.write(buffer.getvalue())
        lines += drawn
    write_text(out / CLIENTS, "".join(f"{line}\r\n" for line in lines))


def _draw_batch(world: World, count: int, first: int, random: np.random.Generator) -> tuple[dict[str, Any], list[str]]:
    """Columns of events, and lines of clients."""
    lengths = np.exp(random.normal(0, _SPREAD, count)) * world.mean_length
    lengths_B = np.clip(lengths / np.exp(_SPREAD**2 / 2), 8, world.most_events).astype(np.int64)
    age_BN = lengths_B[:, None] - 1 - np.arange(lengths_B.max())
    valid_BN = age_BN >= 0
    # The first half is asked in the year before the last day, the second one in the year after it.
    asked_B = _LAST_DAY - 365 * (random.random(count) < 0.5) + random.integers(0, 365, count)
    lateness_B = np.clip((asked_B - _LAST_DAY + 365) / 730, 0, 1) * _DRIFT
    times_BN = _times(world, lengths_B, asked_B, valid_BN, random)
    regime_BN = _regimes(valid_BN.shape[1], lateness_B, random)
    kind_BN, merchant_BN, unpaid_BN, stopped_B = _what_happens(lengths_B, times_BN, regime_BN, random)
    weight_BN = np.where(valid_BN, 0.5 ** (age_BN / 60.0), 0.0)  # after 60 events distress counts half
    distress_B = (weight_BN * regime_BN / 2).sum(1) / weight_BN.sum(1)
    logit_B = world.intercept + 2.5 * distress_B + 1.6 * stopped_B
    logit_B = logit_B + world.of_loan * np.minimum(unpaid_BN.sum(1), 3)
    truth_B = 1 / (1 + np.exp(-logit_B))
    default_B = (random.random(count) < truth_B).astype(np.int64)
    columns = _columns(lateness_B, times_BN, regime_BN, kind_BN, merchant_BN, random)
    names = [f"c{first + number:07d}" for number in range(count)]
    flat = {"client": np.repeat(names, lengths_B)} | {name: values[valid_BN] for name, values in columns.items()}
    dates = ((asked_B + _FIRST_DAY) * DAY).astype("datetime64[s]").astype("datetime64[D]").astype(str)
    drawn = zip(names, dates.tolist(), default_B.tolist(), truth_B.tolist(), strict=True)
    return flat, [f"{name},{date},{default},{truth:.6f}" for name, date, default, truth in drawn]


def _times(
    world: World, lengths_B: Ints, asked_B: Ints, valid_BN: NDArray[np.bool_], random: np.random.Generator
) -> Floats:
    """Seconds since 1970, ascending: more on Fridays and Saturdays and on the first days of a month, by day."""
    days = np.arange(_LAST_DAY + 365)
    weekday, of_month = (days + _FIRST_DAY + 3) % 7, days % 30.4
    density = 1 + 0.4 * np.isin(weekday, (4, 5)) + 0.5 * (of_month < 4)
    before = np.concatenate([[0.0], np.cumsum(density)])
    spans_B = np.minimum(lengths_B / world.events_per_day, asked_B - 1)
    ends_B, begins_B = (np.interp(each, np.arange(len(before)), before) for each in (asked_B, asked_B - spans_B))
    drawn_BN = random.random(valid_BN.shape) * (ends_B - begins_B)[:, None] + begins_B[:, None]
    day_BN = np.floor(np.interp(drawn_BN, before, np.arange(len(before))))
    # Two peaks of a day, at noon and in the evening.
    hour_BN = random.normal(np.where(random.random(valid_BN.shape) < 0.45, 12.5, 18.5), 2.5) % 24
    seconds_BN = np.floor((day_BN + _FIRST_DAY) * DAY + hour_BN * 3600)
    seconds_BN = np.minimum(seconds_BN, (asked_B[:, None] + _FIRST_DAY) * DAY - 1)
    sorted_BN: Floats = np.sort(np.where(valid_BN, seconds_BN, np.inf), axis=1)
    return np.where(valid_BN, sorted_BN, 0.0)


def _regimes(longest: int, lateness_B: Floats, random: np.random.Generator) -> Ints:
    """The chain of each client, which begins calm; (B, N)."""
    own_B = np.exp(random.normal(0, 0.8, len(lateness_B))) * (1 + lateness_B)
    worse_B3 = np.stack([0.004 * own_B, 0.008 * own_B, np.zeros(len(own_B))], 1)
    better_3 = np.array([0.0, 0.02, 0.02])
    drawn_BN = random.random((len(own_B), longest))
    regime_BN = np.zeros((len(own_B), longest), dtype=np.int64)
    now_B = np.zeros(len(own_B), dtype=np.int64)
    for event, drawn_B in enumerate(drawn_BN.T):
        chance_B = worse_B3[np.arange(len(own_B)), now_B]
        now_B = now_B + (drawn_B < chance_B) - ((drawn_B >= chance_B) & (drawn_B < chance_B + better_3[now_B]))
        regime_BN[:, event] = now_B
    return regime_BN


def _what_happens(
    lengths_B: Ints, times_BN: Floats, regime_BN: Ints, random: np.random.Generator
) -> tuple[Ints, Ints, NDArray[np.bool_], NDArray[np.bool_]]:
    """Kinds and merchants of events, which loans were not paid back, and whose salary has stopped."""
    (rows, longest), lengths_B1 = regime_BN.shape, lengths_B[:, None]
    chances = np.cumsum(_KIND_CHANCES, axis=1)
    kind_BN: Ints = (random.random((rows, longest, 1)) > chances[regime_BN]).sum(2).clip(max=FEE)
    # Few merchants have most of the purchases.
    merchant_BN = _LENDERS + random.zipf(1.3, (rows, longest)) % (_MERCHANTS - _LENDERS)
    valid_BN = np.arange(longest) < lengths_B1
    pays_BN = random.random((rows, longest)) < 1.4 * np.exp(random.normal(0, 0.8, (rows, 1))) / lengths_B1
    kind_BN = np.where(pays_BN, REPAYMENT, kind_BN)
    # Salaries come on the first event after the 5th and the 20th of a month of 30 days.
    period_BN = np.floor(times_BN / DAY / 15.2).astype(np.int64)
    is_first_BN = np.concatenate([np.zeros((rows, 1), bool), np.diff(period_BN, axis=1) > 0], 1) & valid_BN
    stops_B = random.random(rows) < 0.12
    kept_B = np.where(stops_B, random.uniform(0.5, 0.85, rows), 2.0) * lengths_B
    kind_BN = np.where(is_first_BN & (np.arange(longest) < kept_B[:, None]), SALARY, kind_BN)
    lends_BN = (random.random((rows, longest)) < 1.75 / lengths_B1) & valid_BN & (kind_BN != SALARY)
    kind_BN[lends_BN] = LOAN
    # Each client borrows from some lenders, of whom there are few, and pays the others.
    half = _LENDERS // 2
    turn_B1 = random.integers(0, _LENDERS, (rows, 1))
    lender_BN = (turn_B1 + random.integers(0, half, (rows, longest))) % _LENDERS
    other_BN = (turn_B1 + half + random.integers(0, half, (rows, longest))) % _LENDERS
    merchant_BN = np.where(lends_BN, lender_BN, np.where(kind_BN == REPAYMENT, other_BN, merchant_BN))
    # By the regime in which it was taken, and within 70 % of the client's events.
    is_paid_BN = lends_BN & (random.random((rows, longest)) < np.array([0.65, 0.6, 0.55])[regime_BN])
    later_BN = 1 + (random.random((rows, longest)) * 0.7 * lengths_B1).astype(np.int64)
    unpaid_BN = lends_BN & ~is_paid_BN
    for client, event in np.argwhere(is_paid_BN).tolist():
        when = event + int(later_BN[client, event])
        # Another loan's event, or one that is not reached: the loan is still open.
        if when >= lengths_B[client] or kind_BN[client, when] in (LOAN, REPAYMENT):
            unpaid_BN[client, event] = True
            continue
        kind_BN[client, when], merchant_BN[client, when] = REPAYMENT, merchant_BN[client, event]
    last_B = np.where((kind_BN == SALARY) & valid_BN, times_BN, 0).max(1)
    return kind_BN, merchant_BN, unpaid_BN, times_BN.max(1) - last_B > 40 * DAY


def _columns(
    lateness_B: Floats,
    times_BN: Floats,
    regime_BN: Ints,
    kind_BN: Ints,
    merchant_BN: Ints,
    random: np.random.Generator,
) -> dict[str, NDArray[Any]]:
    """What is seen of events, (B, N) each: ten categories and ten numbers beside the time."""
    shape = regime_BN.shape
    branch_BN = np.where(merchant_BN < _LENDERS, _BRANCHES, merchant_BN * 7919 % _BRANCHES)
    is_cash = kind_BN == CASH
    channel_BN = np.where(is_cash, 3, random.integers(0, 3, shape))
    declined = random.random(shape) < np.array([0.01, 0.03, 0.06])[regime_BN]
    status_BN = np.where(declined, 1, np.where(random.random(shape) < 0.005, 2, 0))
    abroad = random.random(shape) < 0.06
    home_B1 = random.integers(0, len(COUNTRIES), (shape[0], 1))
    country_BN = np.where(abroad, random.integers(0, len(COUNTRIES), shape), home_B1)
    means = np.array([3.2, 4.2, 4.6, 7.6, 4.8, 1.6, 6.2, 5.4])
    own_B1 = random.normal(0, 0.4, (shape[0], 1)) + np.log1p(lateness_B)[:, None]
    amount_BN = np.exp(means[kind_BN] + own_B1 * (kind_BN != FEE) + random.normal(0, 0.7, shape)).round(2)
    income_BN = np.isin(kind_BN, (SALARY, LOAN))
    flow_BN = np.where(income_BN, amount_BN, -amount_BN) * (status_BN == 0)
    balance_BN = np.cumsum(flow_BN, axis=1) * 0.05 + np.exp(7 + own_B1) * np.array([1.0, 0.8, 0.6])[regime_BN]

    def texts(numbers_BN: Ints, words: tuple[str, ...] | str) -> NDArray[Any]:
        return np.array(words)[numbers_BN] if isinstance(words, tuple) else np.char.add(words, numbers_BN.astype(str))

    return {
        "time": times_BN.astype("datetime64[s]"),
        "kind": texts(kind_BN, KINDS),
        "branch": texts(branch_BN, "b"),
        "merchant": texts(merchant_BN, "m"),
        "channel": texts(channel_BN, CHANNELS),
        "status": texts(status_BN, STATUSES),
        "country": texts(country_BN, COUNTRIES),
        "currency": texts(country_BN % len(CURRENCIES), CURRENCIES),
        "card": texts(random.integers(0, 3, shape), CARDS),
        "device": texts(random.integers(0, 4, shape), DEVICES),
        "terminal": texts(merchant_BN * 31 % 50, "t"),
        "amount": amount_BN,
        "balance": balance_BN.round(2),
        "fee": np.where(is_cash, 0.02 * amount_BN, 0.0).round(2),
        "rate": np.where(abroad, random.normal(1.1, 0.1, shape), 1.0).round(4),
        "distance": np.where(abroad, random.exponential(900, shape), random.exponential(8, shape)).round(1),
        "instalments": np.where(random.random(shape) < 0.05, random.integers(2, 13, shape), 1).astype(np.float64),
        "limit_used": np.clip(random.normal(np.array([0.4, 0.45, 0.5])[regime_BN], 0.2), 0, 1).round(3),
        "cashback": (0.005 * amount_BN * (kind_BN == PURCHASE)).round(2),
        "points": np.floor(amount_BN / 10) * (kind_BN == PURCHASE),
        "queue": random.exponential(30, shape).round(1),
    }
