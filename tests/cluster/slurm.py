"""A Slurm cluster of two nodes on this machine, in a folder and in namespaces of its own.

Inside there is no network but its own, and each node has its own host name; the kernel ends what is left.
"""

import os
import re
import socket
import subprocess
from pathlib import Path

from processes import wait_for

NODES = {"n1": "10.0.0.1", "n2": "10.0.0.2"}
"""Names and addresses."""
NAMESPACES = ("unshare", "--mount", "--pid", "--net", "--uts", "--fork", "--mount-proc", "--kill-child=SIGKILL")


def slurm_conf(folder: Path) -> str:
    """The configuration of the whole cluster, all of whose files are in `folder`."""
    settings = {
        "ClusterName": "check",
        "SlurmctldHost": "n1",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge.socket",
        "SlurmUser": "root",
        "SlurmctldPort": "17000",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool-%n",
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/slurmd-%n.pid",
        "SlurmctldLogFile": f"{folder}/slurmctld.log",
        "SlurmdLogFile": f"{folder}/slurmd-%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SwitchType": "switch/none",
        "MpiDefault": "none",
        "MailProg": "/bin/true",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU",
        "SchedulerParameters": "sched_interval=2,bf_interval=2",
        "SlurmdParameters": "config_overrides",
    }
    nodes = [
        f"NodeName={name} NodeAddr={address} Port={17001 + number} CPUs=4 RealMemory=4096"
        for number, (name, address) in enumerate(NODES.items())
    ]
    partition = f"PartitionName=all Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP"
    return "\n".join([*(f"{key}={value}" for key, value in settings.items()), *nodes, partition, ""])


class Cluster:
    """Starts in `with`; to be used within the namespaces.

    Args:
        folder: for its files; owned by root.
        project: where jobs are submitted from.
    """

    def __init__(self, folder: Path, project: Path) -> None:
        self.folder = folder
        self.project = project
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        path = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
        self._environment = {**os.environ, "PATH": path, "SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> "Cluster":
        # Names are not resolved where there are no addresses but 127.0.0.1.
        for words in (("link", "set", "lo", "up"), *(("address", "add", each, "dev", "lo") for each in NODES.values())):
            self.run("ip", *words)
        (self.folder / "state").mkdir()
        hosts = {"localhost": "127.0.0.1", **NODES}
        (self.folder / "hosts").write_text("".join(f"{address} {name}\n" for name, address in hosts.items()))
        self.run("mount", "--bind", str(self.folder / "hosts"), "/etc/hosts")
        socket.sethostname("n1")  # the machine's own name is not to be resolved here
        (self.folder / "slurm.conf").write_text(slurm_conf(self.folder))
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid", "log-file": "munged.log"}
        flags = [f"--{flag}={self.folder / name}" for flag, name in files.items()]
        self._start("munged", "munged", "--foreground", f"--seed-file={self.folder / 'munge.seed'}", *flags)
        wait_for((self.folder / "munge.socket").exists)
        self._start("slurmctld", "slurmctld", "-D", "-i")
        for name in NODES:
            as_host = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name)
            self._start(name, *as_host, "slurmd", "-D", "-N", name)
        wait_for(lambda: self.run("scontrol", "show", "node").count("State=IDLE ") == len(NODES), 60)
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._daemons.values():
            process.kill()
        for process in self._daemons.values():
            process.wait()

    def submit(self, *words: str) -> int:
        """`sbatch` in the project's folder; returns the job's number."""
        return int(self.run("sbatch", "--parsable", *words).strip())

    def job(self, job: int) -> dict[str, str]:
        """What Slurm knows of a job (of an array's first task)."""
        line = self.run("scontrol", "show", "job", "--oneliner", str(job)).splitlines()[0]
        return dict(word.split("=", 1) for word in line.split() if "=" in word)

    def states(self, job: int) -> set[str]:
        """Those of a job's tasks."""
        return set(re.findall(r"JobState=(\w+)", self.run("scontrol", "show", "job", str(job))))

    def end(self, job: int, seconds: float = 900) -> str:
        """Wait for a job's end; returns the states of its tasks."""
        wait_for(
            lambda: not self.states(job) & {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED"}, seconds
        )
        return " ".join(sorted(self.states(job)))

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                words, env=self._environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def run(self, *words: str) -> str:
        """What a command says."""
        done = subprocess.run(
            words, cwd=self.project, env=self._environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"
        return done.stdout
