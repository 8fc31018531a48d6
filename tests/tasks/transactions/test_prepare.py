"""Tables of clients' events as prepared folders: the same from every layout, fitted on training clients, or refused."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from clients import PREPARE, flags_of, prepare_drawn, run

from nystromformer.tasks.transactions.store import SPLITS, UNKNOWN, Stored, open_stored

REAL = os.environ.get("NYSTROM_DATA")


def events_of(drawn: Path) -> pd.DataFrame:
    return pd.read_parquet(drawn / "events")


def written(folder: Path, events: pd.DataFrame, clients: pd.DataFrame) -> Path:
    """Tables as `flags_of` names them."""
    (folder / "events").mkdir(parents=True)
    events.to_parquet(folder / "events" / "part.parquet")
    clients.to_csv(folder / "clients.csv", index=False)
    return folder


def arrays(stored: Stored) -> dict[str, list[Any]]:
    """What a folder says, whatever the order in which values were met."""
    manifest = stored.manifest
    values = {
        each.name: [each.values[code] if code >= 0 else None for code in stored.categories[:, column].tolist()]
        for column, each in enumerate(manifest.categories)
    }
    numbers = {each.name: stored.numbers[:, column] for column, each in enumerate(manifest.numbers)}
    shown = {name: [None if np.isnan(value) else float(value) for value in found] for name, found in numbers.items()}
    return values | shown | {"ends": stored.ends.tolist(), "labels": stored.labels.tolist(), "names": stored.names()}


def test_every_layout_gives_the_same_events(drawn: Path, stored: Stored, tmp_path: Path) -> None:
    events, clients = events_of(drawn), pd.read_csv(drawn / "clients.csv")
    expected = arrays(stored)
    text = tmp_path / "text"
    text.mkdir()
    events.to_csv(text / "events.csv", index=False)
    shutil.copyfile(drawn / "clients.csv", text / "clients.csv")
    flags = [str(text / "events.csv") if flag == str(drawn / "events") else flag for flag in flags_of(drawn)]
    # In text, whole numbers of few different values may be codes.
    assert run(PREPARE, *flags, "--numerical", "instalments,points", "--out", tmp_path / "a") == 0
    assert arrays(open_stored(tmp_path / "a")) == expected
    shuffled = events.sample(frac=1, random_state=0)
    first = shuffled.groupby("client").head(1).sort_values("client")
    apart = written(tmp_path / "apart", pd.concat([first, shuffled.drop(first.index)]), clients)
    prepare_drawn(apart, tmp_path / "c")
    assert arrays(open_stored(tmp_path / "c")) == expected, "in any order"
    lists = events.groupby("client", sort=False).agg(list).reset_index().merge(clients, on="client")
    lists.to_parquet(tmp_path / "nested.parquet")
    named = ["--client", "client", "--time", "time", "--target", "default", "--date", "date"]
    assert run(PREPARE, "nested", "--events", tmp_path / "nested.parquet", *named, "--out", tmp_path / "b") == 0
    assert arrays(open_stored(tmp_path / "b")) == expected


CODES = np.arange(1700) % 3 + 5411
WAYS: dict[str, tuple[str, pd.Series, bool]] = {
    "whole numbers of CSV": ("csv", pd.Series(CODES), True),
    "as pandas writes them": ("csv", pd.Series(CODES, dtype=float), True),
    "some of them missing": ("csv", pd.Series(CODES, dtype=float).where(CODES > 5411), True),
    "of Parquet": ("parquet", pd.Series(CODES), True),
    "of Parquet, some missing": ("parquet", pd.Series(CODES, dtype=float).where(CODES > 5411), True),
    "numbers with a fraction": ("csv", pd.Series(CODES + 0.5 * (CODES == 5412)), False),
    "floating numbers of Parquet": ("parquet", pd.Series(CODES, dtype=float), False),
    "many different ones": ("csv", pd.Series(np.arange(1700) % 300, dtype=float), False),
}


@pytest.mark.parametrize("name", WAYS)
def test_codes_are_categories_however_they_are_written(name: str, drawn: Path, tmp_path: Path) -> None:
    """5411 is 5411.0 where pandas had a missing cell; and so are the names of clients. A cell may hold a line break."""
    ending, codes, is_category = WAYS[name]
    events, clients = events_of(drawn)[["client", "time", "amount"]], pd.read_csv(drawn / "clients.csv")
    numbers = {client: number for number, client in enumerate(clients["client"])}
    for table in (events, clients):
        table["client"] = table["client"].map(numbers)
    assert len(events) <= len(codes)
    events["code"], events["note"] = codes[: len(events)].to_numpy(), "two\nlines"
    place, named = tmp_path / f"events.{ending}", ["--client", "client", "--time", "time", "--target", "default"]
    if ending == "csv":
        events.astype({"client": float}).to_csv(place, index=False)
    else:
        events.to_parquet(place)
    clients.to_csv(tmp_path / "clients.csv", index=False)
    flags = ("--events", place, "--clients", tmp_path / "clients.csv", *named)
    assert run(PREPARE, "long", *flags, "--out", tmp_path / "data") == 0
    found = open_stored(tmp_path / "data")
    values = {each.name: each.values for each in found.manifest.categories}
    assert ("code" in values) == is_category
    assert ("code" in {each.name for each in found.manifest.numbers}) != is_category
    if is_category:
        assert set(values["code"]) == {str(int(code)) for code in set(codes.dropna())}
    assert (values["note"], found.names()) == (["two\nlines"], [str(number) for number in range(120)])


def test_nothing_is_fitted_on_other_than_training_clients(drawn: Path, stored: Stored, tmp_path: Path) -> None:
    """Other amounts and merchants of the tested clients change no vocabulary and no scale; a merchant that they alone
    have is unknown."""
    names = np.array(stored.names())
    others = names[np.concatenate([stored.clients_of(split) for split in SPLITS[1:]])]
    events, clients = events_of(drawn), pd.read_csv(drawn / "clients.csv")
    changed = events.copy()
    own = changed["client"].isin(others)
    changed.loc[own, "amount"] *= 1000
    changed.loc[own, "merchant"] = "of others alone"
    for name, table in (("before", events), ("after", changed)):
        prepare_drawn(written(tmp_path / name, table, clients), tmp_path / f"{name}-data")
    before, after = (open_stored(tmp_path / f"{name}-data").manifest for name in ("before", "after"))
    assert before.numbers == after.numbers
    known = [{v: i for v, i in zip(m.values, m.ids, strict=True) if i != UNKNOWN} for m in before.categories]
    assert known == [{v: i for v, i in zip(m.values, m.ids, strict=True) if i != UNKNOWN} for m in after.categories]
    merchant = next(each for each in after.categories if each.name == "merchant")
    assert merchant.ids[merchant.values.index("of others alone")] == UNKNOWN


def test_the_latest_clients_are_tested_on(drawn: Path, stored: Stored) -> None:
    dates = pd.read_csv(drawn / "clients.csv").set_index("client")["date"][stored.names()].to_numpy()
    split = {name: stored.clients_of(name) for name in SPLITS}
    assert len(split["test"]) == 24
    # As many of each label as among the others.
    early = np.concatenate([split["train"], split["validation"]])
    for label in (0, 1):
        assert (stored.labels[split["validation"]] == label).sum() == round(0.1 * (stored.labels[early] == label).sum())
    earlier = dates[np.concatenate([split["train"], split["validation"]])]
    assert dates[split["test"]].min() >= earlier.max()
    assert sorted(np.concatenate(list(split.values())).tolist()) == list(range(120))


def test_what_is_left_out_is_said(
    drawn: Path, stored: Stored, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clients without a label, and events after a client's date, however the events are laid out and ordered."""
    events, clients = events_of(drawn), pd.read_csv(drawn / "clients.csv")
    changed = clients.assign(date=clients["date"].where(clients.index != 5, "2000-01-01")).iloc[4:]
    expected = written(tmp_path / "e", events[events["client"].isin(changed["client"])], changed)
    prepare_drawn(expected, tmp_path / "expected")
    newest = events.groupby("client").tail(1).assign(time=pd.Timestamp("2025-12-30"))
    more = pd.concat([events, newest]).sample(frac=1, random_state=0).sort_values("client", kind="stable")
    changed = pd.concat([changed, clients.iloc[:2].assign(default=None), clients.iloc[3:4].assign(client="nobody")])
    table, rows = written(tmp_path / "t", more, changed), tmp_path / "rows.parquet"
    more.groupby("client").agg(list).reset_index().merge(changed, on="client").to_parquet(rows)
    prepare_drawn(table, tmp_path / "long")
    assert run(PREPARE, "nested", "--events", rows, *flags_of(table)[5:], "--out", tmp_path / "nested") == 0
    found = [open_stored(tmp_path / name) for name in ("expected", "long", "nested")]
    assert arrays(found[0]) == arrays(found[1]) == arrays(found[2])
    late = 116 + (events["client"] == "c0000005").sum()
    assert found[1].manifest.notes == [
        "4 clients without a label left out",
        f"{late} events after its client's date left out",
        "2 clients without events left out",
    ]
    assert "4 clients without a label left out" in capsys.readouterr().out


BAD: dict[str, tuple[Callable[[pd.DataFrame, pd.DataFrame], Any], str]] = {
    "label among the events": (lambda e, c: (e.merge(c[["client", "default"]]), c), "column default: also a column of"),
    "numbers beside texts": (
        lambda e, c: (e.assign(amount=e["amount"].astype(str).where(e.index % 9 > 0, "NA")), c),
        "has numbers as or beside texts, such as",
    ),
    "ids of events": (
        lambda e, c: (e.assign(id=[f"t{number}" for number in range(len(e))]), c),
        "nearly all of its values differ",
    ),
    "an empty column": (lambda e, c: (e.assign(note=None), c), "column note: has 0 values of type"),
    "only later events": (
        lambda e, c: (e, c.assign(date="2000-01-01")),
        "expected events of clients with a label, found none",
    ),
    "too large": (lambda e, c: (e.assign(amount=1e300), c), "amount: expected numbers up to 3e38"),
    "no column": (lambda e, c: (e.drop(columns="time"), c), "expected the columns time, found none of that name"),
    "no time": (
        lambda e, c: (e.assign(time=e["time"].astype(str).where(np.arange(len(e)) != 5, "2024-13-45")), c),
        "time: expected timestamp[us]: Failed to parse string: '2024-13-45'",
    ),
    "another label": (lambda e, c: (e, c.assign(default=2)), "default: expected 0, 1 or nothing, found 2"),
    "twice": (lambda e, c: (e, pd.concat([c, c.iloc[:1]])), "expected one row of each client"),
    "empty cell": (
        lambda e, c: (e.assign(client=None), c),
        "client: expected a value in each row, found an empty",
    ),
    "no date": (lambda e, c: (e, c.assign(date="soon")), "date: expected a date such as 2026-01-31, found 'soon'"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_no_model_should_learn_from(
    name: str, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, expected = BAD[name]
    table = written(tmp_path / "t", *change(events_of(drawn), pd.read_csv(drawn / "clients.csv")))
    assert run(PREPARE, *flags_of(table), "--out", tmp_path / "data") == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert expected in " ".join(said.split())
    assert not (tmp_path / "data").exists()


def test_a_file_without_a_column_of_the_others(drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = events_of(drawn)
    table = written(tmp_path / "t", events, pd.read_csv(drawn / "clients.csv"))
    events.drop(columns="amount").to_parquet(table / "events" / "second.parquet")
    assert run(PREPARE, *flags_of(table), "--out", tmp_path / "data") == 2
    assert "part.parquet, found others: amount" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--numerical amount:cubed", "expected scale or log, found cubed"),
        ("--categorical amuont", "expected the columns amuont, found none"),
        ("--ignore amount --categorical amount", "amount: expected each column in only one of the flags"),
        ("--out_of_time 0.9 --validation 0.01", "expected clients of both labels, 0 and 1, in validation, found none"),
        ("--split date --validation 0.3", "--split: expected no --out_of_time"),
    ],
)
def test_bad_flags(flags: str, expected: str, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(PREPARE, *flags_of(drawn), "--out", tmp_path / "data", *flags.split()) == 2
    assert expected in " ".join(capsys.readouterr().err.split())


def test_dates_of_a_csv_file_need_not_look_like_the_first(drawn: Path, stored: Stored, tmp_path: Path) -> None:
    """Whole days may be followed by times, and by fractions of seconds."""
    events, clients = events_of(drawn), pd.read_csv(drawn / "clients.csv")
    first, second = (events["client"].isin(clients["client"][number : number + 1]) for number in (0, 1))
    form = np.select([first, second], ["%Y-%m-%d", "%Y-%m-%d %H:%M"], "%Y-%m-%d %H:%M:%S.%f")
    events["time"] = [time.strftime(one) for time, one in zip(events["time"], form, strict=True)]
    clients.to_csv(tmp_path / "clients.csv", index=False)
    events.to_csv(tmp_path / "events.csv", index=False)
    flags = ("long", "--events", tmp_path / "events.csv", "--clients", tmp_path / "clients.csv", *flags_of(drawn)[5:])
    assert run(PREPARE, *flags, "--numerical", "instalments,points", "--out", tmp_path / "data") == 0
    kept = ~(first | second).to_numpy()
    assert np.array_equal(open_stored(tmp_path / "data").numbers[kept], stored.numbers[kept], equal_nan=True)


def test_times_that_are_numbers(drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Dates of clients are numbers, too."""
    events, clients = events_of(drawn), pd.read_csv(drawn / "clients.csv")
    events["time"] = (events["time"] - pd.Timestamp("2022-01-01")) / pd.Timedelta(days=1)
    clients["date"] = events.groupby("client")["time"].max()[clients["client"]].to_numpy()
    table = written(tmp_path / "t", events, clients)
    prepare_drawn(table, tmp_path / "data")
    stored = open_stored(tmp_path / "data")
    assert stored.numbers[1, -1] == pytest.approx(events["time"].iloc[1] - events["time"].iloc[0], rel=1e-5)
    assert stored.manifest.notes == []
    prepare_drawn(drawn, tmp_path / "dates")
    like = ("--like", tmp_path / "dates", "--out", tmp_path / "others")
    assert run(PREPARE, "new", "--events", table / "events", *like) == 2
    assert "time: expected dates, as in" in capsys.readouterr().err


def test_clients_may_be_divided_by_a_column(drawn: Path, tmp_path: Path) -> None:
    clients = pd.read_csv(drawn / "clients.csv")
    clients["part"] = [SPLITS[number % 3] for number in range(len(clients))]
    prepare_drawn(written(tmp_path / "t", events_of(drawn), clients), tmp_path / "data", "--split", "part")
    stored = open_stored(tmp_path / "data")
    for number, split in enumerate(SPLITS):
        assert stored.clients_of(split).tolist() == list(range(number, 120, 3))


TABFORMER = (
    "User,Card,Year,Month,Day,Time,Amount,Use Chip,Merchant Name,Merchant City,Merchant State,Zip,MCC,Errors?,Is Fraud?"
)
SPARKOV = (
    "ssn|cc_num|first|gender|state|lat|long|city_pop|job|unix_time|category|amt|is_fraud|merchant|merch_lat|merch_long"
)


def test_tabformers_columns(tmp_path: Path) -> None:
    lines = [
        f'{user},{card},2002,9,{day},06:{day:02},"$1,{day}34.09",Swipe Transaction,352{user},La Verne,CA,91750.0,5300,,'
        f"{'Yes' if user % 3 == 0 and day == 2 else 'No'}"
        for user in range(40)
        for card in range(2)
        for day in range(1, 4)
    ]
    (tmp_path / "card_transaction.v1.csv").write_text("\n".join([TABFORMER, *lines]))
    place = ("--source", tmp_path / "card_transaction.v1.csv", "--out", tmp_path / "data")
    assert run(PREPARE, "tabformer", *place, "--out_of_time", 0.3, "--validation", 0.3) == 0
    stored = open_stored(tmp_path / "data")
    assert stored.names()[:3] == ["0-0", "0-1", "1-0"]
    assert stored.labels.tolist() == [int(user % 3 == 0) for user in range(40) for _ in range(2)]
    assert stored.numbers[:3, 0].tolist() == [np.float32(1000 * 1 + 100 * day + 34.09) for day in (1, 2, 3)]
    assert stored.numbers[1:3, 1].tolist() == [86_460.0, 86_460.0]
    assert "Is Fraud?" not in {each.name for each in stored.manifest.categories}


def test_sparkovs_columns_sorted_by_time(tmp_path: Path) -> None:
    lines = [
        f"1|{card}|A|F|CA|33.1|-117.2|5000|nurse|{1_500_000_000 - 60 * event}|grocery|{10 + event}.5|"
        f"{int(card % 3 == 0 and event == 1)}|fraud_Kilback|33.0|-117.0"
        for card in range(60)
        for event in range(3)
    ]
    (tmp_path / "generated").mkdir()
    (tmp_path / "generated" / "adults.csv").write_text("\n".join([SPARKOV, *lines]))
    (tmp_path / "generated" / "customers.csv").write_text("ssn|cc_num|first\n1|2|A")
    flags = ("--out_of_time", 0.3, "--validation", 0.3)
    assert run(PREPARE, "sparkov", "--source", tmp_path / "generated", "--out", tmp_path / "data", *flags) == 0
    stored = open_stored(tmp_path / "data")
    assert stored.labels.tolist() == [int(card % 3 == 0) for card in range(60)]
    amounts = [each.name for each in stored.manifest.numbers].index("amt")
    assert stored.numbers[:3, amounts].tolist() == [12.5, 11.5, 10.5]
    assert {"time.hour", "time.weekday"} <= {each.name for each in stored.manifest.categories}


@pytest.mark.skipif(REAL is None, reason="NYSTROM_DATA names no folder")
def test_ucis_clients(tmp_path: Path) -> None:
    assert REAL is not None
    source = Path(REAL) / "uci_credit_default" / "UCI_Credit_Card.csv"
    assert run(PREPARE, "uci", "--source", source, "--out", tmp_path / "data") == 0
    stored, table = open_stored(tmp_path / "data"), pd.read_csv(source)
    assert len(stored.ends) == len(table)
    assert set(stored.lengths.tolist()) == {6}
    assert stored.labels.tolist() == table["Y"].tolist()
    names = [each.name for each in stored.manifest.numbers]
    bills = stored.numbers[:, names.index("bill")].reshape(-1, 6)
    assert np.array_equal(bills[:, ::-1], table[[f"X{number}" for number in range(12, 18)]].to_numpy(np.float32))
    status = next(each for each in stored.manifest.categories if each.name == "status")
    column = [each.name for each in stored.manifest.categories].index("status")
    newest = [status.values[code] for code in stored.categories[5::6, column].tolist()]
    assert newest == table["X6"].astype(str).tolist()
