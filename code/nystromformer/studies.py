"""Studies: commands of hours in stages that can be stopped and resumed, and the pages and pictures of what they gave.

A study is a script in experiments/studies/ with the commands `run` and `collect`. Runs lie in runs/NAME, what is shown
of them in results/NAME.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from nystromformer.errors import UserError
from nystromformer.files.paths import EXPERIMENTS, PROJECT
from nystromformer.files.writing import write_json, write_text
from nystromformer.machine import machine_facts

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

RESULTS = PROJECT / "results"
STAGES = "stages.jsonl"
"""In the folder of a study's runs: when, where and by which commit each stage was begun or resumed."""
MACHINE = ("date", "commit", "processor", "threads", "torch")


@dataclass(frozen=True)
class Job:
    """A command of this project and what its output is called."""

    name: str
    words: list[str]
    result: Path | None = None
    """Where this is there, the job is done."""


def job(name: str, script: str, *parts: object, result: Path | None = None) -> Job:
    """A Python script of the checkout with flags; strings of several words are cut at their spaces, and paths within
    the checkout are named from its top, so that results tell nothing of the machine.
    """
    words = [word for part in parts for word in (shlex.split(part) if isinstance(part, str) else [_as_word(part)])]
    return Job(name, [sys.executable, script, *words], result)


def _as_word(part: object) -> str:
    if isinstance(part, Path) and part.is_relative_to(PROJECT):
        return str(part.relative_to(PROJECT))
    return str(part)


class Runner:
    """Runs jobs side by side, each with one thread and its log; SIGTERM and Ctrl-C reach all of them, and they leave
    checkpoints.

    Args:
        out: where the folder `logs` is.
        width: how many run at once.
    """

    def __init__(self, out: Path, width: int) -> None:
        self.logs = out / "logs"
        self._width = width
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def __call__(self, jobs: Iterable[Job]) -> None:
        """Run all that are not done, in this order.

        Raises:
            SystemExit: one failed; the others are done.
        """
        jobs = [job for job in jobs if job.result is None or not job.result.exists()]
        with ThreadPoolExecutor(self._width) as pool:
            failed = [job.name for job, status in zip(jobs, pool.map(self._run, jobs), strict=True) if status]
        if failed:
            sys.exit(f"{'stopped' if self._stopped.is_set() else 'failed'}: {', '.join(failed)}; see {self.logs}")

    def _run(self, job: Job) -> int:
        if self._stopped.is_set():
            return 1
        logger.info("%s: %s", job.name, shlex.join(["python", *job.words[1:]]))
        log = self.logs / f"{job.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(job.words, cwd=PROJECT, env=one_thread, stdout=file, stderr=subprocess.STDOUT)
            self._running.add(process)
            status = process.wait()
            self._running.discard(process)
        if status and not self._stopped.is_set():
            logger.info("%s: status %d, see %s", job.name, status, log)
        return status

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped.set()
        for process in list(self._running):
            process.send_signal(signal.SIGTERM)


class Stages:
    """What a study runs: the public methods of a subclass are its stages, in their order.

    Args:
        data: the folder that --data names; of a study that needs none, the current one.
        out: where everything lies.
        run: runs jobs.
        rehearse: whether a little of everything is enough; what it reaches means nothing.
    """

    study: ClassVar[str]
    """Names its folders in runs/ and results/."""
    needs: ClassVar[str] = ""
    """What is in the folder that --data names."""

    def __init__(self, data: Path, out: Path, run: Runner, rehearse: bool) -> None:
        self.data, self.out, self.run, self.rehearse = data, out, run, rehearse

    @classmethod
    def names(cls) -> list[str]:
        return [name for name, value in vars(cls).items() if callable(value) and not name.startswith("_")]


