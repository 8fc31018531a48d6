"""Studies: commands side by side, each with its log; stages in their order; pages."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats
from documents import TEXTS

from nystromformer.errors import UserError
from nystromformer.files.paths import EXPERIMENTS
from nystromformer.studies import (
    Job,
    Runner,
    Stages,
    command_of,
    describe_machines,
    job,
    merged,
    read_json,
    read_stages,
    shorten_paths,
    write_experiment,
    write_page,
)

ROOT = Path(__file__).parents[1]


def python(name: str, code: str) -> Job:
    return Job(name, [sys.executable, "-c", code])


@pytest.fixture(autouse=True)
def _handlers() -> object:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_all_are_run_and_a_failure_is_named(tmp_path: Path) -> None:
    run = Runner(tmp_path, 2)
    run([python("first", "print('one'); print(__import__('os').environ['OMP_NUM_THREADS'])")])
    assert (tmp_path / "logs" / "first.log").read_text() == "one\n1\n"
    with pytest.raises(SystemExit, match=r"failed: bad, worse; see .*logs"):
        run([python("bad", "exit(3)"), python("good", "print('two')"), python("worse", "exit(2)")])
    assert (tmp_path / "logs" / "good.log").read_text() == "two\n"


def test_what_is_done_is_not_run_again(tmp_path: Path) -> None:
    result = tmp_path / "result"
    write = replace(python("write", f"open({str(result)!r}, 'x')"), result=result)
    for _ in range(2):
        Runner(tmp_path, 1)([write])


def test_paths_of_the_checkout_tell_nothing_of_the_machine(tmp_path: Path) -> None:
    made = job("name", "code/run.py", "--model", ROOT / "runs" / "tiny", "--data", tmp_path)
    assert made.words[1:] == ["code/run.py", "--model", "runs/tiny", "--data", str(tmp_path)]


def test_sigterm_reaches_the_commands(tmp_path: Path) -> None:
    waits = (
        "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(5)); print(1, flush=True); time.sleep(60)"
    )
    code = f"""
import sys
from pathlib import Path
from nystromformer.studies import Job, Runner
Runner(Path({str(tmp_path)!r}), 1)([Job(name, [sys.executable, "-c", {waits!r}]) for name in ("running", "waiting")])
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    log = tmp_path / "logs" / "running.log"
    for _ in range(600):
        if log.is_file() and log.read_text():
            break
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert said.startswith("stopped: running, waiting; see ")
    assert not (tmp_path / "logs" / "waiting.log").exists()


class Example(Stages):
    """A study of two stages."""

    study = "example"
    needs = "texts"

    def second(self) -> None:
        self.run([python("second", f"print({self.data.name!r}, {self.rehearse})")])

    def first(self) -> None:
        self.run([python("first", "print('first')")])

    def _no_stage(self) -> None:
        raise AssertionError


def test_stages_run_in_their_order_and_each_is_recorded(tmp_path: Path) -> None:
    command_of(Example)(None, tmp_path / "data", tmp_path / "all", rehearse=True)
    assert [stage["stage"] for stage in read_stages(tmp_path / "all")] == ["second", "first"]
    assert (tmp_path / "all" / "logs" / "second.log").read_text() == "data True\n"
    command_of(Example)(["first"], tmp_path / "data", tmp_path / "one")
    (began,) = read_stages(tmp_path / "one", "first")
    assert began["commit"]
    assert not (tmp_path / "one" / "logs" / "second.log").exists()


def test_a_rehearsal_is_never_taken_for_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command_of(Example)(["first"], tmp_path, rehearse=True)
    command_of(Example)(["first"], tmp_path)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["example", "example-rehearsal"]
    for place, rehearse, found in (("example", True, "runs"), ("example-rehearsal", False, "a rehearsal")):
        with pytest.raises(UserError, match=f"{place}: holds {found}, and"):
            command_of(Example)(["first"], tmp_path, tmp_path / "runs" / place, rehearse=rehearse)


