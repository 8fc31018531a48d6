"""Clients who are drawn: card transactions with a known chance of default.

A client goes through regimes, calm, strained and distressed, which follow a Markov chain from event to event and show
a little in what is bought, where cash is drawn, what is declined, and how much of the limit is used. The chance of
default grows with distress that is recent, with loans that were not paid back to the same lender, and where salaries
stopped. Clients also pay other lenders, to whom they owe nothing that is seen, so that the number of payments does not
tell which loans are open: that takes matching a payment with a loan that may be hundreds of events earlier. A logistic
regression on counts and recent means reaches a Gini of 59 %, with the number of open loans 68, the true chances 70
(3,072 clients).

Regimes are not seen, so that the Gini of the true chances is a bound that no model need reach. Later clients are more
often in distress, and pay more: that is the drift of the out-of-time split.

Shapes: B clients, N events.
"""

from __future__ import annotations

import csv
import importlib
import io
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.files.writing import NewFile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
EVENTS, CLIENTS = "events", "clients.csv"
CALM, STRAINED, DISTRESSED = range(3)
KINDS = ("purchase", "cash", "transfer", "salary", "bill", "fee", "loan", "repayment")
PURCHASE, CASH, TRANSFER, SALARY, BILL, FEE, LOAN, REPAYMENT = range(len(KINDS))
CHANNELS, STATUSES = ("chip", "contactless", "online", "atm"), ("approved", "declined", "reversed")
COUNTRIES = ("AT", "CH", "CZ", "DE", "ES", "FR", "GB", "IT", "NL", "PL", "TR", "US")
CURRENCIES, CARDS = ("EUR", "USD", "GBP", "CHF", "PLN", "CZK"), ("main", "second", "virtual")
DEVICES = ("card", "phone", "watch", "browser")
_BATCH = 512
"""Clients drawn at a time; a part of what is drawn, as the seed is."""
_STREAM = 43
_DAY = 86_400
_FIRST_DAY = int(datetime(2022, 1, 1, tzinfo=UTC).timestamp()) // _DAY


@dataclass(frozen=True)
class World:
    """All that decides what is drawn, but for the seed and how many clients."""

    mean_length: int = 350
    """Events of a client, in the mean; their logarithms are normal."""
    length_spread: float = 0.35
    most_events: int = 4096
    events_per_day: float = 2.0
    merchants: int = 2000
    lenders: int = 30
    """Merchants who lend: the first ones."""
    branches: int = 24
    last_day: int = 900
    """Days after 2022-01-01 from which, for half of the clients each, labels are asked for on one of 365 days."""
    worsens: tuple[float, float] = (0.004, 0.008)
    """Chance of an event that calm becomes strained, strained distressed; times each client's own factor."""
    recovers: tuple[float, float] = (0.02, 0.02)
    lends: tuple[float, float, float] = (1.75, 1.75, 1.75)
    """Loans of a client in the mean, whatever its number of events, were it always in one regime."""
    repays: tuple[float, float, float] = (0.65, 0.6, 0.55)
    """Chance that a loan is paid back, by the regime in which it was taken."""
    repaid_within: float = 0.7
    """Share of a client's events, after the loan."""
    pays_others: float = 1.4
    """Payments to other lenders of a client, times each client's own factor."""
    salary_days: float = 40.0
    """Days without a salary after which it has stopped."""
    salary_stops: float = 0.12
    """Share of clients whose salary stops at some time."""
    half_life: float = 60.0
    """Events after which distress counts half."""
    intercept: float = -4.4
    of_distress: float = 2.5
    of_loan: float = 1.6
    """For each loan that was not paid back, three at most."""
    of_salary: float = 1.6
    drift: float = 0.35
    """How much likelier worse regimes are, and larger amounts, at the end of the year."""


def draw_clients(world: World, clients: int, seed: int, out: Path) -> None:
    """Write `events/part-00000.parquet` and on, a row an event, and `clients.csv`: client, date, default, truth.

    Raises:
        UserError: a file cannot be written.
    """
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    rows: list[tuple[str, str, int, str]] = []
    for number, start in enumerate(range(0, clients, _BATCH)):
        random = np.random.default_rng([_STREAM, seed, number])
        columns, drawn = _draw_batch(world, min(_BATCH, clients - start), start, random)
        buffer = io.BytesIO()
        parquet.write_table(arrow.table(columns), buffer, compression="zstd")
        with NewFile(out / EVENTS / f"part-{number:05d}.parquet") as file:
            file.write(buffer.getvalue())
        rows += drawn
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("client", "date", "default", "truth"))
    writer.writerows(rows)
    with NewFile(out / CLIENTS) as file:
        file.write(text.getvalue().encode())


