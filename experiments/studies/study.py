"""What all studies share: command lines, each of which runs once, and tables of what they have reached.

A study is a file beside this one: its stages, and at its end `main(STAGES)`.

    python experiments/studies/finetune.py run --data DIR [STAGE ...]    # in runs/finetune; resumes when started again
    python experiments/studies/finetune.py collect [STAGE ...]           # results/finetune/STAGE.json and STAGE.md
"""

import json
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from filelock import FileLock, Timeout
from outcomes import Record, read_runs, table

from nystromformer.command_line import cli
from nystromformer.errors import UserError
from nystromformer.files.paths import EXPERIMENTS, PROJECT
from nystromformer.files.writing import write_json, write_text
from nystromformer.machine import machine_facts

logger = logging.getLogger("nystromformer.study")
OUT, RESULTS = (Path(place, Path(sys.argv[0]).stem) for place in ("runs", "results"))


@dataclass(frozen=True)
class Line:
    """Scripts of the project with flags, one after another."""

    name: str
    """Of the row of the stage's table; of several lines of a row, such as seeds, with an ending after a slash."""
    command: str
    """With `&&` between several. {data} is the folder of --data, {out} that of the study's runs, {here} the line's in
    it, {out}/STAGE/NAME, and {results} the study's in results/."""
    start: str = ""
    """{here} begins with the config, weights and tokenizer of this shipped experiment, or of this folder in {out}."""
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Keys of the sections of this config that differ."""


@dataclass(frozen=True)
class Stage:
    """Lines that may run side by side, and the table of what they reach."""

    lines: Sequence[Line]
    metrics: Sequence[str] = ()
    """The columns of the table; without any there is none."""
    base: str = ""
    """The row that the others are compared with."""
    by_seed: bool = False
    """Whether these differences count seeds alone, not examples."""
    read: Callable[[Path], list[Record]] = read_runs
    """Reads {here} of a line."""
    reports: Sequence[str] = ()
    """Command lines of `collect`, which write to {results} themselves."""


class Study:
    """Runs lines side by side, each with its log, and writes tables. SIGTERM and Ctrl-C reach all of them."""

    def __init__(self, stages: Mapping[str, Stage], data: Path = Path("DIR"), jobs: int = 1, threads: int = 1) -> None:
        self._stages, self._data, self._jobs, self._stopped = stages, data, jobs, threading.Event()
        path = os.pathsep.join(filter(None, [str(PROJECT / "code"), os.environ.get("PYTHONPATH")]))
        self._environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
        self._running: set[subprocess.Popen[bytes]] = set()
        os.chdir(PROJECT)  # so that nothing that is written names the machine's folders

    def chosen(self, names: Sequence[str] | None) -> dict[str, Stage]:
        """The stages with these names, or all."""
        if unknown := [name for name in names or () if name not in self._stages]:
            raise UserError(f"{unknown[0]}: expected one of {', '.join(self._stages)}")
        return {name: stage for name, stage in self._stages.items() if not names or name in names}

    def run(self, name: str, stage: Stage) -> None:
        """Run the lines of a stage that are not done; one that fails stops no other.

        Raises:
            SystemExit: some failed, or were stopped.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        with ThreadPoolExecutor(self._jobs) as pool:
            ended = list(pool.map(lambda line: self._run(name, line), stage.lines))
        if failed := [f"{name}/{line.name}" for line, good in zip(stage.lines, ended, strict=True) if not good]:
            sys.exit(f"{'stopped' if self._stopped.is_set() else 'failed'}: {', '.join(failed)}; see {OUT / 'logs'}")

    def _run(self, stage: str, line: Line) -> bool:
        here, log = OUT / stage / line.name, OUT / "logs" / stage / f"{line.name}.log"
        marker, begun = OUT / "done" / stage / f"{line.name}.json", time.time()
        if marker.exists():
            return True
        if line.start and not (here / "config.json").exists():
            begin_experiment(line, here)
        log.parent.mkdir(parents=True, exist_ok=True)
        shown = {each: shlex.join(["python", *words(each, here)]) for each in line.command.split(" && ")}
        for command, text in shown.items():
            if self._stopped.is_set():
                return False
            logger.info("%s/%s: %s", stage, line.name, text)
            with log.open("ab") as file:
                started = [sys.executable, *words(command, here, self._data)]
                process = subprocess.Popen(started, env=self._environment, stdout=file, stderr=file)
            self._running.add(process)
            if process.wait():
                return False
        write_json(marker, {"commands": [*shown.values()], "minutes": (time.time() - begun) / 60, **machine_facts()})
        return True

    def _stop(self, number: int, frame: object) -> None:
        self._stopped.set()
        for process in list(self._running):
            process.send_signal(signal.SIGTERM)  # which does nothing to one that has ended

    def collect(self, name: str, stage: Stage) -> None:
        """Write the table of a stage all of whose lines are done, and its figures."""
        markers = {line.name: OUT / "done" / name / f"{line.name}.json" for line in stage.lines}
        if not all(marker.exists() for marker in markers.values()):
            logger.info("%s: nothing is written before all lines are done", name)
            return
        for report in stage.reports:
            subprocess.run([sys.executable, *words(report)], env=self._environment, check=True)
        if not stage.metrics:
            return
        done = {line: json.loads(marker.read_text()) for line, marker in markers.items()}
        rows: dict[str, list[Record]] = {}
        for line in done:
            rows.setdefault(line.partition("/")[0], []).extend(stage.read(OUT / name / line))
        figures = {row: [record.data() for record in found] for row, found in rows.items()}
        write_json(RESULTS / f"{name}.json", {"lines": done, "figures": figures})
        facts = [
            f"{fact} {', '.join(sorted({str(one[fact]) for one in done.values()}))}"
            for fact in ("date", "commit", "processor")
        ]
        parts = [f"# {OUT.name}: {name}", table(rows, stage.metrics, stage.base, stage.by_seed), f"{'; '.join(facts)}."]
        write_text(RESULTS / f"{name}.md", "\n\n".join(parts) + "\n")


