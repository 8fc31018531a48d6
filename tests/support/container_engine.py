"""A private container engine for tests: Podman behind Docker's API, with an image that runs this very Python.

Nothing is downloaded and no daemon has to run: the engine keeps all it has in a folder of its own, and its image is
almost empty, because the operating system and Python are mounted into each container from here.
"""

import contextlib
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import docker
import requests

IMAGE = "nystromformer"
# What the Dockerfile sets as well (tests/container/test_image.py compares); PYTHONPATH stands for the
# image's .pth file, beside which the environment here would find the clone that the tests run in.
ENVIRONMENT = {
    "PATH": "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/home/nystrom",
    "USER": "nystrom",
    "LOGNAME": "nystrom",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TRITON_CACHE_DIR": "/home/nystrom/.cache/triton",
    "TORCHINDUCTOR_CACHE_DIR": "/home/nystrom/.cache/torchinductor",
    "HF_HOME": "/home/nystrom/.cache/huggingface",
    "MPLCONFIGDIR": "/home/nystrom/.cache/matplotlib",
}
MOUNT_POINTS = ("code", "model", "dataset", "glue", "wikihop", "imdb", "documents", "data-preprocessing")


@dataclass(frozen=True)
class Engine:
    """An engine that runs; `env` is what a `docker` command line needs to find it."""

    url: str
    client: docker.DockerClient
    folder: Path
    image: str = IMAGE

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "DOCKER_HOST": self.url}

    def import_image(self, name: str, layer: bytes | Path, changes: Sequence[str] = ()) -> None:
        """Make the tar archive `layer` an image of that name; `changes` are lines of a Dockerfile, such as ENV.

        By Podman's own command, because its API drops the changes.
        """
        options = [part for change in changes for part in ("--change", change)]
        source, data = ("-", layer) if isinstance(layer, bytes) else (str(layer), None)
        self.podman("import", "--quiet", *options, source, f"docker.io/library/{name}:latest", data=data)

    def podman(self, *arguments: str, data: bytes | None = None) -> str:
        """What a command of Podman's own prints, for what Docker has no command for."""
        command = [*_podman(self.folder), *arguments]
        ended = subprocess.run(command, input=data, env=_environment(self.folder), check=False, capture_output=True)
        if ended.returncode != 0:
            raise RuntimeError(f"podman {' '.join(arguments)}: {ended.stderr.decode(errors='replace')}")
        return ended.stdout.decode()


def missing() -> str | None:
    """Why no engine can be started here; None where one can."""
    if sys.platform != "linux":
        return "the engine of these tests runs on Linux only"
    if os.geteuid() != 0:
        return "the engine of these tests needs root, to mount"
    absent = [name for name in ("podman", "runc", "catatonit") if shutil.which(name, path=_search_path()) is None]
    return f"not installed: {', '.join(absent)} (.ci/engine installs them on Debian and Ubuntu)" if absent else None


@contextlib.contextmanager
def start_engine(volumes: Sequence[str] = (), environment: Sequence[str] = ()) -> Iterator[Engine]:
    """Start an engine whose containers all get these volumes ("here:there:ro") and variables ("NAME=value")."""
    # The socket's path may have about 100 characters, which pytest's temporary folders can exceed.
    folder = Path(tempfile.mkdtemp(prefix="nystrom-engine-", dir="/tmp"))
    try:
        # Of its own: "storage" means a folder of the whole system's, which is not there before root has used Podman.
        (folder / "images").mkdir()
        text = _configuration(volumes, environment, folder / "images")
        (folder / "containers.conf").write_text(text, encoding="utf-8")
        with _service(folder) as client:
            try:
                yield Engine(f"unix://{folder}/sock", client, folder)
            finally:
                for container in client.containers.list(all=True, ignore_removed=True):
                    with contextlib.suppress(docker.errors.NotFound):
                        container.remove(force=True)
                client.close()
    finally:
        _end_monitors(folder)
        _unmount_below(folder)
        shutil.rmtree(folder)


def host_volumes() -> list[str]:
    """The volumes with which a container runs this Python: the system's /usr, the base installation, the environment.

    The environment is mounted twice, because scripts of `.venv/bin` name it by its path here.
    """
    folders = {"/usr": "/usr"}
    # The names that /usr/bin/c++ and others lead through.
    if Path("/etc/alternatives").is_dir():
        folders["/etc/alternatives"] = "/etc/alternatives"
    if not Path(sys.base_prefix).is_relative_to("/usr"):
        folders[sys.base_prefix] = sys.base_prefix
    folders[sys.prefix] = sys.prefix
    return [f"{here}:{there}:ro" for there, here in {**folders, "/opt/venv": sys.prefix}.items()]


