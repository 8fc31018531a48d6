"""What the commands promise, tried: killed at random moments, on a full disk, with damaged files, two at once, and
before results that are there. Prints a table, and ends with status 1 where a cell of it is bad.

    make faults                                                     # FAULTS_FLAGS="--seed 7 --only predict"
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "120", "CUDA_VISIBLE_DEVICES": ""}

import argparse
import contextlib
import importlib
import json
import multiprocessing
import random
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from corpora import write_wiki
from small import ROOT, small_data

LIMIT = 60.0
"""Seconds after which a command hangs: the slowest takes three, alone."""
RUN = "run"
"""The folder of the fine-tuning run that predicts."""


@dataclass(frozen=True)
class Command:
    """A command, and what is known of its files; words are separated by spaces.

    needs: patterns of what it reads; results: of what it makes; sealed: of files, read or made, whose damage it names.
    lock: of the file by which it holds its folder; other: flags with which a second one is refused meanwhile.
    stranger: a file that it must not overwrite.
    """

    name: str
    line: str
    needs: str
    results: str
    lock: str
    sealed: str = ""
    other: str = ""
    stranger: str = ""
    expected: dict[str, bytes] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)


COMMANDS = (
    Command(
        "corpus",
        "data-preprocessing/wiki/preprocess.py --source source --out corpora/wiki/unified --workers 1",
        needs="source",
        results="corpora/wiki/unified/*.json*",
        lock="corpora/wiki/unified/parts/lock",
        other="--min_words 5",
        stranger="corpora/wiki/unified/corpus.json",
    ),
    Command(
        "rows",
        "data-preprocessing/preprocess_data_512.py --length 32 --corpus wiki --tokenizer train --vocab_size 300 "
        "--workers 1 --corpora corpora --out rows",
        needs="corpora",
        results="rows/*.* rows/tokenizer/*",
        lock="rows/parts/lock",
        sealed="corpora/wiki/unified/00000.jsonl corpora/wiki/unified/corpus.json",
        other="--seed 9",
        stranger="rows/manifest.json",
    ),
    Command(
        "pretrain",
        "code/run_pretrain.py --model model --dataset rows --device cpu",
        needs="rows model/config.json",
        results="model/model/cp-*.model",
        lock="model/model/run.lock",
        sealed="rows/train.tokens.bin rows/manifest.json rows/tokenizer/tokenizer.json",
        stranger="model/model/cp-0000.model",
    ),
    Command(
        "classify",
        "code/run_classify.py --model model --train train.csv --text body --label stars --length 24 --epoch 2 "
        "--batch_size 8 --lr 3e-4 --task faults --device cpu",
        needs="model/config.json model/model/cp-* model/model/tokenizer train.csv",
        results="model/model/documents/faults/*/*.model model/model/documents/faults/*/run.json",
        lock="model/model/documents/faults/*/run.lock",
        sealed="model/model/cp-0001.model model/model/documents/faults/*/run.json",
    ),
    Command(
        "predict",
        f"code/run_predict.py {RUN} --input new.csv --out predictions.csv --device cpu",
        needs=f"{RUN} new.csv",
        results="predictions.csv",
        lock="predictions.csv*/lock",
        sealed=f"{RUN}/*.model {RUN}/run.json {RUN}/tokenizer/tokenizer.json",
        stranger="predictions.csv",
    ),
)


class Bad(Exception):
    """What a command did that it must not."""


class Running:
    """A command in a fork of this process, which has imported what takes seconds, in a session of its own."""

    def __init__(self, command: Command, cwd: Path, more: Sequence[str] = (), most: int | None = None) -> None:
        self._log = cwd.with_name(f"{cwd.name}.{time.monotonic_ns()}.log")
        self._began = time.monotonic()
        self.status: int | None = None
        self.text, self.seconds = "", 0.0
        """Of one that has ended."""
        self.pid = os.fork() or _become(command, cwd, self._log, more, most)

    def poll(self) -> int | None:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self) -> "Running":
        while self.poll() is None and time.monotonic() < self._began + LIMIT:
            time.sleep(0.005)
        self.text, self.seconds = self._log.read_text(errors="replace"), time.monotonic() - self._began
        if self.status is None:
            os.killpg(self.pid, signal.SIGKILL)
            raise Bad(f"at work after {LIMIT:.0f} seconds: {self.text[-200:]}")
        if "Traceback" in self.text:
            raise Bad(f"a traceback: {self.text[-300:]}")
        return self


def _become(command: Command, cwd: Path, log: Path, more: Sequence[str], most: int | None) -> NoReturn:
    """Be the command, whose files may have `most` bytes, and end."""
    status: object = 1
    try:
        os.setsid()
        stream = os.open(log, os.O_WRONLY | os.O_CREAT)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(stream, number)
            setattr(sys, name, open(number, "w", buffering=1, closefd=False))  # noqa: SIM115
        os.chdir(cwd)
        if most is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        script, *flags = command.line.split()
        sys.argv = [str(ROOT / script), *flags, *more]
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as error:
        status = error.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        os._exit(status if isinstance(status, int) else 1)


def found(folder: Path, patterns: str) -> dict[str, bytes]:
    paths = (path for pattern in patterns.split() for path in sorted(folder.glob(pattern)) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


class Trial:
    """A command in folders of its own; `world` has all that any of them needs and makes."""

    def __init__(self, command: Command, world: Path, place: Path, draw: random.Random) -> None:
        self.command, self.world, self.place, self.draw = command, world, place, draw

    def fresh(self, finished: bool = False, folder: Path | None = None) -> Path:
        """A folder with what the command reads and, if asked for, all that it has made."""
        folder = folder or Path(tempfile.mkdtemp(dir=self.place))
        for pattern in ("*",) if finished else self.command.needs.split():
            for path in self.world.glob(pattern):
                target = folder / path.relative_to(self.world)
                target.parent.mkdir(parents=True, exist_ok=True)
                (shutil.copytree if path.is_dir() else shutil.copy2)(path, target)
        return folder

    def run(self, folder: Path, more: Sequence[str] = ()) -> Running:
        return Running(self.command, folder, more).end()

    def check_same(self, folder: Path, ended: Running | None = None) -> None:
        """Check that the command, run again where nothing was given, ends with the undisturbed results."""
        ended = ended or self.run(folder)
        results = found(folder, self.command.results)
        refused = ended.status == 2 and "is there already" in ended.text  # it was over before it was disturbed
        if ended.status != 0 and not refused:
            raise Bad(f"status {ended.status}: {ended.text[-300:]}")
        if results != self.command.expected:
            differing = {name for name, _ in results.items() ^ self.command.expected.items()}
            raise Bad(f"other results: {', '.join(sorted(differing))}")

    def check_refused(self, ended: Running, *words: str) -> None:
        if ended.status != 2 or not any(word in ended.text for word in words):
            raise Bad(f"status {ended.status}, expected 2 and {' or '.join(words)}: {ended.text[-300:]}")


def kill(trial: Trial) -> None:
    """Killed, told to end, and interrupted at random moments; then the same command again."""
    seconds = trial.command.seconds[0]
    for numbers in ((signal.SIGKILL,), (signal.SIGKILL, signal.SIGKILL), (signal.SIGTERM,), (signal.SIGINT,)):
        folder = trial.fresh()
        for number in numbers:
            running = Running(trial.command, folder)
            time.sleep(trial.draw.uniform(0.1, 1.0) * seconds)
            running.send(number)
            running.end()
        trial.check_same(folder)


@contextlib.contextmanager
def _disk(folder: Path, fill: Callable[[], object], room: int) -> Iterator[int | None]:
    """A disk of its own, filled and with so much room left; a limit of each file where none can be mounted."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=256m", "faults", str(folder)]
    is_mounted = os.getuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        fill()
        if is_mounted:
            status = os.statvfs(folder)
            taken = (status.f_blocks - status.f_bfree) * status.f_frsize
            subprocess.run(["mount", "-o", f"remount,size={taken + room}", folder], check=True)
        yield None if is_mounted else room
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", folder], check=True)