def _draw_batch(
    world: World, count: int, first: int, random: np.random.Generator
) -> tuple[dict[str, Any], list[tuple[str, str, int, str]]]:
    """Columns of events, and rows of clients."""
    lengths = np.exp(random.normal(0, world.length_spread, count)) * world.mean_length
    lengths = np.clip(lengths / np.exp(world.length_spread**2 / 2), 8, world.most_events).astype(np.int64)
    longest = int(lengths.max())
    valid_BN = np.arange(longest) < lengths[:, None]
    # The first half is asked in the year before last_day, the second one in the year after it.
    asked_days = world.last_day - 365 * (random.random(count) < 0.5) + random.integers(0, 365, count)
    lateness = np.clip((asked_days - world.last_day + 365) / 730, 0, 1) * world.drift
    times_BN = _times(world, lengths, asked_days, valid_BN, random)
    regime_BN = _regimes(world, longest, lateness, random)
    kind_BN, merchant_BN, unpaid_BN, stopped_B = _what_happens(world, lengths, times_BN, regime_BN, random)
    age_BN = lengths[:, None] - 1 - np.arange(longest)
    weight_BN = np.where(valid_BN, 0.5 ** (age_BN / world.half_life), 0.0)
    distress_B = (weight_BN * regime_BN / 2).sum(1) / weight_BN.sum(1)
    logit_B = world.intercept + world.of_distress * distress_B + world.of_salary * stopped_B
    logit_B = logit_B + world.of_loan * np.minimum(unpaid_BN.sum(1), 3)
    truth_B = 1 / (1 + np.exp(-logit_B))
    default_B = (random.random(count) < truth_B).astype(np.int64)
    columns = _columns(world, lateness, times_BN, regime_BN, kind_BN, merchant_BN, random)
    names = [f"c{first + number:07d}" for number in range(count)]
    flat = {"client": np.repeat(names, lengths)} | {name: values[valid_BN] for name, values in columns.items()}
    dates = [_date(day) for day in asked_days.tolist()]
    truths = [f"{truth:.6f}" for truth in truth_B.tolist()]
    return flat, list(zip(names, dates, default_B.tolist(), truths, strict=True))


def _times(
    world: World, lengths: Ints, asked_days: Ints, valid_BN: NDArray[np.bool_], random: np.random.Generator
) -> Floats:
    """Seconds since 1970, ascending: more on Fridays and Saturdays and on the first days of a month, by day."""
    days = np.arange(world.last_day + 365)
    weekday, of_month = (days + _FIRST_DAY + 3) % 7, days % 30.4
    density = 1 + 0.4 * np.isin(weekday, (4, 5)) + 0.5 * (of_month < 4)
    before = np.concatenate([[0.0], np.cumsum(density)])
    spans = np.minimum(lengths / world.events_per_day, asked_days - 1)
    ends, begins = (np.interp(each, np.arange(len(before)), before) for each in (asked_days, asked_days - spans))
    drawn_BN = random.random(valid_BN.shape) * (ends - begins)[:, None] + begins[:, None]
    day_BN = np.floor(np.interp(drawn_BN, before, np.arange(len(before))))
    # Two peaks of a day, at noon and in the evening.
    hour_BN = random.normal(np.where(random.random(valid_BN.shape) < 0.45, 12.5, 18.5), 2.5) % 24
    seconds_BN = np.floor((day_BN + _FIRST_DAY) * _DAY + hour_BN * 3600)
    seconds_BN = np.minimum(seconds_BN, (asked_days[:, None] + _FIRST_DAY) * _DAY - 1)
    sorted_BN: Floats = np.sort(np.where(valid_BN, seconds_BN, np.inf), axis=1)
    return np.where(valid_BN, sorted_BN, 0.0)