def host_image() -> tuple[bytes, list[str]]:
    """The layer and the configuration of an image in which `host_volumes` make up the system."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for name in ("dev", "etc", "home", "opt", "proc", "root", "run", "sys", "usr", "var", *MOUNT_POINTS):
            layer.addfile(_folder(name, 0o755))
        # Any user may write there: containers run as whoever starts them.
        for name in ("tmp", "var/tmp", "home/nystrom"):
            layer.addfile(_folder(name, 0o1777))
        for name in ("bin", "lib", "lib64", "sbin"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            layer.addfile(link)
        # Without them Podman makes its own, which only root may read.
        for name, line in (("passwd", b"root:x:0:0:root:/root:/bin/bash\n"), ("group", b"root:x:0:\n")):
            file = tarfile.TarInfo(f"etc/{name}")
            file.size, file.mode = len(line), 0o644
            layer.addfile(file, io.BytesIO(line))
    variables = {**ENVIRONMENT, "PYTHONPATH": "/code"}
    return buffer.getvalue(), [*(f"ENV {name}={value}" for name, value in variables.items()), 'CMD ["/bin/bash"]']


def _folder(name: str, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    return entry


def _configuration(volumes: Sequence[str], environment: Sequence[str], images: Path) -> str:
    # Within a sandbox limits cannot be raised, and Podman's defaults would be a raise.
    files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1024)
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    processes = 4096 if processes == resource.RLIM_INFINITY else min(processes, 4096)
    # Locks in files: those in shared memory are one pool for all engines of a machine, which each new one empties.
    return f"""\
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
volumes = [{", ".join(f'"{volume}"' for volume in volumes)}]
env = [{", ".join(f'"{variable}"' for variable in environment)}]
netns = "host"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
lock_type = "file"
events_logger = "file"
image_copy_tmp_dir = "{images}"
"""


def _podman(folder: Path) -> list[str]:
    places = [f"--root={folder}/root", f"--runroot={folder}/run", f"--tmpdir={folder}/tmp"]
    return [shutil.which("podman", path=_search_path()) or "podman", *places]


def _search_path() -> str:
    # runc is in a folder for administrators, which is not on everyone's path.
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CONTAINER", "DOCKER_"))}
    return {**kept, "PATH": _search_path(), "CONTAINERS_CONF": str(folder / "containers.conf")}


@contextlib.contextmanager
def _service(folder: Path) -> Iterator[docker.DockerClient]:
    command = [*_podman(folder), "system", "service", "--time=0", f"unix://{folder}/sock"]
    # It does not outlive killed tests.
    setpriv = shutil.which("setpriv")
    if setpriv is not None:
        command = [setpriv, "--pdeathsig", "TERM", *command]
    log = folder / "log"
    with (
        log.open("wb") as file,
        subprocess.Popen(
            command, env=_environment(folder), stdout=file, stderr=file, start_new_session=True
        ) as service,
    ):
        try:
            yield _connect(folder / "sock", service, log)
        finally:
            service.terminate()
            try:
                service.wait(20)
            except subprocess.TimeoutExpired:
                service.kill()


def _connect(socket: Path, service: subprocess.Popen[bytes], log: Path) -> docker.DockerClient:
    deadline = time.monotonic() + 60
    while service.poll() is None and time.monotonic() < deadline:
        if socket.exists():
            with contextlib.suppress(docker.errors.DockerException, requests.exceptions.ConnectionError):
                # Long: a container's end is waited for with this client too.
                return docker.DockerClient(base_url=f"unix://{socket}", timeout=300)
        time.sleep(0.05)
    raise RuntimeError(f"podman did not start, status {service.poll()}: {log.read_text(errors='replace')}")


def _end_monitors(folder: Path) -> None:
    """End what Podman keeps for five minutes after a program within a container has ended (conmon)."""
    deadline = time.monotonic() + 20
    while left := [path for path in Path("/proc").glob("[0-9]*/cmdline") if _names(path, folder)]:
        assert time.monotonic() < deadline, left
        for path in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.parent.name), signal.SIGKILL)
        time.sleep(0.01)


def _names(command_line: Path, folder: Path) -> bool:
    try:
        return f"{folder}/".encode() in command_line.read_bytes()
    except OSError:
        return False  # it has ended


def _unmount_below(folder: Path) -> None:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
    for mount in sorted(mounts, key=len, reverse=True):
        if Path(mount).is_relative_to(folder):
            subprocess.run(["umount", "--lazy", mount], check=True)