def disk(trial: Trial) -> None:
    """A disk with room for a part of what is written; then there is room, and the command goes on."""
    size = sum(map(len, trial.command.expected.values()))
    for share in (0.1, trial.draw.uniform(0.2, 0.9)):
        folder = trial.place / f"disk-{share:.2f}"
        with _disk(folder, lambda: trial.fresh(folder=folder), int(share * size)) as most:  # noqa: B023
            ended = Running(trial.command, folder, most=most).end()
            if ended.status != 0:
                trial.check_refused(ended, "no space left", "No space left", "File too large", "writing")
            if most is None:
                subprocess.run(["mount", "-o", "remount,size=256m", folder], check=True)
            trial.check_same(folder)


DAMAGES: Mapping[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "altered": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
}


def damage(trial: Trial, way: str) -> None:
    """A damaged file is an error that names it; once it is as it was, the command does its work."""
    for pattern in trial.command.sealed.split():
        folder = trial.fresh(finished=pattern in trial.command.results.split())
        path = next(folder.glob(pattern))
        whole = path.read_bytes()
        path.write_bytes(DAMAGES[way](whole))
        trial.check_refused(trial.run(folder), path.name)
        path.write_bytes(whole)
        trial.check_same(folder)
    if trial.command.name == "pretrain":
        folder = trial.fresh(finished=True)
        *earlier, newest = sorted((folder / "model/model").glob("cp-*.cp"))
        newest.write_bytes(DAMAGES[way](newest.read_bytes()))
        ended = trial.run(folder)
        if newest.name not in ended.text or "going back" not in ended.text:
            raise Bad(f"says nothing of {newest.name}: {ended.text[-300:]}")
        trial.check_same(folder, ended)
        for path in [*earlier, newest]:
            path.write_bytes(DAMAGES[way](path.read_bytes()))
        trial.check_refused(trial.run(folder), "none of its 2 checkpoints can be read")