@pytest.mark.parametrize(
    ("chosen", "data", "message"),
    [
        (["third"], Path("data"), "third: expected one of second, first"),
        (None, None, "--data: expected the folder with texts"),
    ],
)
def test_mistakes_are_named(chosen: list[str] | None, data: Path | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        command_of(Example)(chosen, data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_experiment_is_a_shipped_one_changed_and_stays(tmp_path: Path) -> None:
    folder = write_experiment(
        tmp_path / "new", "nystrom-tiny-conv", {"conv_kernel_size": None, "max_seq_len": 128}, {"epoch": 1}, stages=[]
    )
    shipped, config = (read_json(each / "config.json") for each in (EXPERIMENTS / "nystrom-tiny-conv", folder))
    assert config["model"] == {k: v for k, v in shipped["model"].items() if k != "conv_kernel_size"} | {
        "max_seq_len": 128
    }
    assert config["pretraining_setting"] == shipped["pretraining_setting"] | {"epoch": 1}
    assert (config["gpu_setting"], config["stages"]) == (shipped["gpu_setting"], [])
    before = (folder / "config.json").read_bytes()
    write_experiment(folder, "softmax-tiny-conv")
    assert (folder / "config.json").read_bytes() == before


def test_pages_say_where_figures_are_from_and_nothing_of_the_folders_there(tmp_path: Path) -> None:
    machines = [{"date": "1", "commit": "a"}, {"date": "2", "commit": "a"}]
    assert describe_machines(machines, ("date", "commit")) == "date 1, 2; commit a"
    write_page(tmp_path / "page.md", "# Title", "", f"`--model {tmp_path / 'runs'}/x --data {ROOT}/data`")
    shorten_paths(tmp_path / "page.md", tmp_path / "runs", "tiny")
    assert (tmp_path / "page.md").read_text() == "# Title\n\n`--model runs/tiny/x --data data`\n"


SCRIPTS = sorted((EXPERIMENTS / "studies").glob("*.py"))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Scripts import each other by names that modules of the tests have, too."""
    names = [script.stem for script in SCRIPTS]
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    monkeypatch.syspath_prepend(EXPERIMENTS / "studies")
    yield
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(others)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_can_be_imported_and_texts_name_its_stages(script: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"study_{script.stem}", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kinds = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Stages)]
    stages = [name for kind in kinds if kind is not Stages for name in kind.names()]
    for text in TEXTS.values():
        for words in re.findall(rf"{script.name} run((?:\s+(?:--\w+ [^\s`]+|\w+))*)", text):
            named = re.sub(r"--\w+ [^\s`]+", "", words).split()
            assert set(named) <= set(stages), script.name


def test_a_run_replaces_that_of_its_seed_and_rate_and_others_stay() -> None:
    known = [{"seed": seed, "learning_rate": 1e-4, "score": 1} for seed in (0, 2)]
    found = [{"seed": 2, "learning_rate": 1e-4, "score": 2}, {"seed": 0, "learning_rate": 3e-5, "score": 3}]
    scores = [(run["seed"], run["learning_rate"], run["score"]) for run in merged(known, found)]
    assert scores == [(0, 3e-5, 3), (0, 1e-4, 1), (2, 1e-4, 2)]


@pytest.mark.usefixtures("alone")
def test_an_interrupted_sweep_is_compared_by_no_validation_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finetune = importlib.import_module("finetune")
    for use in ("reviews", "questions"):
        (tmp_path / use / "softmax").mkdir(parents=True)
    runs = [SimpleNamespace(task=use, test_metrics={}) for use in ("reviews", "questions")]
    runs.append(SimpleNamespace(task="reviews", test_metrics={"accuracy": 0.9}))
    monkeypatch.setattr(finetune, "find_runs", lambda folder, *_: [r for r in runs if r.task in folder.parts])
    monkeypatch.setattr(finetune, "figures_of", lambda run: {"seed": 0, "learning_rate": 1.0, **run.test_metrics})
    uses = finetune.gathered(tmp_path, {})["uses"]
    assert [run.get("accuracy") for run in uses["reviews"]["reviews"]["softmax"]] == [0.9]
    assert len(uses["questions"]["questions"]["softmax"]) == 1
    runs.pop()
    assert "reviews" not in finetune.gathered(tmp_path, {})["uses"]


@pytest.mark.usefixtures("alone")
def test_paired_differences_are_those_of_a_paired_t_test_where_seeds_agree() -> None:
    finetune = importlib.import_module("finetune")
    generator = np.random.default_rng(0)
    base, other = ((generator.random(400) < share).astype(float) for share in (0.9, 0.8))
    right = {"softmax": np.stack([base] * 3), "linear": np.stack([other] * 3)}
    oracle = scipy.stats.ttest_rel(other, base).confidence_interval(0.95)

    def of(each: dict[str, Any]) -> Any:
        return finetune.paired(each, dict.fromkeys(each, each["softmax"]))

    found = of(right)["linear"]
    assert found.value == pytest.approx((oracle.low + oracle.high) / 2)
    assert found.half == pytest.approx((oracle.high - oracle.low) / 2, rel=0.01)
    # Seeds that differ make it wider, and a single seed's are taken from the others.
    right["softmax"][0, :40] = 0
    assert of(right)["linear"].half > 1.5 * found.half
    assert list(of(right)) == ["linear"]
    single = {kind: each[:1] for kind, each in right.items()}
    assert of(single) == {}
    # Of books, which are few, by Student's distribution.
    books = {"softmax": base.reshape(1, 20, 20).mean(2), "linear": other.reshape(1, 20, 20).mean(2)}
    oracle = scipy.stats.ttest_rel(books["linear"][0], books["softmax"][0]).confidence_interval(0.95)
    found = finetune.of_books(books)["linear"]
    assert (found.value - found.half, found.value + found.half) == pytest.approx((oracle.low, oracle.high), rel=1e-3)
    assert set(finetune.paired(single, right, right.values())) == {"softmax", "linear"}