def _regimes(world: World, longest: int, lateness: Floats, random: np.random.Generator) -> Ints:
    """The chain of each client, which begins calm; (B, N)."""
    own_B = np.exp(random.normal(0, 0.8, len(lateness))) * (1 + lateness)
    worse_B3 = np.stack([world.worsens[0] * own_B, world.worsens[1] * own_B, np.zeros(len(own_B))], 1)
    better_3 = np.array([0.0, *world.recovers])
    drawn_BN = random.random((len(own_B), longest))
    regime_BN = np.zeros((len(own_B), longest), dtype=np.int64)
    now_B = np.zeros(len(own_B), dtype=np.int64)
    clients = np.arange(len(own_B))
    for event in range(longest):
        chance_B = worse_B3[clients, now_B]
        drawn_B = drawn_BN[:, event]
        now_B = now_B + (drawn_B < chance_B) - ((drawn_B >= chance_B) & (drawn_B < chance_B + better_3[now_B]))
        regime_BN[:, event] = now_B
    return regime_BN


_KIND_CHANCES = np.array(
    [
        # purchase, cash, transfer, salary, bill, fee: of calm, strained and distressed clients
        [0.74, 0.06, 0.10, 0.0, 0.09, 0.01],
        [0.68, 0.11, 0.11, 0.0, 0.08, 0.02],
        [0.58, 0.20, 0.12, 0.0, 0.06, 0.04],
    ]
)


def _what_happens(
    world: World, lengths: Ints, times_BN: Floats, regime_BN: Ints, random: np.random.Generator
) -> tuple[Ints, Ints, NDArray[np.bool_], NDArray[np.bool_]]:
    """Kinds and merchants of events, which loans were not paid back, and whose salary has stopped."""
    rows, longest = regime_BN.shape
    chances = np.cumsum(_KIND_CHANCES, axis=1)
    kind_BN: Ints = (random.random((rows, longest, 1)) > chances[regime_BN]).sum(2).clip(max=FEE)
    # Few merchants have most of the purchases.
    ranks = random.zipf(1.3, (rows, longest)) % (world.merchants - world.lenders)
    merchant_BN = world.lenders + ranks
    valid_BN = np.arange(longest) < lengths[:, None]
    lengths_B1 = lengths[:, None]
    pays_BN = random.random((rows, longest)) < world.pays_others * np.exp(random.normal(0, 0.8, (rows, 1))) / lengths_B1
    kind_BN = np.where(pays_BN, REPAYMENT, kind_BN)
    # Salaries come on the first event after the 5th and the 20th of a month of 30 days.
    period_BN = np.floor(times_BN / _DAY / 15.2).astype(np.int64)
    is_first_BN = np.concatenate([np.zeros((rows, 1), bool), np.diff(period_BN, axis=1) > 0], 1) & valid_BN
    stops_B = random.random(rows) < world.salary_stops
    kept_B = np.where(stops_B, random.uniform(0.5, 0.85, rows), 2.0) * lengths
    kind_BN = np.where(is_first_BN & (np.arange(longest) < kept_B[:, None]), SALARY, kind_BN)
    lends_BN = (
        (random.random((rows, longest)) < np.array(world.lends)[regime_BN] / lengths_B1)
        & valid_BN
        & (kind_BN != SALARY)
    )
    kind_BN[lends_BN] = LOAN
    # Each client borrows from some lenders, of whom there are few, and pays the others.
    half = world.lenders // 2
    turn_B1 = random.integers(0, world.lenders, (rows, 1))
    lender_BN = (turn_B1 + random.integers(0, half, (rows, longest))) % world.lenders
    other_BN = (turn_B1 + half + random.integers(0, half, (rows, longest))) % world.lenders
    merchant_BN = np.where(lends_BN, lender_BN, np.where(kind_BN == REPAYMENT, other_BN, merchant_BN))
    is_paid_BN = lends_BN & (random.random((rows, longest)) < np.array(world.repays)[regime_BN])
    later_BN = 1 + (random.random((rows, longest)) * world.repaid_within * lengths_B1).astype(np.int64)
    unpaid_BN = lends_BN & ~is_paid_BN
    for client, event in np.argwhere(is_paid_BN).tolist():
        when = event + int(later_BN[client, event])
        # Another loan's event, or one that is not reached: the loan is still open.
        if when >= lengths[client] or kind_BN[client, when] in (LOAN, REPAYMENT):
            unpaid_BN[client, event] = True
            continue
        kind_BN[client, when], merchant_BN[client, when] = REPAYMENT, merchant_BN[client, event]
    last_B = np.where((kind_BN == SALARY) & valid_BN, times_BN, 0).max(1)
    stopped_B = times_BN.max(1) - last_B > world.salary_days * _DAY
    return kind_BN, merchant_BN, unpaid_BN, stopped_B