def command_of(stages: type[Stages]) -> Callable[..., None]:
    """The command `run` of a study."""
    names, usual = stages.names(), Path("runs") / stages.study

    def run(
        chosen: Annotated[
            list[str] | None, typer.Argument(metavar="STAGE", help=f"{', '.join(names)}; default: all, in order.")
        ] = None,
        data: Annotated[
            Path | None, typer.Option(help=f"Folder with {stages.needs or 'nothing'}.", hidden=not stages.needs)
        ] = None,
        out: Annotated[
            Path | None, typer.Option(help=f"Folder for everything. Default: {usual}, or {usual}-rehearsal.")
        ] = None,
        jobs: Annotated[int, typer.Option(min=1, help="Processes at once.")] = 2,
        rehearse: Annotated[bool, typer.Option("--rehearse", help="A little of everything, to try it.")] = False,
    ) -> None:
        """Run the stages that are named, or all. Started again, each resumes."""
        for name in chosen or []:
            if name not in names:
                raise UserError(f"{name}: expected one of {', '.join(names)}")
        if stages.needs and data is None:
            raise UserError(f"--data: expected the folder with {stages.needs}")
        place = (out or usual.with_name(f"{usual.name}-rehearsal" if rehearse else usual.name)).resolve()
        if any(stage.get("rehearsal", False) != rehearse for stage in read_stages(place)):
            names_of = {False: "runs", True: "a rehearsal"}
            raise UserError(
                f"{place}: holds {names_of[not rehearse]}, and {names_of[rehearse]} would go on from there: name "
                "another --out, or remove the folder"
            )
        study = stages((data or Path()).resolve(), place, Runner(place, jobs), rehearse)
        for name in chosen or names:
            place.mkdir(parents=True, exist_ok=True)
            with (place / STAGES).open("a") as file:
                kind = {"rehearsal": True} if rehearse else {}
                file.write(json.dumps({"stage": name, **kind, **machine_facts()}) + "\n")
            getattr(study, name)()

    return run


def run_commands(*commands: Callable[..., None]) -> None:
    """The command line of a script: the commands by their names, or a single one without a name."""
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO, stream=sys.stderr)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    for command in commands:
        app.command()(command)
    try:
        app()
    except UserError as error:
        sys.exit(f"error: {error}")


def seconds_per_step(lines: Iterable[Mapping[str, Any]]) -> float | None:
    """The median over the reports of a run's log, which neither validations nor pauses change; None of a single one."""
    steps = [line for line in lines if line["type"] == "train"]
    spans = [(two["time"] - one["time"]) / (two["step"] - one["step"]) for one, two in pairwise(steps)]
    return median(spans) if spans else None


def read_stages(folder: Path, *names: str) -> list[dict[str, Any]]:
    """When, where and by which commit each stage, or each of the named ones, was begun or resumed, in order."""
    path = folder / STAGES
    lines = path.read_text().splitlines() if path.is_file() else []
    return [stage for stage in map(json.loads, lines) if not names or stage["stage"] in names]


