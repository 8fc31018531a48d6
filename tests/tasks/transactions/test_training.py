"""Clients' events to a model: batches, networks, runs."""

import csv
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from clients import PREPARE, SCRIPT, TINY, prepare_drawn, run
from small import ROOT, small_config

from nystromformer.errors import UserError
from nystromformer.model.events import EventModel, Network
from nystromformer.report.transactions import clients_tested_in, difference_of
from nystromformer.runs.record import find_runs
from nystromformer.tasks.transactions.metrics import gini
from nystromformer.tasks.transactions.store import Stored
from nystromformer.tasks.transactions.task import ClientExamples, Labels

RECIPE = ROOT / "experiments" / "transactions" / "encoder" / "config.json"
EVENTS = ("categories_BNC", "numbers_BNF", "mask_BN")


def experiment(folder: Path) -> Path:
    folder.mkdir()
    shutil.copyfile(RECIPE, folder / "config.json")
    return folder


def train(folder: Path, stored: Stored, *flags: object, length: int = 16) -> int:
    own = [] if "--attention" in flags else ["model.attn_type.num_landmarks=4", "model.attn_type.conv_kernel_size=5"]
    tiny = [word for each in (*TINY, f"model.max_seq_len={length}", *own) for word in ("--set", each)]
    place = ("--model", folder, "--data", stored.folder, "--task", "drawn", "--device", "cpu")
    return run(SCRIPT, *place, *tiny, "--epoch", 2, "--batch_size", 16, *flags)


def examples(stored: Stored) -> ClientExamples:
    return ClientExamples("train", stored, stored.clients_of("train"), 16)


def model(stored: Stored, network: Network) -> EventModel:
    labels = Labels.of(stored.manifest, network)
    config = small_config(model__vocab_size=sum(labels.categories), model__pooling="mean", model__norm="pre").model
    torch.manual_seed(0)
    built = labels.build(config).eval()
    assert isinstance(built, EventModel)
    return built


def test_a_row_begins_with_the_newest_event(stored: Stored) -> None:
    rows, manifest = examples(stored), stored.manifest
    numbers = np.array([5, 0, 2])
    batch = rows.batch(numbers)
    for row, number in enumerate(numbers.tolist()):
        client = int(rows.clients[number])
        end = int(stored.ends[client])
        length = min(int(stored.lengths[client]), 16)
        places = np.arange(end - 1, end - 1 - length, -1)
        assert batch["mask_BN"][row].sum() == length
        for column, each in enumerate(manifest.categories):
            expected = [each.ids[code] for code in stored.categories[places, column].tolist()]
            assert batch["categories_BNC"][row, :length, column].tolist() == expected
        for column, number_of in enumerate(manifest.numbers):
            raw = stored.numbers[places, column].astype(np.float64)
            scaled = (np.sign(raw) * np.log1p(np.abs(raw)) - number_of.mean) / number_of.deviation
            np.testing.assert_allclose(batch["numbers_BNF"][row, :length, column], scaled, rtol=1e-5, atol=1e-5)
    assert rows.lengths.max() == 16
    assert rows.truncated == int((stored.lengths[rows.clients] > 16).sum()) > 0
    assert rows.batch(numbers, 30)["mask_BN"].shape == (3, 30)


@pytest.mark.parametrize("network", ["encoder", "lstm", "gru"])
def test_neither_padding_nor_neighbours_change_a_row(stored: Stored, network: Network) -> None:
    built, rows = model(stored, network), examples(stored)
    together = rows.batch(np.arange(5), 24)
    with torch.no_grad():
        found = built(*(together[name] for name in EVENTS))
        for number in range(5):
            alone = rows.batch(np.array([number]))
            torch.testing.assert_close(built(*(alone[name] for name in EVENTS))[0], found[number])