def _columns(
    world: World,
    lateness: Floats,
    times_BN: Floats,
    regime_BN: Ints,
    kind_BN: Ints,
    merchant_BN: Ints,
    random: np.random.Generator,
) -> dict[str, NDArray[Any]]:
    """What is seen of events, (B, N) each: ten categories and ten numbers beside the time."""
    shape = regime_BN.shape
    branch_BN = np.where(merchant_BN < world.lenders, world.branches, merchant_BN * 7919 % world.branches)
    is_cash = kind_BN == CASH
    channel_BN = np.where(is_cash, 3, random.integers(0, 3, shape))
    declined = random.random(shape) < np.array([0.01, 0.03, 0.06])[regime_BN]
    status_BN = np.where(declined, 1, np.where(random.random(shape) < 0.005, 2, 0))
    abroad = random.random(shape) < 0.06
    home_B1 = random.integers(0, len(COUNTRIES), (shape[0], 1))
    country_BN = np.where(abroad, random.integers(0, len(COUNTRIES), shape), home_B1)
    means = np.array([3.2, 4.2, 4.6, 7.6, 4.8, 1.6, 6.2, 5.4])
    own_B1 = random.normal(0, 0.4, (shape[0], 1)) + np.log1p(lateness)[:, None]
    amount_BN = np.exp(means[kind_BN] + own_B1 * (kind_BN != FEE) + random.normal(0, 0.7, shape)).round(2)
    income_BN = np.isin(kind_BN, (SALARY, LOAN))
    flow_BN = np.where(income_BN, amount_BN, -amount_BN) * (status_BN == 0)
    balance_BN = np.cumsum(flow_BN, axis=1) * 0.05 + np.exp(7 + own_B1) * np.array([1.0, 0.8, 0.6])[regime_BN]
    categories: dict[str, tuple[Ints, tuple[str, ...] | str]] = {
        "kind": (kind_BN, KINDS),
        "branch": (branch_BN, "b"),
        "merchant": (merchant_BN, "m"),
        "channel": (channel_BN, CHANNELS),
        "status": (status_BN, STATUSES),
        "country": (country_BN, COUNTRIES),
        "currency": (country_BN % len(CURRENCIES), CURRENCIES),
        "card": (random.integers(0, 3, shape), CARDS),
        "device": (random.integers(0, 4, shape), DEVICES),
        "terminal": (merchant_BN * 31 % 50, "t"),
    }
    texts = {
        name: np.array(words)[numbers] if isinstance(words, tuple) else np.char.add(words, numbers.astype(str))
        for name, (numbers, words) in categories.items()
    }
    fee_BN = np.where(is_cash, 0.02 * amount_BN, 0.0).round(2)
    return {
        "time": times_BN.astype("datetime64[s]"),
        **texts,
        "amount": amount_BN,
        "balance": balance_BN.round(2),
        "fee": fee_BN,
        "rate": np.where(abroad, random.normal(1.1, 0.1, shape), 1.0).round(4),
        "distance": np.where(abroad, random.exponential(900, shape), random.exponential(8, shape)).round(1),
        "instalments": np.where(random.random(shape) < 0.05, random.integers(2, 13, shape), 1).astype(np.float64),
        "limit_used": np.clip(random.normal(np.array([0.4, 0.45, 0.5])[regime_BN], 0.2), 0, 1).round(3),
        "cashback": (0.005 * amount_BN * (kind_BN == PURCHASE)).round(2),
        "points": np.floor(amount_BN / 10) * (kind_BN == PURCHASE),
        "queue": random.exponential(30, shape).round(1),
    }


def _date(day: int) -> str:
    return datetime.fromtimestamp((day + _FIRST_DAY) * _DAY, UTC).strftime("%Y-%m-%d")