def words(command: str, here: Path = Path(), data: Path = Path("DIR")) -> list[str]:
    """A command line with its folders; as it is shown without --data's."""
    for name, place in {"{data}": data, "{out}": OUT, "{here}": here, "{results}": RESULTS}.items():
        command = command.replace(name, shlex.quote(str(place)))
    return shlex.split(command)


def begin_experiment(line: Line, folder: Path) -> None:
    """Copy weights and tokenizer of what a line begins with, and write the config at last."""
    source = EXPERIMENTS / line.start if (EXPERIMENTS / line.start).is_dir() else OUT / line.start
    for path in source.glob("model/cp-0000.model"):
        shutil.copytree(source / "model" / "tokenizer", folder / "model" / "tokenizer", dirs_exist_ok=True)
        shutil.copyfile(path, folder / "model" / path.name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    for section, keys in line.config.items():
        config[section] |= keys
    config.pop("$schema", None)
    write_json(folder / "config.json", config)


def main(stages: Mapping[str, Stage], *more: Callable[..., None]) -> None:
    """The command line of a study, and commands of its own that its lines call."""
    names = Annotated[list[str] | None, typer.Argument(metavar="[STAGE]...", help=", ".join(stages))]

    def run(
        chosen: names = None,
        data: Annotated[Path, typer.Option(help="Folder with what the study's file says.")] = Path("data"),
        jobs: Annotated[int, typer.Option(min=1, help="Lines at once.")] = 2,
        threads: Annotated[int, typer.Option(min=1, help="CPU threads of each.")] = 1,
    ) -> None:
        """Run all stages, or those that are named, in order. Started again, it resumes."""
        if (clone := Path(__file__).parents[2].resolve()) != PROJECT:
            raise UserError(f"the code of {PROJECT} would run: set PYTHONPATH={clone / 'code'}")
        study = Study(stages, data.resolve(), jobs, threads)
        wanted = study.chosen(chosen)
        OUT.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(OUT / "lock", timeout=0):
                for name, stage in wanted.items():
                    study.run(name, stage)
        except Timeout:
            raise UserError(f"{OUT}: in use by another command") from None

    def collect(chosen: names = None) -> None:
        """Write the tables of stages that are done."""
        study = Study(stages)
        for name, stage in study.chosen(chosen).items():
            study.collect(name, stage)

    cli.run_one_of(run, collect, *more)
