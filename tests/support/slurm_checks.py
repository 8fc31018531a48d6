"""What the scripts in slurm/ do on a real Slurm: each check tells what it saw, or raises what was wrong."""

import hashlib
import random
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow
import torch
from corpora import contents, sentence, write_unified
from finetuning import finetuned_glue, made_rows, pretrained
from pyarrow import parquet
from run_files import last_step, records
from slurm_cluster import Cluster, ClusterError, wait_until
from small import ROOT, write_dataset, write_experiment

from nystromformer.data.preprocessing.corpus import Document
from nystromformer.training.archive import read_checkpoint
from nystromformer.training.checkpoint import find_checkpoints

YOURS = "# Up to here it is yours to edit.\n"
TOLERANCE = 1e-5
_UNDER_WAY = 20
"""Steps after which something happens to a run."""
_SECONDS = 50.0
"""How long an uninterrupted run trains. Slurm looks for jobs near their time limit every 30 seconds."""
_PIECES = 6


def edited(name: str, to: Path, *changes: tuple[str, str]) -> Path:
    """A script of slurm/ as its user edits it: each change a pattern, which matches once in the part that is theirs."""
    theirs, line, rest = (ROOT / "slurm" / name).read_text().partition(YOURS)
    assert line, f"slurm/{name} does not say where the user's part ends"
    for pattern, text in changes:
        theirs, count = re.subn(pattern, lambda _, text=text: text, theirs, flags=re.MULTILINE)  # type: ignore[misc]
        assert count == 1, f"slurm/{name}: {pattern!r} matches {count} times"
    to.write_text(theirs + line + rest)
    return to


@dataclass(frozen=True)
class Job:
    """A pretraining job."""

    number: int
    experiment: Path
    output: Path

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    @property
    def step(self) -> int:
        return last_step(self.experiment)