def beside(trial: Trial) -> None:
    """A second command on a folder in use is refused, and the first one ends as if nothing had been."""
    for attempt in range(20):
        folder = trial.fresh()
        first = Running(trial.command, folder)
        while first.poll() is None and not any(folder.glob(trial.command.lock)):
            time.sleep(0.001)
        time.sleep(0.002 * attempt)
        first.send(signal.SIGSTOP)
        if first.poll() is None:
            second = trial.run(folder, trial.command.other.split())
            first.send(signal.SIGCONT)
            ended = first.end()
            if second.status == 0 and attempt < 19:  # stopped before it held the folder
                continue
            trial.check_refused(second, "using it", "active here", "in use")
            trial.check_same(folder, ended)
            return
        first.end()
    raise Bad("it was over each time before the second one began")


def exists(trial: Trial) -> None:
    """What is there and is not its own is neither overwritten nor removed."""
    folder = trial.fresh()
    path = folder / trial.command.stranger
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("what a user keeps")
    trial.check_refused(trial.run(folder), path.name)
    if path.read_text() != "what a user keeps":
        raise Bad(f"{path.name} was overwritten")


TRIALS: Mapping[str, Callable[[Trial], None]] = {
    "1 killed, the same again": kill,
    "2 truncated file": lambda trial: damage(trial, "truncated"),
    "2 altered file": lambda trial: damage(trial, "altered"),
    "3 full disk": disk,
    "4 two at once": beside,
    "5 output that exists": exists,
}


def prepare(world: Path) -> None:
    """Run each command undisturbed, one after another."""
    write_wiki(world / "source", files=3, articles=12)
    (world / "model").mkdir()
    frequent = {"objectives": ["mlm"], "epoch": 2, "batches_per_epoch": 8, "minutes_per_checkpoint": 1e-6}
    config = small_data(**{f"pretraining_setting__{key}": value for key, value in frequent.items()})
    (world / "model" / "config.json").write_text(json.dumps(config))
    draw = random.Random(0)
    for name, count in (("train", 60), ("new", 400)):
        labels = draw.choices(("good", "bad"), k=count)
        rows = [f"{label} {' '.join(draw.choices(('matrix', 'token', 'row'), k=8))},{label}" for label in labels]
        (world / f"{name}.csv").write_text("\n".join(["body,stars", *rows]) + "\n")
    for command in COMMANDS:
        ended = Running(command, world).end()
        if ended.status != 0:
            sys.exit(f"{command.line}\nended with {ended.status}:\n{ended.text}")
        command.seconds.append(ended.seconds)
        command.expected.update(found(world, command.results))
        if command.name == "classify":
            (record,) = world.glob("model/model/documents/faults/*/run.json")
            shutil.copytree(record.parent, world / RUN)


def try_cell(name: str, command: Command, place: Path, seed: int) -> str:
    """What was bad of a cell, empty where nothing was."""
    key = f"{name}|{command.name}"
    own = place / key
    own.mkdir()
    try:
        TRIALS[name](Trial(command, place / "world", own, random.Random(f"{seed} {key}")))
    except Exception as error:
        return str(error) if isinstance(error, Bad) else traceback.format_exc()
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10_000)
    parser.add_argument("--only", default="", help="a command's name, or the beginning of a row's")
    given = parser.parse_args()
    begin = time.monotonic()
    # What commands would import one by one: forks of this process begin at once.
    parts = ("command_line.cli", "tasks.pretraining.pretrain", "tasks.documents.task", "prediction.predict")
    for module in (*(f"nystromformer.{each}" for each in parts), "sklearn.linear_model", "torch.utils.tensorboard"):
        importlib.import_module(module)
    cells = [(name, command) for command in COMMANDS for name in TRIALS]
    cells = [(name, each) for name, each in cells if {"2": each.sealed, "5": each.stranger}.get(name[0], "all")]
    cells = [cell for cell in cells if cell[1].name == given.only or cell[0].startswith(given.only)]
    with tempfile.TemporaryDirectory(prefix="faults-") as top:
        world = Path(top, "world")
        world.mkdir()
        prepare(world)
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
            tried = [pool.submit(try_cell, *cell, Path(top), given.seed) for cell in cells]
        bad = {f"{name}|{command.name}": each.result() for (name, command), each in zip(cells, tried, strict=True)}
    names = [command.name for command in COMMANDS]
    lines = [f"{'promise':26}" + "".join(f"{name:>10}" for name in names)]
    for row in TRIALS:
        told = (bad.get(f"{row}|{name}") for name in names)
        lines.append(f"{row:26}" + "".join(f"{'-' if why is None else 'BAD' if why else 'ok':>10}" for why in told))
    seconds = time.monotonic() - begin
    lines.append(f"seed {given.seed}, {seconds:.0f} seconds; full disks: a small tmpfs for root, else a limit of files")
    sys.stdout.write("\n".join([*lines, *(f"\n{key}: {why}" for key, why in bad.items() if why)]) + "\n")
    sys.exit(any(bad.values()))


if __name__ == "__main__":
    main()
