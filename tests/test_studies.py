"""Studies: command lines that run once, resume and are told to stop; tables; what the studies here say is possible."""

import importlib
import json
import os
import re
import runpy
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import typer
from documents import TEXTS

from nystromformer.command_line import cli
from nystromformer.config import load_config
from nystromformer.files.paths import EXPERIMENTS, PROJECT
from nystromformer.training.checkpoint import hold_folder

STUDIES = EXPERIMENTS / "studies"
sys.path.append(str(STUDIES))
outcomes, study = importlib.import_module("outcomes"), importlib.import_module("study")
Line, Record, Stage = study.Line, outcomes.Record, study.Stage
NAMES = sorted(path.stem for path in STUDIES.glob("*.py") if "\n    main(STAGES" in path.read_text())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A clone of its own for a study, with a script that appends its words to a file, or fails."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "PROJECT", tmp_path)
    monkeypatch.setattr(study, "OUT", Path("runs/toy"))
    monkeypatch.setattr(study, "RESULTS", Path("results/toy"))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    kept = signal.getsignal(signal.SIGTERM)
    (tmp_path / "say.py").write_text(
        "import os, sys\nprint(*sys.argv[1:], os.environ['OMP_NUM_THREADS'], file=open('said', 'a'))\n"
        "print('logged')\nsys.exit('bad' in sys.argv)\n"
    )
    yield tmp_path
    signal.signal(signal.SIGTERM, kept)


