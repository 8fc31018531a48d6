"""What all studies share: command lines, each of which runs once, and tables of what they have reached."""

import asyncio
import json
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from outcomes import Record, read_runs, write_table

from nystromformer.command_line import cli
from nystromformer.files.paths import EXPERIMENTS, PROJECT
from nystromformer.files.writing import hold, write_json

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

    def marker(self, stage: str) -> Path:
        """The file that says that it is done."""
        return OUT / "done" / stage / f"{self.name}.json"


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


async def run_lines(stage: str, lines: Sequence[Line], data: Path, jobs: int) -> list[str]:
    """Run the lines of a stage that are not done; the names of those that fail, which stop no others."""
    free, wanted = asyncio.Semaphore(jobs), [line for line in lines if not line.marker(stage).exists()]
    await asyncio.gather(*(run_line(stage, line, data, free) for line in wanted))
    return [f"{stage}/{line.name}" for line in wanted if not line.marker(stage).exists()]


async def run_line(stage: str, line: Line, data: Path, free: asyncio.Semaphore) -> None:
    """Run a line as soon as others leave it room; when this is cancelled, stop its script."""
    here, log = OUT / stage / line.name, OUT / "logs" / stage / f"{line.name}.log"
    async with free:
        if line.start and not (here / "config.json").exists():
            begin_experiment(line, here)
        log.parent.mkdir(parents=True, exist_ok=True)
        begun, shown = time.time(), []
        for command in line.command.split(" && "):
            shown.append(shlex.join(["python", *words(command, here)]))
            logger.info("%s/%s: %s", stage, line.name, shown[-1])
            parts = [sys.executable, *words(command, here, data)]
            with log.open("ab") as file:  # in a session of its own: Ctrl-C reaches it once, through this process
                process = await asyncio.create_subprocess_exec(*parts, stdout=file, stderr=file, start_new_session=True)
            try:
                if await process.wait():
                    return
            except asyncio.CancelledError:
                process.terminate()
                await process.wait()
                raise
        from nystromformer.machine import machine_facts  # only now: importing torch takes seconds

        write_json(line.marker(stage), {"commands": shown, "minutes": (time.time() - begun) / 60, **machine_facts()})


def words(command: str, here: Path = Path(), data: Path = Path("DIR")) -> list[str]:
    """A command line with its folders; as it is shown without --data's."""
    return [word.format(data=data, out=OUT, here=here, results=RESULTS) for word in shlex.split(command)]


def begin_experiment(line: Line, folder: Path) -> None:
    """Copy weights and tokenizer of what a line begins with, and write the config at last."""
    source = EXPERIMENTS / line.start if (EXPERIMENTS / line.start).is_dir() else OUT / line.start
    for path in source.glob("model/cp-0000.model"):
        shutil.copytree(source / "model" / "tokenizer", folder / "model" / "tokenizer", dirs_exist_ok=True)
        shutil.copyfile(path, folder / "model" / path.name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    for section, keys in line.config.items():
        config[section] |= keys
    write_json(folder / "config.json", config)


def main(stages: Mapping[str, Stage], *more: Callable[..., None]) -> None:
    """The command line of a study, and commands of its own that its lines call."""
    names = Annotated[list[StrEnum("Stage", {each: each for each in stages})] | None, typer.Argument(metavar="STAGE")]

    def run(
        chosen: names = None,
        data: Annotated[Path, typer.Option(help="Folder with what the study's file says.")] = Path("data"),
        jobs: Annotated[int, typer.Option(min=1, help="Lines at once.")] = 2,
        threads: Annotated[int, typer.Option(min=1, help="CPU threads of each.")] = 1,
    ) -> None:
        """Run all stages, or those that are named, in order. Started again, it resumes."""
        if Path.cwd() != PROJECT:  # so that nothing that is written names the machine's folders
            raise typer.BadParameter(f"the code of {PROJECT} would run: change to it, or set PYTHONPATH=code")
        os.environ["OMP_NUM_THREADS"] = str(threads)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with hold(OUT / "run.lock", "refuse", f"{OUT}: a run is active here already"):
            for name in chosen or stages:
                if failed := asyncio.run(run_lines(name, stages[name].lines, data.resolve(), jobs)):
                    sys.exit(f"failed: {', '.join(failed)}; see {OUT / 'logs'}")

    def collect(chosen: names = None) -> None:
        """Write the tables of stages all of whose lines are done."""
        for name in chosen or stages:
            stage = stages[name]
            markers = {line.name: line.marker(name) for line in stage.lines}
            if not all(marker.exists() for marker in markers.values()):
                logger.info("%s: nothing is written before all lines are done", name)
                continue
            for report in stage.reports:
                subprocess.run([sys.executable, *words(report)], check=True)
            if stage.metrics:
                found = {line: stage.read(OUT / name / line) for line in markers}
                write_table(RESULTS / name, markers, found, stage.metrics, stage.base, stage.by_seed)

    cli.run_one_of(run, collect, *more)
