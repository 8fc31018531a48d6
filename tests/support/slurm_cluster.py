"""A Slurm cluster of two nodes on this machine, in a folder and in namespaces of its own.

Inside `namespaces` there is no network but its own, /etc/hosts is the cluster's, each node has its own host name, and
nothing outlives the process that was started: the kernel ends what is left.
"""

import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

NODES = {"n1": "10.0.0.1", "n2": "10.0.0.2"}
"""Names and addresses."""
PROGRAMS = (
    *("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo"),
    *("unshare", "setpriv", "mount", "hostname"),
)
NEEDS = (
    "error: `make cluster` needs root, Linux namespaces (`unshare --net` must be allowed) and Debian's packages: "
    "apt-get install --no-install-recommends slurm-wlm munge"
)
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")
NAMESPACES = ("unshare", "--mount", "--pid", "--net", "--uts", "--fork", "--mount-proc", "--kill-child=SIGKILL")


def search_path() -> str:
    """PATH with the folders of a system's daemons."""
    return os.pathsep.join([os.environ.get("PATH", ""), *_SBIN])


def can_start() -> bool:
    """Whether this machine has what a cluster needs."""
    if os.getuid() != 0 or any(shutil.which(program, path=search_path()) is None for program in PROGRAMS):
        return False
    return subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode == 0


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
        # A node that does not answer is lost soon, and used again when it is back.
        "SlurmdTimeout": "10",
        "ReturnToService": "2",
        "KillWait": "30",
    }
    nodes = [
        f"NodeName={name} NodeAddr={address} Port={17001 + number} CPUs=4 RealMemory=4096"
        for number, (name, address) in enumerate(NODES.items())
    ]
    partition = f"PartitionName=all Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP"
    return "\n".join([*(f"{key}={value}" for key, value in settings.items()), *nodes, partition, ""])


class ClusterError(Exception):
    """The cluster, or a job of it, did not do what it should."""


def wait_until(condition: Callable[[], object], what: str, seconds: float) -> None:
    """Look until it holds.

    Raises:
        ClusterError: it did not within the time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"waited {seconds:.0f} seconds for {what}")
        time.sleep(0.1)


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
        self._environment = {**os.environ, "PATH": search_path(), "SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> "Cluster":
        _addresses_up()
        (self.folder / "state").mkdir()
        hosts = {"localhost": "127.0.0.1", **NODES}
        (self.folder / "hosts").write_text("".join(f"{address} {name}\n" for name, address in hosts.items()))
        self._run("mount", "--bind", str(self.folder / "hosts"), "/etc/hosts")
        socket.sethostname("n1")  # the machine's own name is not to be resolved here
        (self.folder / "slurm.conf").write_text(slurm_conf(self.folder))
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid", "log-file": "munged.log"}
        flags = [f"--{flag}={self.folder / name}" for flag, name in files.items()]
        self._start("munged", "munged", "--foreground", f"--seed-file={self.folder / 'munge.seed'}", *flags)
        wait_until((self.folder / "munge.socket").exists, "munge's socket", 20)
        self._start("slurmctld", "slurmctld", "-D", "-i")
        for name in NODES:
            self.start_node(name)
        wait_until(lambda: self._states() == ["IDLE"] * len(NODES), "both nodes to be idle", 60)
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._daemons.values():
            process.kill()
        for process in self._daemons.values():
            process.wait()

    def start_node(self, name: str) -> None:
        """Start a node's daemon, for the first time or again."""
        self._start(name, *_as_host(name), "slurmd", "-D", "-N", name)

    def kill_node(self, name: str) -> None:
        """End every process of a node at once, as when it loses its power."""
        host = os.readlink(f"/proc/{self._daemons[name].pid}/ns/uts")
        for _ in range(3):  # what is started meanwhile
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    if os.readlink(process / "ns" / "uts") == host:
                        os.kill(int(process.name), signal.SIGKILL)
        self._daemons.pop(name).wait()

    def submit(self, *words: str) -> int:
        """`sbatch` in the project's folder; returns the job's number."""
        return int(self._run("sbatch", "--parsable", *words).strip())

    def control(self, *words: str) -> str:
        """What `scontrol` says."""
        return self._run("scontrol", *words)

    def version(self) -> str:
        """Slurm's."""
        return self._run("sinfo", "--version").split()[-1]

    def cancel(self, job: int) -> None:
        """`scancel`."""
        self._run("scancel", str(job))

    def job(self, job: int) -> dict[str, str]:
        """What Slurm knows of a job (of an array's first task)."""
        line = self.control("show", "job", "--oneliner", str(job)).splitlines()[0]
        return dict(word.split("=", 1) for word in line.split() if "=" in word)

    def states(self, job: int) -> set[str]:
        """The states of a job's tasks."""
        lines = self.control("show", "job", "--oneliner", str(job)).splitlines()
        return {word.split("=")[1] for line in lines for word in line.split() if word.startswith("JobState=")}

    def wait_for(self, job: int, seconds: float = 300) -> str:
        """Wait for a job's end; returns its state, or the states of its tasks.

        Raises:
            ClusterError: it takes longer.
        """
        going = {"PENDING", "RUNNING", "COMPLETING", "REQUEUED", "CONFIGURING", "SUSPENDED"}
        wait_until(lambda: not self.states(job) & going, f"job {job} to end", seconds)
        return " ".join(sorted(self.states(job)))

    def _states(self) -> list[str]:
        words = self.control("show", "node", "--oneliner").split()
        return [word.split("=")[1] for word in words if word.startswith("State=")]

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                words, env=self._environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            words, cwd=self.project, env=self._environment, capture_output=True, text=True, check=False, timeout=60
        )
        if done.returncode:
            raise ClusterError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout


def _as_host(name: str) -> Sequence[str]:
    """A program with a host name of its own."""
    return ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name)


def _addresses_up() -> None:
    """In a network namespace that is new, there is only a loopback interface, and that is down.

    The nodes' addresses are its second and third: names are not resolved where there are none but 127.0.0.1.
    """
    up, set_address, set_flags = 0x1, 0x8916, 0x8914
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", up))
        for number, address in enumerate(NODES.values()):
            ip = struct.pack("16sHH4s8x", f"lo:{number}".encode(), socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(any_socket, set_address, ip)