class Checks:
    """The checks, in a cluster that runs.

    Args:
        folder: for their files.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.rows = write_dataset(folder / "rows")

    def array(self) -> str:
        """The files of an array, of which a part fails, with its merge are those of one process."""
        write_unified(self.folder / "corpora", "made-up", _documents(), with_groups=False, files=_PIECES)
        flags = f"--corpora {self.folder}/corpora --corpus made-up --length 64 --tokenizer train --vocab_size 400"
        out = {name: self.folder / f"rows-{name}" for name in ("array", "alone")}
        parts = _PIECES - 1
        script = edited(
            "preprocess.sbatch",
            self.folder / "preprocess.sbatch",
            (r"^flags=.*$", f"flags=({flags} --out {out['array']})"),
            (r"^parts=.*$", f'parts={parts}\n[ "$SLURM_ARRAY_TASK_ID" != 1 ] || exit 3'),
            (r"--output=\S+", f"--output={self.folder}/%x-%j.txt"),
            (r"--cpus-per-task=\d+ --mem=\d+G", "--cpus-per-task=2 --mem=1G"),
        )
        words = [sys.executable, ROOT / "data-preprocessing/preprocess_data_512.py", *flags.split(), "--workers", "1"]
        return self._merged(script, parts, [*words, "--out", out["alone"]], out)

    def predicted(self) -> str:
        """The files of an array of predictions, of which a slice fails, with the rest are those of one process."""
        source = self.folder / "new"
        source.mkdir()
        for number in range(_PIECES):
            texts = [text for text, _ in made_rows(50, number)]
            parquet.write_table(pyarrow.table({"sentence": texts}), source / f"{number}.parquet")
        pretrained(self.folder / "pretrained", self.rows)
        run = finetuned_glue(self.folder / "pretrained", self.folder / "tuned", "SST-2")
        out = {name: self.folder / f"predicted-{name}" for name in ("array", "alone")}
        slices = _PIECES - 1
        script = edited(
            "predict.sbatch",
            self.folder / "predict.sbatch",
            (r"^command=.*$", f"command=({run} --input {source} --out {out['array']})"),
            (r"^slices=.*$", f'slices={slices}\n[ "$SLURM_ARRAY_TASK_ID" != 1 ] || exit 3'),
            (r"--output=\S+", f"--output={self.folder}/%x-%j.txt"),
            (r"--mem=\d+G", "--mem=1G"),
        )
        words = [sys.executable, ROOT / "code/run_predict.py", run, "--input", source, "--out", out["alone"]]
        return self._merged(script, slices, words, out)

    def _merged(self, script: Path, slices: int, words: Sequence[object], out: Mapping[str, Path]) -> str:
        """Run an array, whose second job fails, and what finishes it, beside a command that does all of it alone."""
        array = self.cluster.submit(f"--array=0-{slices - 1}", str(script))
        merge = self.cluster.submit(f"--dependency=afterany:{array}", str(script))
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
        _expect(done.returncode == 0, "the command in one process failed", done.stderr)
        for job, end in ((array, "COMPLETED FAILED"), (merge, "COMPLETED")):
            state = self.cluster.wait_for(job)
            outputs = "\n".join(path.read_text() for path in sorted(self.folder.glob(f"{script.stem}-*.txt")))
            _expect(state == end, f"job {job}: {state}, expected {end}", outputs)
        alone, together = (contents(folder) for folder in (out["alone"], out["array"]))
        _expect(alone == together, "other files than those of one process", f"{[*alone]}\n{[*together]}")
        return f"{slices} jobs, one of which failed, {len(alone)} files, equal to those of one process"

    def uninterrupted(self) -> str:
        """The run that the others are compared with."""
        return f"{self.steps} steps, weights {self._weights_alone[1]}"

    def time_limit(self) -> str:
        """TERM, a checkpoint at that step, again in the queue, the same end."""
        job = self._submit("limit")
        self._wait_for_step(job)
        # So that it has between one and two minutes left, of the two that --signal=TERM@120 asks for.
        minutes, seconds = (int(n) for n in self.cluster.job(job.number)["RunTime"].split(":")[-2:])
        self.cluster.control("update", f"JobId={job.number}", f"TimeLimit={minutes + 2 - (seconds == 0)}")
        wait_until(lambda: self.cluster.job(job.number).get("Restarts") == "1", "the job to be queued again", 150)
        first = job.said
        stop = re.findall(r"stopped by SIGTERM after step (\d+)", first)
        _expect(len(stop) == 1 and "Traceback" not in first, "no orderly stop", first)
        step = int(stop[0])
        newest = find_checkpoints(job.experiment / "model")[-1].path
        content = read_checkpoint(newest)
        _expect(content["step"] == step == content["progress"]["step"], f"{newest.name} is not of step {step}", first)
        last = first.strip().splitlines()[-1]
        _expect(re.search("queues itself again|DUE TO JOB REQUEUE", last) is not None, "its last line", first)
        self._run_again(job)
        _expect(f"going on from {newest.name}, step {step} of" in job.said, "did not go on from there", job.said)
        _expect("Traceback" not in job.said, "a traceback", job.said)
        return f"stopped after step {step}, went on from {newest.name}; {self._compared(job)}"

    def lost_node(self) -> str:
        """The job is in the queue until the node is back, and goes on from its last checkpoint."""
        job = self._submit("lost", minutes_per_checkpoint=0.05)
        self._wait_for_step(job)
        wait_until(lambda: find_checkpoints(job.experiment / "model"), "a checkpoint", 60)
        step = job.step
        self.cluster.kill_node("n2")
        wait_until(lambda: self.cluster.job(job.number).get("Restarts") == "1", "the job to be queued again", 120)
        self.cluster.start_node("n2")
        self._run_again(job)
        from_step = re.findall(r"going on from \S+, step (\d+) of", job.said)
        _expect(bool(from_step), "did not go on from a checkpoint", job.said)
        _expect("Traceback" not in job.said, "a traceback", job.said)
        return f"n2 killed after step {step}, went on from step {from_step[-1]}; {self._compared(job)}"

    def cancelled(self) -> str:
        """Whom the user cancels stays away."""
        job = self._submit("cancelled")
        self._wait_for_step(job)
        self.cluster.cancel(job.number)
        state = self.cluster.wait_for(job.number, 90)
        _expect(state == "CANCELLED" and self.cluster.job(job.number)["Restarts"] == "0", state, job.said)
        _expect("Traceback" not in job.said, "a traceback", job.said)
        return f"CANCELLED, not queued again, {len(find_checkpoints(job.experiment / 'model'))} checkpoint"

    def mistake(self) -> str:
        """Is said once, and the job has failed."""
        job = self._submit("mistake", rows=self.folder / "nowhere")
        state = self.cluster.wait_for(job.number, 120)
        said = re.findall("error: .*expected a dataset folder.*", job.said)
        _expect(state == "FAILED" and len(said) >= 1 and "Traceback" not in job.said, state, job.said)
        status = self.cluster.job(job.number)["ExitCode"]
        _expect(status == "2:0", f"exit status {status}", job.said)
        return "FAILED with exit status 2, no traceback"

    @cached_property
    def steps(self) -> int:
        """As many as take `_SECONDS`, by those of a short run of two processes."""
        folder = self.folder / "speed"
        self._write_experiment(folder, steps=120)
        flags = ["--standalone", "--nproc_per_node", "2", ROOT / "code/run_pretrain.py"]
        words = [sys.executable, "-m", "torch.distributed.run", *flags, "--model", folder, "--dataset", self.rows]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        _expect(done.returncode == 0, "the run that measures the speed failed", done.stderr)
        times = {r["step"]: r["time"] for r in records(folder, "train")}
        pace = (times[120] - times[20]) / 100
        return max(400, 100 * round(_SECONDS / pace / 100))

    def _write_experiment(self, folder: Path, steps: int, minutes_per_checkpoint: float = 1000.0) -> None:
        write_experiment(
            folder,
            pretraining_setting__batch_size=16,
            pretraining_setting__batches_per_report=1,
            pretraining_setting__batches_per_epoch=steps,
            pretraining_setting__epoch=1,
            pretraining_setting__minutes_per_checkpoint=minutes_per_checkpoint,
        )

    def _submit(self, name: str, rows: Path | None = None, minutes_per_checkpoint: float = 1000.0) -> Job:
        """A job of two nodes with one process each."""
        folder = self.folder / name
        self._write_experiment(folder, self.steps, minutes_per_checkpoint)
        output = self.folder / f"{name}.txt"
        script = edited(
            "pretrain.sbatch",
            self.folder / f"{name}.sbatch",
            ("--nodes=4", "--nodes=2"),
            ("--cpus-per-task=64", "--cpus-per-task=1"),
            (r"^#SBATCH --gpus-per-node=8\n", ""),
            (r"--time=\S+", "--time=00:20:00"),
            (r"--output=\S+", f"--output={output}"),
            (r"^model=.*$", f"model={folder}"),
            (r"^dataset=.*$", f"dataset={rows or self.rows}"),
            (r"^processes=8\b", "processes=1"),
        )
        return Job(self.cluster.submit(str(script)), folder, output)

    def _wait_for_step(self, job: Job) -> None:
        wait_until(lambda: job.step >= _UNDER_WAY or self._has_ended(job), f"step {_UNDER_WAY}", 120)
        _expect(job.step < self.steps and not self._has_ended(job), "the run has ended already", job.said)

    def _has_ended(self, job: Job) -> bool:
        return self.cluster.job(job.number)["JobState"] in ("FAILED", "COMPLETED", "TIMEOUT", "CANCELLED")

    def _run_again(self, job: Job) -> None:
        """Wait for the end of a job that is in the queue again, which Slurm lets wait there for two minutes."""
        wait_until(lambda: self.cluster.job(job.number)["JobState"] == "PENDING", "the job to be pending", 60)
        self.cluster.control("update", f"JobId={job.number}", "TimeLimit=20", "StartTime=now")
        state = self.cluster.wait_for(job.number)
        _expect(state == "COMPLETED", state, job.said)

    @cached_property
    def _weights_alone(self) -> tuple[dict[str, torch.Tensor], str]:
        """The uninterrupted run's weights, and the beginning of their file's sha256."""
        job = self._submit("alone")
        state = self.cluster.wait_for(job.number)
        _expect(state == "COMPLETED", state, job.said)
        _expect("Traceback" not in job.said, "a traceback", job.said)
        path = job.experiment / "model" / "cp-0000.model"
        return read_checkpoint(path)["model"], hashlib.sha256(path.read_bytes()).hexdigest()[:12]

    def _compared(self, job: Job) -> str:
        weights = read_checkpoint(job.experiment / "model" / "cp-0000.model")["model"]
        expected, _ = self._weights_alone
        _expect(weights.keys() == expected.keys(), "other weights", str(sorted(weights)))
        difference = max(float((weights[name] - expected[name]).abs().max()) for name in expected)
        _expect(difference <= TOLERANCE, f"the weights differ by {difference:g}", job.said)
        return f"weights differ by {difference:g} at the most"


CHECKS: dict[str, Callable[[Checks], str]] = {
    "array of jobs and dependent merge": Checks.array,
    "array of predictions and what finishes it": Checks.predicted,
    "two nodes, uninterrupted": Checks.uninterrupted,
    "TERM before the time limit": Checks.time_limit,
    "a node that dies": Checks.lost_node,
    "scancel": Checks.cancelled,
    "a mistake": Checks.mistake,
}


def _documents() -> list[Document]:
    draw, names = random.Random(0), [f"{number}" for number in range(40 * _PIECES)]
    return [Document(id=name, group=name, sentences=tuple(sentence(draw) for _ in range(12))) for name in names]


def _expect(holds: bool, what: str, output: str) -> None:
    """The last lines of the output say why it does not."""
    if not holds:
        raise ClusterError(f"{what}\n" + "\n".join(output.splitlines()[-30:]))