def merged(known: Iterable[Mapping[str, Any]], found: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The figures of runs that an earlier `collect` gathered and those of runs that are here, which replace others of
    the same seed and learning rate.
    """
    runs = {(run["seed"], run["learning_rate"]): run for run in (*known, *found)}
    return [runs[key] for key in sorted(runs)]


def unify_corpora(run: Runner, data: Path, corpora: Path) -> None:
    """All of Wikipedia and the books as documents."""
    run(
        job(
            name,
            f"data-preprocessing/{name}/preprocess.py",
            "--source",
            data / name,
            "--out",
            corpora / name / "unified",
        )
        for name in ("wiki", "bookcorpus")
    )


def rows_of_text(name: str, corpora: Path, rows: Path, length: int, tokenizer: object) -> Job:
    """Rows of them.

    Args:
        tokenizer: its folder, or `train --vocab_size N`.
    """
    corpus = "--corpus wiki --corpus bookcorpus --validation 0.1"
    flags = ("--corpora", corpora, corpus, "--length", length, "--tokenizer", tokenizer, "--out", rows)
    return job(name, "data-preprocessing/preprocess_data_512.py", *flags)


def make_rows(study: Stages, length: int, vocabulary: int = 8192) -> None:
    """All of Wikipedia and the books, a tokenizer of them, and rows of a length in the study's folder `rows`."""
    corpora = study.out / "corpora"
    unify_corpora(study.run, study.data, corpora)
    study.run([rows_of_text("rows", corpora, study.out / "rows", length, f"train --vocab_size {vocabulary}")])


def write_experiment(
    folder: Path, recipe: str, model: Mapping[str, Any] = {}, setting: Mapping[str, Any] = {}, **more: Any
) -> Path:
    """An experiment folder with the config of a shipped one; once it is there it stays.

    Args:
        recipe: the shipped one's name.
        model: keys of the section that differ; None takes one away.
        setting: keys of pretraining_setting that differ.
        more: whole keys at the top.
    """
    if not (folder / "config.json").exists():
        config = json.loads((EXPERIMENTS / recipe / "config.json").read_text())
        changed = config["model"] | dict(model)
        config["model"] = {key: value for key, value in changed.items() if value is not None}
        config["pretraining_setting"] |= setting
        write_json(folder / "config.json", config | more)
    return folder


def copy_experiment(source: Path, checkpoint: int, folder: Path) -> Path:
    """An experiment folder that begins with a checkpoint of another: its config, weights and tokenizer; made once."""
    if not (folder / "config.json").exists():
        weights = f"cp-{checkpoint:04d}.model"
        shutil.copytree(source / "model" / "tokenizer", folder / "model" / "tokenizer", dirs_exist_ok=True)
        shutil.copyfile(source / "model" / weights, folder / "model" / weights)
        shutil.copyfile(source / "config.json", folder / "config.json")
    return folder


def write_table(path: Path, table: "pd.DataFrame") -> Path:
    """Write a CSV file, whole or not at all. Texts with line ends of any kind are quoted."""
    write_text(path, table.to_csv(index=False, lineterminator="\r\n"))
    return path


def read_json(path: Path) -> Any:
    """What a file holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_figures(path: Path, **figures: object) -> None:
    """As JSON, with what they must be read with: hardware, versions, date and commit."""
    write_json(path, {"machine": machine_facts(), **figures})


def write_page(path: Path, *parts: str) -> None:
    """Paragraphs and tables of Markdown."""
    write_text(path, "\n\n".join(part for part in parts if part) + "\n")


def describe_machines(machines: Iterable[Mapping[str, Any]], keys: Sequence[str] = MACHINE) -> str:
    """A line on where figures are from, each value once: `date 2026-11-24, 2026-11-25; commit …`."""
    found = list(machines)
    return "; ".join(f"{key} {', '.join(dict.fromkeys(str(each[key]) for each in found))}" for key in keys)


def shorten_paths(path: Path, runs: Path, study: str) -> None:
    """Name folders in a text as somebody else would have them: runs/STUDY, and those of the checkout from its top."""
    text = path.read_text(encoding="utf-8")
    write_text(path, text.replace(str(runs.resolve()), f"runs/{study}").replace(f"{PROJECT}/", ""))


def keep_tables(source: Path, place: Path, runs: Path, study: str) -> None:
    """Copy a table and its data, SOURCE.json and SOURCE.md, if they are there, see `shorten_paths`."""
    for ending in (".json", ".md"):
        if source.with_suffix(ending).exists():
            write_text(place.with_suffix(ending), source.with_suffix(ending).read_text(encoding="utf-8"))
            shorten_paths(place.with_suffix(ending), runs, study)


def new_figure(
    panels: int, width: float, height: float, grid: float = 0.2, **options: Any
) -> tuple["Figure", list["Axes"]]:
    """A figure and its axes, side by side.

    Args:
        panels: how many.
        width: in inches, of the whole.
        grid: its alpha.
        options: of matplotlib's `Figure.subplots`.
    """
    from matplotlib.figure import Figure  # takes a second

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = list(figure.subplots(1, panels, squeeze=False, **options)[0])
    for axis in axes:
        axis.grid(alpha=grid)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes
