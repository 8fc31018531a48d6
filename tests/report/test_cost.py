"""Time and memory of a trained encoder over the length of its input: measured, kept, and put into words."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from costs import made_up_cost, write_weights
from small import CPU, LENGTH, VOCABULARY, write_experiment

from nystromformer.benchmark.attention import OURS, SOFTMAX
from nystromformer.benchmark.timing import summarise
from nystromformer.data.dataset import open_dataset
from nystromformer.files.checked_json import write_checked
from nystromformer.files.writing import sha256_of
from nystromformer.report import cost as cost_module
from nystromformer.report.cost import (
    METHODS,
    WRITTEN_OUT,
    CostSettings,
    Omitted,
    kept_or_measured,
    measure_cost,
    softmax_twins,
)
from nystromformer.report.cost_report import cost_findings, cost_table, draw_cost, what_is_measured
from nystromformer.resources import free_memory
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.opening import OpenedScoring
from nystromformer.training import Group

SHORT = CostSettings(lengths=(LENGTH, 2 * LENGTH, 4 * LENGTH), seconds=60, repeats=3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Path]:
    """An experiment and its weights, which are random: that changes no figure here."""
    experiment = write_experiment(tmp_path_factory.mktemp("trained") / "nystrom-small")
    return experiment, write_weights(experiment, seed=0)


@pytest.fixture
def opened(trained: tuple[Experiment, Path], dataset_folder: Path) -> OpenedScoring:
    experiment, weights = trained
    return OpenedScoring(experiment, CPU, Group(), open_dataset(dataset_folder), (weights,))


def tokens(length: int) -> torch.Tensor:
    return torch.randint(5, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(length))


def test_the_twins_have_the_trained_weights(trained: tuple[Experiment, Path]) -> None:
    """Beside the attention: where Nyström is exact, with at most as many tokens as landmarks, all three agree."""
    experiment, weights = trained
    with torch.inference_mode():
        ours, fused, written_out = softmax_twins(experiment, weights, 4 * LENGTH, CPU).values()
        landmarks = experiment.config.model.num_landmarks or 8
        expected = ours(tokens(landmarks))
        for twin in (fused, written_out):
            torch.testing.assert_close(twin(tokens(landmarks)), expected, rtol=1e-4, atol=1e-4)
        # The two are one function at every length, and not ours.
        long = tokens(4 * LENGTH)
        torch.testing.assert_close(written_out(long), fused(long), rtol=1e-4, atol=1e-4)
        assert (ours(long) - fused(long)).abs().max() > 1e-2


def test_the_trained_positions_are_repeated(trained: tuple[Experiment, Path]) -> None:
    for encoder in softmax_twins(*trained, 2 * LENGTH, CPU).values():
        offset = encoder.embeddings.position_offset
        first, second = encoder.embeddings.position.weight[offset:].split(LENGTH)
        assert torch.equal(first, second)


def test_of_rotary_positions_none_are_repeated(tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path / "rotary", model__positions="rotary")
    for encoder in softmax_twins(experiment, write_weights(experiment, seed=0), 2 * LENGTH, CPU).values():
        assert encoder(tokens(2 * LENGTH)).isfinite().all()
    learned, rotary = what_is_measured(made_up_cost()), what_is_measured(made_up_cost(positions="rotary"))
    assert "the position embeddings are repeated" in learned
    assert "repeated" not in rotary


def test_every_method_is_measured_at_every_length(opened: OpenedScoring) -> None:
    settings = CostSettings(lengths=(LENGTH, 4 * LENGTH), seconds=60, repeats=3)
    cost = measure_cost(opened, settings)
    assert [(row.length, row.method) for row in cost.rows] == [(n, m) for n in settings.lengths for m in METHODS]
    assert cost.left_out == []
    assert all(row.time.low > 0 and row.memory > 0 and row.repeats >= 1 for row in cost.rows)
    assert (cost.experiment, cost.trained_length, cost.precision) == ("nystrom-small", LENGTH, "float32")
    memory = {(row.length, row.method): row.memory for row in cost.rows}
    # It grows with the square where the N x N matrix is stored, and with the length where it is not.
    assert memory[4 * LENGTH, WRITTEN_OUT] > 8 * memory[LENGTH, WRITTEN_OUT]
    for method in (OURS, SOFTMAX):
        assert memory[4 * LENGTH, method] < 5 * memory[LENGTH, method]
    # Two heads' scores and weights, and little else, at lengths like these.
    matrices = 2 * 2 * 4 * (4 * LENGTH) ** 2 / 2**20
    assert matrices < memory[4 * LENGTH, WRITTEN_OUT] < 1.5 * matrices


def test_it_is_measured_once_for_the_same_weights(
    opened: OpenedScoring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results.json"
    new = made_up_cost(seconds=2.0)
    monkeypatch.setattr(cost_module, "measure_cost", lambda *_: new)
    earlier = made_up_cost(weights=sha256_of(opened.checkpoints[-1]), settings=SHORT)
    fields = asdict(earlier)
    write_checked(results, {"cost": fields})
    sealed = results.read_text()
    for content, expected in (
        (sealed, earlier),
        (json.dumps({"cost": fields}), earlier),
        (sealed.replace('"seconds": ', '"seconds": 1'), new),
        *((damaged, new) for damaged in ("{edited", '["edited"]', '{"runs": {}}')),
        (json.dumps({"cost": fields | {"rows": [{"of": "another version"}]}}), new),
        (json.dumps({"cost": fields | {"weights": "1" * 64}}), new),
        (json.dumps({"cost": fields | {"settings": asdict(CostSettings())}}), new),
    ):
        results.write_text(content)
        assert kept_or_measured(results, opened, SHORT) == expected, content[:60]
    results.unlink()
    assert kept_or_measured(results, opened, SHORT) == new


@pytest.mark.parametrize(
    ("method", "reason"), [(WRITTEN_OUT, "it takes 0.0 GiB of memory"), (SOFTMAX, "it would take")]
)
def test_what_takes_too_much_memory_or_time_stays_out(
    opened: OpenedScoring, monkeypatch: pytest.MonkeyPatch, method: str, reason: str
) -> None:
    """From the second length on: there the memory is just not enough for the matrices, or the first took too long."""
    slow = {SOFTMAX: 1e6} if method == SOFTMAX else {}
    free = 2 * 2 * 4 * (2 * LENGTH) ** 2 if method == WRITTEN_OUT else math.inf
    monkeypatch.setattr(cost_module, "peak_memory", lambda work: 1.0)
    monkeypatch.setattr(cost_module, "free_memory", lambda device: free)
    monkeypatch.setattr(
        cost_module, "time_side_by_side", lambda works, *_, **__: {m: summarise([slow.get(m, 1.0)]) for m in works}
    )
    cost = measure_cost(opened, SHORT)
    assert [(left.length, left.method, left.reason[: len(reason)]) for left in cost.left_out] == [
        (2 * LENGTH, method, reason)
    ]
    assert [row.length for row in cost.rows if row.method == method] == [LENGTH]
    assert [row.length for row in cost.rows if row.method == OURS] == list(SHORT.lengths)


def test_the_length_from_which_on_it_is_faster() -> None:
    to_sdpa, to_written_out, machine = cost_findings(made_up_cost())
    assert to_sdpa.startswith(
        "From 2,048 tokens on the trained Nyström encoder is faster than softmax through SDPA; at 2,048 tokens 2.0 "
        "times (16 ms against 32 ms)."
    )
    assert to_sdpa.endswith("takes as much memory as the Nyström encoder (16 MiB against 16 MiB at the peak).")
    assert to_written_out.startswith("From 1,024 tokens on the trained Nyström encoder is faster than softmax written")
    assert "softmax written out takes 3.0 times the memory of the Nyström encoder (48 MiB against 16" in to_written_out
    assert "a processor, 2 cores" in machine


def test_faster_everywhere_and_nowhere() -> None:
    everywhere, nowhere, _ = cost_findings(made_up_cost(softmax=(5, 9, 17), written_out=(1, 9, 12)))
    assert everywhere.startswith("At every length, from 512 tokens on, the trained Nyström encoder is faster than")
    # Once faster, at 1,024 tokens, and slower again.
    for words in (
        "At 2,048 tokens, the most that both",
        "1.33 times as long (16 ms against 12 ms). So no",
        "0.75 times",
    ):
        assert words in nowhere


def test_what_was_left_out_is_named() -> None:
    absent = [Omitted(2048, SOFTMAX, "it was too long"), Omitted(512, WRITTEN_OUT, "it was too large")]
    cost = made_up_cost(left_out=absent)
    to_sdpa, to_written_out, *left_out, _ = cost_findings(cost)
    assert "At 1,024 tokens, the most that both were measured at" in to_sdpa
    assert to_written_out == "Softmax written out was not measured."
    assert left_out == [
        "Left out: softmax (SDPA) from 2,048 tokens on: there it was too long.",
        "Left out: softmax, written out from 512 tokens on: there it was too large.",
    ]
    assert cost_table(cost)[-1] == ["2,048", "16 ms, 16 MiB", "left out", "left out"]


def test_a_table_a_picture_and_what_was_measured(tmp_path: Path) -> None:
    cost = made_up_cost()
    assert cost_table(cost)[:2] == [
        ["tokens", *METHODS],
        ["512", "4.0 ms, 4.0 MiB", "2.0 ms, 4.0 MiB", "3.0 ms, 3.0 MiB"],
    ]
    draw_cost(cost, tmp_path / "cost.png")
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    text = what_is_measured(cost)
    assert "nystrom-demo-conv" in text
    assert "256 tokens in training" in text
    assert "(repeats: 3 to 5)" in text
    json.dumps(asdict(cost))


def test_free_memory_is_the_machines_or_the_containers(tmp_path: Path) -> None:
    cpu, cgroup = torch.device("cpu"), tmp_path / "sys/fs/cgroup"
    assert free_memory(cpu, tmp_path) == math.inf
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:       9000 kB\nMemAvailable:   2000 kB\n")
    assert free_memory(cpu, tmp_path) == 2000 * 1024
    cgroup.mkdir(parents=True)
    for limit, free in (("max", 2000 * 1024), ("1000000", 1000000)):
        (cgroup / "memory.max").write_text(f"{limit}\n")
        assert free_memory(cpu, tmp_path) == free
    (cgroup / "memory.stat").write_text("anon 400000\nfile 500000\n")
    assert free_memory(cpu, tmp_path) == 600000
