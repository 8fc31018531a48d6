"""`make cluster`: the scripts of slurm/ on a real Slurm of two nodes, which starts for it and ends with it."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from corpora import write_unified
from processes import wait_for
from run_files import last_step, weights
from slurm import NAMESPACES, Cluster
from small import ROOT, contents, documents_of, write_dataset, write_experiment


def main() -> int:
    """Start the cluster in namespaces of its own, which end with this process, and wait for what its checks say."""
    folder = Path(tempfile.mkdtemp(prefix="nystrom-cluster-"))
    folder.chmod(0o755)  # munge's demand
    # Jobs find this interpreter by their PATH, as their users' do.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    words = ["setpriv", "--pdeathsig", "KILL", *NAMESPACES, sys.executable, __file__, str(folder)]
    try:
        return subprocess.run(words, env=environment, check=False).returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def edited(name: str, to: Path, *changes: tuple[str, str]) -> str:
    """A script of slurm/ as its user edits it: each change a pattern, which matches once in the part that is theirs."""
    theirs, line, rest = (ROOT / "slurm" / name).read_text().partition("# Up to here it is yours to edit.\n")
    for pattern, text in changes:
        theirs, count = re.subn(pattern, text, theirs, flags=re.MULTILINE)
        assert count == 1, f"slurm/{name}: {pattern!r} matches {count} times"
    to.write_text(theirs + line + rest)
    return str(to)


def check_array(cluster: Cluster, folder: Path) -> None:
    """The files of an array, of which a part fails, with its merge are those of one process."""
    documents = [replace(each, group=each.id) for each in documents_of("train", 120, 0)]
    write_unified(folder / "corpora", "made-up", documents, with_groups=False, files=4)
    flags = f"--corpora {folder}/corpora --corpus made-up --length 32 --tokenizer train --vocab_size 300"
    script = edited(
        "preprocess.sbatch",
        folder / "preprocess.sbatch",
        (r"^flags=.*$", f"flags=({flags} --out {folder}/array)"),
        (r"^parts=.*$", 'parts=3\n[ "$SLURM_ARRAY_TASK_ID" != 1 ] || exit 3'),
        (r"--output=\S+", f"--output={folder}/%x-%j.txt"),
        (r"--cpus-per-task=\d+ --mem=\d+G", "--cpus-per-task=2 --mem=1G"),
    )
    array = cluster.submit("--array=0-2", script)
    merge = cluster.submit(f"--dependency=afterany:{array}", script)
    command = [sys.executable, "data-preprocessing/preprocess_data_512.py", *flags.split(), "--out", f"{folder}/alone"]
    subprocess.run(command, cwd=ROOT, check=True)
    assert (cluster.end(array), cluster.end(merge)) == ("COMPLETED FAILED", "COMPLETED")
    assert contents(folder / "alone") == contents(folder / "array")


def check_time_limit(cluster: Cluster, folder: Path) -> None:
    """Two nodes: a checkpoint before the time limit, again in the queue, and the weights of a run without a stop."""
    rows = write_dataset(folder / "rows")
    sizes = {"batch_size": 16, "batches_per_report": 1, "batches_per_epoch": 3000, "epoch": 1}

    def submit(name: str) -> int:
        write_experiment(folder / name, **{f"pretraining_setting__{key}": value for key, value in sizes.items()})
        script = edited(
            "pretrain.sbatch",
            folder / f"{name}.sbatch",
            ("--nodes=4", "--nodes=2"),
            ("--cpus-per-task=64", "--cpus-per-task=1"),
            (r"^#SBATCH --gpus-per-node=8\n", ""),
            (r"--time=\S+", "--time=00:30:00"),
            (r"--output=\S+", f"--output={folder}/{name}.txt"),
            (r"^model=.*$", f"model={folder / name}"),
            (r"^dataset=.*$", f"dataset={rows}"),
            (r"^processes=8\b", "processes=1"),
        )
        return cluster.submit(script)

    job, said = submit("cut"), folder / "cut.txt"
    wait_for(lambda: last_step(folder / "cut") >= 20)
    # So that it has between one and two minutes left, of the two that --signal asks for.
    minutes, seconds = (int(number) for number in cluster.job(job)["RunTime"].split(":")[-2:])
    cluster.run("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes + 2 - (seconds == 0)}")
    wait_for(lambda: cluster.job(job).get("Restarts") == "1", 180)
    stopped_after = last_step(folder / "cut")
    wait_for(lambda: cluster.states(job) == {"PENDING"}, 60)
    time.sleep(5)  # Slurm itself waits for two minutes, as what it revoked in this second cannot start again
    cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=30", "StartTime=now")
    assert cluster.end(job) == "COMPLETED", said.read_text()
    assert f"step {stopped_after} of 3000" in said.read_text(), said.read_text()
    assert cluster.end(submit("whole")) == "COMPLETED", (folder / "whole.txt").read_text()
    one, other = weights(folder / "whole", "cp-0000.model"), weights(folder / "cut", "cp-0000.model")
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(main())
    with Cluster(Path(sys.argv[1]), ROOT) as started:
        check_array(started, started.folder)
        check_time_limit(started, started.folder)
    sys.stdout.write("an array, and a time limit on two nodes: as they should be\n")