def test_a_run_learns_predicts_and_resumes(stored: Stored, tmp_path: Path) -> None:
    folder = experiment(tmp_path / "e")
    assert train(folder, stored, "--lr", "3e-3") == 0
    (found,) = find_runs(folder / "model")
    predictions = found.folder / "predictions"
    with (predictions / "test.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    test = stored.clients_of("test")
    assert [row["client"] for row in rows] == [stored.names()[client] for client in test.tolist()]
    chances = np.array([float(row["probability"]) for row in rows])
    assert found.test_metrics["gini"] == pytest.approx(gini(chances, stored.labels[test]), abs=1e-4)
    figures = json.loads((predictions / "test.json").read_text())
    low, high = figures["interval"]
    assert low <= figures["gini"] <= high
    before = {path: path.read_bytes() for path in sorted(found.folder.rglob("*")) if path.is_file()}
    assert train(folder, stored, "--lr", "3e-3") == 0
    assert {path: path.read_bytes() for path in before} == before


def test_new_clients_get_the_same_chances_as_tested_ones(
    drawn: Path, stored: Stored, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their events prepared anew by the run's vocabularies, with values that it has never seen besides."""
    folder = experiment(tmp_path / "e")
    assert train(folder, stored) == 0
    (found,) = find_runs(folder / "model")
    events = pd.read_parquet(drawn / "events")
    stranger = events[events["client"] == "c0000000"].assign(client="stranger", merchant="never seen")
    pd.concat([stranger, events]).to_parquet(tmp_path / "new.parquet")
    assert (
        run(PREPARE, "new", "--events", tmp_path / "new.parquet", "--like", stored.folder, "--out", tmp_path / "new")
        == 0
    )
    assert run("code/run_predict.py", found.folder, "--input", tmp_path / "new", "--out", tmp_path / "p.csv") == 0
    chances = pd.read_csv(tmp_path / "p.csv").set_index("client")["probability"]
    assert len(chances) == 121
    tested = pd.read_csv(found.folder / "predictions" / "test.tsv", sep="\t").set_index("client")["probability"]
    np.testing.assert_allclose(chances[tested.index], tested, atol=2e-6)
    assert 0 < chances["stranger"] < 1
    before = (tmp_path / "p.csv").read_bytes()
    place = ("--input", tmp_path / "new", "--out", tmp_path / "p.csv")
    assert run("code/run_predict.py", found.folder, *place) == 2
    assert (tmp_path / "p.csv").read_bytes() == before
    prepare_drawn(drawn, tmp_path / "other", "--ignore", "amount")
    capsys.readouterr()
    place = ("--input", tmp_path / "other", "--out", tmp_path / "q.csv")
    assert run("code/run_predict.py", found.folder, *place) == 2
    assert "prepare.py new --like" in " ".join(capsys.readouterr().err.split())
    again = ("--data", tmp_path / "new", "--task", "drawn")
    assert run(SCRIPT, "--model", folder, *again, "--device", "cpu") == 2
    assert "is for run_predict.py" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.glob("q.csv*"))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--architecture", "cnn"), "is not one of 'encoder', 'lstm', 'gru'"),
        (("--architecture", "gru", "--attention", "linear"), "expected no --attention and no --conv"),
        (("--task", "other"), "expected one value, found 2"),
    ],
)
def test_bad_flags(
    flags: tuple[object, ...],
    expected: str,
    stored: Stored,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train(experiment(tmp_path / "e"), stored, *flags) == 2
    said = capsys.readouterr().err
    assert expected in " ".join(said.split())
    assert "Traceback" not in said


def test_a_report_puts_runs_beside_the_lstm(stored: Stored, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, other = experiment(tmp_path / "e"), experiment(tmp_path / "f")
    assert train(folder, stored, "--architecture", "lstm", "--seed", "0,1") == 0
    assert train(other, stored) == 0
    assert run("code/run_report.py", "transactions", folder, other, "--out", tmp_path / "t.md") == 0
    assert "Smallest difference from the LSTM" in (tmp_path / "t.md").read_text()
    data = json.loads((tmp_path / "t.json").read_text())
    rows = {row["name"].split(" ")[0]: row for row in data["rows"]}
    found = {"lstm": find_runs(folder / "model"), "encoder": find_runs(other / "model")}
    for name, network in (("lstm", "lstm"), ("nystrom", "encoder")):
        figures = [each.test_metrics["gini"] for each in found[network]]
        assert rows[name]["gini"]["mean"] == pytest.approx(np.mean(figures))
        assert rows[name]["seeds"] == [each.settings.seed for each in found[network]]
    difference = rows["nystrom"]["gini"]["mean"] - rows["lstm"]["gini"]["mean"]
    assert rows["nystrom"]["difference"]["value"] == pytest.approx(difference, abs=1e-3)
    assert rows["lstm"]["difference"] is None
    ours, lstms = clients_tested_in(other), clients_tested_in(folder)
    pair = difference_of(ours, lstms)
    assert pair is not None
    assert asdict(pair) == rows["nystrom"]["difference"]
    with pytest.raises(UserError, match="expected finished runs"):
        clients_tested_in(experiment(tmp_path / "g"))
    # An LSTM of other training clients, of more seeds, is not what others are compared with.
    few = experiment(tmp_path / "few")
    assert train(few, stored, "--architecture", "lstm", "--seed", "0,1,2", "--train_rows", 20) == 0
    assert run("code/run_report.py", "transactions", folder, few, other, "--out", tmp_path / "t.md") == 0
    again = {row["name"].split(" ")[0]: row for row in json.loads((tmp_path / "t.json").read_text())["rows"]}
    assert again["nystrom"]["difference"] == rows["nystrom"]["difference"]
    assert "| lstm | 2 | 20 | 3 |" in (tmp_path / "t.md").read_text()
    assert run("code/run_report.py", "transactions", folder, "--out", tmp_path / "t.txt") == 2
    assert run("code/run_report.py", "transactions", tmp_path / "g", "--out", tmp_path / "u.md") == 2
    assert (
        "expected finished runs, found none; run one first, such as python code/run_transactions.py"
        in capsys.readouterr().err
    )