def start(words: str, **stages: Any) -> object:
    """Run a study's command line in this process; its exit status, or why it ended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["toy.py", *words.split()])
        with pytest.raises(SystemExit) as caught:
            study.main(stages)
    return caught.value.code


def test_lines_run_once_and_a_failure_is_named(place: Path) -> None:
    lines = [Line("first", "say.py {data} && say.py {here}"), Line("second", "say.py bad"), Line("a/b", "say.py x")]
    for _ in range(2):
        assert start("run --jobs 1", one=Stage(lines)) == "failed: one/second; see runs/toy/logs"
    said = (place / "said").read_text().splitlines()
    assert said == [f"{place}/data 1", "runs/toy/one/first 1", "bad 1", "x 1", "bad 1"]
    assert (place / "runs/toy/logs/one/second.log").read_text() == "logged\n" * 2
    done = json.loads((place / "runs/toy/done/one/first.json").read_text())
    assert done["commands"] == ["python say.py DIR", "python say.py runs/toy/one/first"]
    assert done["commit"]


def test_an_experiment_is_another_one_changed_with_its_weights(place: Path) -> None:
    changes = {"model": {"max_seq_len": 128}, "pretraining_setting": {"epoch": 1}}
    study.begin_experiment(Line("new", "", "nystrom-tiny-conv", changes), place / "runs/toy/new")
    config, shipped = (
        json.loads((each / "config.json").read_text())
        for each in (place / "runs/toy/new", EXPERIMENTS / "nystrom-tiny-conv")
    )
    assert config["model"] == shipped["model"] | {"max_seq_len": 128}
    assert config["pretraining_setting"] == shipped["pretraining_setting"] | {"epoch": 1}
    (place / "runs/toy/new/model/tokenizer").mkdir(parents=True)
    (place / "runs/toy/new/model/cp-0000.model").write_text("weights")
    study.begin_experiment(Line("newer", "", "new"), place / "runs/toy/newer")
    assert (place / "runs/toy/newer/model/cp-0000.model").read_text() == "weights"
    assert json.loads((place / "runs/toy/newer/config.json").read_text()) == config


def test_sigterm_reaches_the_lines_and_the_same_study_resumes(place: Path) -> None:
    (place / "wait.py").write_text(
        "import os, signal, time\nif os.path.exists('begun'): open('ended', 'w'); exit()\n"
        "signal.signal(signal.SIGTERM, lambda *_: exit(5)); open('begun', 'w'); time.sleep(60)\n"
    )
    stage = Stage([Line("one", "wait.py && say.py"), Line("two", "wait.py")])

    def tell() -> None:
        while not (place / "begun").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=tell).start()
    assert start("run --jobs 1", only=stage) == cli.INTERRUPTED
    assert not (place / "ended").exists()
    assert start("run", only=stage) == 0
    assert (place / "ended").exists()


def test_a_second_command_another_clone_and_an_unknown_stage_are_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    stage = Stage([Line("first", "say.py")])
    with hold_folder(place / "runs/toy"):
        assert start("run", one=stage) == 2
    assert "runs/toy: a run is active here already" in capsys.readouterr().err
    assert start("run two", one=stage) == 2
    assert "'two' is not one of 'one'" in capsys.readouterr().err
    monkeypatch.setattr(study, "PROJECT", PROJECT)
    assert start("run", one=stage) == 2
    assert f"the code of {PROJECT} would run" in capsys.readouterr().err
    assert not (place / "said").exists()


def test_a_table_has_spreads_differences_and_baselines(place: Path) -> None:
    found = {
        "x/0": [Record({"accuracy": 0.8}, 0, 400, None, {"tf-idf": {"accuracy": 0.7}})],
        "x/1": [Record({"accuracy": 0.82}, 1, 400)],
        "y": [Record({"accuracy": 0.9}, 0, 400), Record({"accuracy": 0.92}, 1, 400)],
    }
    stage = Stage(
        [Line(name, "say.py") for name in found],
        ("accuracy",),
        "x",
        read=lambda folder: found[str(folder.relative_to("runs/toy/one"))],
    )
    assert start("collect", one=stage) == 0
    assert not (place / "results").exists()
    assert start("run", one=stage) == start("collect", one=stage) == 0
    lines = (place / "results/toy/one.md").read_text().splitlines()
    assert lines[4] == "| x | 81.0 ± 1.4 |  |  | 2 |"
    assert lines[5].startswith("| y | 91.0 ± 1.4 | +10.0 (+")
    assert lines[6] == "| *tf-idf* | 70.0 |  |  |  |"
    data = json.loads((place / "results/toy/one.json").read_text())
    assert [each["metrics"]["accuracy"] for each in data["figures"]["y"]] == [0.9, 0.92]


def test_differences_are_those_of_paired_t_tests() -> None:
    generator = np.random.default_rng(0)
    right = [(generator.random(400) < share).astype(float) for share in (0.9, 0.8)]
    base, other = ([Record({"accuracy": one.mean()}, seed, 400, one) for seed in range(3)] for one in right)
    oracle = scipy.stats.ttest_rel(right[1], right[0]).confidence_interval(0.95)
    found = outcomes.compare(other, base, "accuracy", 0.0, 4)
    assert (found.value - found.half, found.value + found.half) == pytest.approx(tuple(oracle), abs=1e-3)
    assert outcomes.compare(other, base, "accuracy", 1e-3, 4).half > found.half  # seeds that differ make it wider
    values = generator.random((2, 5))
    base, other = ([Record({"auroc": value}, seed) for seed, value in enumerate(one)] for one in values)
    oracle = scipy.stats.ttest_rel(*values).confidence_interval(0.95)
    found = outcomes.compare_seeds(base, other, "auroc")
    assert (found.value - found.half, found.value + found.half) == pytest.approx(tuple(oracle))


@cache
def flags_of(script: str, first: str) -> dict[str, set[str]]:
    """Of each of a script's commands, by name; of a single one by the empty name. Some scripts read only the command
    of their first word."""
    found: dict[str, set[str]] = {}

    def keep(*commands: Any, single: bool = False) -> None:
        made = typer.main.get_command(cli.application(*commands))
        for name, command in getattr(made, "commands", {"": made}).items():
            flags = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
            found["" if single else name] = flags

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "run", lambda command: keep(command, single=True))
        patch.setattr(cli, "run_one_of", keep)
        patch.setattr(sys, "argv", [script, first])
        runpy.run_path(str(PROJECT / script), run_name="__main__")
    return found


@pytest.mark.parametrize("name", NAMES)
def test_command_lines_have_flags_and_configs_that_exist(name: str, tmp_path: Path) -> None:
    stages = importlib.import_module(name).STAGES
    lines = [line for stage in stages.values() for line in stage.lines]
    reports = [report for stage in stages.values() for report in stage.reports]
    for command in (*(part for line in lines for part in line.command.split(" && ")), *reports):
        script, *words = shlex.split(command)
        known = flags_of(script, words[0])
        own = known[""] if "" in known else known[words[0]]
        assert {word for word in words if word.startswith("--")} <= own, command
    for number, line in enumerate(line for line in lines if (EXPERIMENTS / line.start / "config.json").exists()):
        study.begin_experiment(line, tmp_path / str(number))
        words = shlex.split(line.command.split(" && ")[0])
        overrides = [value for flag, value in pairwise(words) if flag == "--set"]
        if "--attention" not in words:
            load_config(tmp_path / str(number) / "config.json", overrides)


@pytest.mark.parametrize("name", NAMES)
def test_pages_name_stages_that_exist(name: str) -> None:
    stages = set(importlib.import_module(name).STAGES)
    for page, text in TEXTS.items():
        for words in re.findall(rf"studies/{name}\.py (?:run|collect)((?: +(?:--\w+ [^\s`]+|[\w-]+))*)", text):
            assert set(re.sub(r"--\w+ [^\s`]+", "", words).split()) <= stages, page
