"""A container as one value: the same to the engine, as a `docker run` line, and as a label's text."""

import csv
import io
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from nystromformer.container.options import LaunchOptions, Mount
from nystromformer.container.spec import STOP_SECONDS, RunSpec
from nystromformer.errors import UserError

PLAIN = RunSpec(
    name="nystrom-512-pretrain",
    options=LaunchOptions(),
    argv=("python3", "/code/run_pretrain.py"),
    output="/model/pretrain.txt",
    mounts=(Mount("/home/x/nystrom-512", "/model"), Mount("/home/x/code", "/code", True)),
    command="pretrain",
    home="/home/x/nystrom-512",
    user="1000:1000",
)

# What a command line can hold at all; the listed ones are what shells, CSV and Docker's own NAME=VALUE care about.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12) | st.text(
    "ab \"'\\$`!*?~;&|<>(){}[]#=,:\n\t", min_size=1, max_size=12
)
NAME = TEXT.filter(lambda text: "=" not in text)
PATH = TEXT.map("/".__add__)
GPUS = st.sampled_from(["none", "all", "GPU-3a23c669-1f69,MIG-9"]) | st.lists(
    st.integers(0, 9), min_size=1, max_size=3, unique=True
).map(lambda ids: ",".join(map(str, ids)))
SPECS = st.builds(
    RunSpec,
    name=st.sampled_from(["ab", "nystrom-512-pretrain", "x.y_z"]),
    options=st.builds(
        LaunchOptions,
        gpus=GPUS,
        image=st.just("nystromformer") | TEXT.map("x".__add__),
        shm_size=st.none() | st.sampled_from(["8g", "512m", "1024k", "67108864", "100b", "8G"]),
        network=st.sampled_from(["host", "none", "my net"]),
        env=st.none() | st.lists(st.tuples(NAME, TEXT).map("=".join), max_size=3),
        restart=st.sampled_from(["no", "on-failure", "on-failure:3"]),
    ),
    argv=st.lists(TEXT | st.just(""), min_size=1, max_size=4).map(tuple),
    output=PATH,
    mounts=st.lists(st.builds(Mount, PATH, PATH, st.booleans()), max_size=3).map(tuple),
    command=TEXT,
    home=PATH,
    gpus=GPUS,
    user=st.none() | st.just("1000:100"),
    labels=st.dictionaries(NAME, TEXT, max_size=3),
    working_dir=st.none() | PATH,
)


API = docker.APIClient("http://localhost:1", version="1.43")
"""Connected to nothing: with a version given it asks nobody for one."""


class Sent:
    """What docker-py would send."""

    def __init__(self, spec: RunSpec) -> None:
        API.create_container_from_config = self._keep
        assert spec.create(API) == "id"

    def _keep(self, config: dict[str, Any], name: str, platform: str | None = None) -> dict[str, str]:
        self.config, self.name = dict(config), name
        self.host: dict[str, Any] = self.config.pop("HostConfig")
        return {"Id": "id"}


def words(line: str) -> list[str]:
    """The arguments that bash gives to `docker`."""
    script = f'docker() {{ printf "%s\\0" "$@"; }}\n{line}'
    output = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    return [word.decode() for word in output.split(b"\0")[:-1]]


def read_line(line: str) -> tuple[dict[str, list[str]], list[str]]:
    """The flags of a `docker run` line, and what follows them."""
    switches = ("--detach", "--init")
    first, *rest = words(line)
    assert first == "run"
    flags: dict[str, list[str]] = {}
    while rest and rest[0].startswith("--"):
        name = rest.pop(0)
        flags.setdefault(name, []).append("" if name in switches else rest.pop(0))
    return flags, rest


def read_mount(text: str) -> dict[str, Any]:
    (fields,) = csv.reader(io.StringIO(text, newline=""))
    pairs = dict(part.partition("=")[::2] for part in fields)
    return {
        "Type": pairs["type"],
        "Source": pairs["source"],
        "Target": pairs["target"],
        "ReadOnly": "readonly" in pairs,
    }


def read_gpus(texts: Sequence[str]) -> list[dict[str, Any]] | None:
    if not texts:
        return None
    if texts == ["all"]:
        return [{"Driver": "", "Count": -1, "DeviceIDs": [], "Capabilities": [["gpu"]], "Options": {}}]
    ((field,),) = csv.reader(texts)
    ids = field.removeprefix("device=").split(",")
    return [{"Driver": "", "Count": 0, "DeviceIDs": ids, "Capabilities": [["gpu"]], "Options": {}}]


def one(values: list[str] | None) -> str | None:
    if values is None:
        return None
    (value,) = values
    return value


@given(SPECS)
@settings(max_examples=30)
def test_the_docker_line_is_what_the_engine_is_sent(spec: RunSpec) -> None:
    sent = Sent(spec)
    flags, rest = read_line(spec.docker_run())
    assert one(flags.pop("--name")) == sent.name
    assert [*rest] == [sent.config["Image"], *sent.config["Cmd"]]
    assert flags.pop("--detach") == flags.pop("--init") == [""]
    assert sent.host["Init"] is True
    assert one(flags.pop("--stop-timeout")) == str(sent.config["StopTimeout"]) == str(STOP_SECONDS)
    assert one(flags.pop("--user", None)) == sent.config["User"]
    assert one(flags.pop("--workdir", None)) == sent.config["WorkingDir"]
    assert one(flags.pop("--network")) == sent.host["NetworkMode"]
    assert one(flags.pop("--ipc", None)) == sent.host.get("IpcMode")
    shm = one(flags.pop("--shm-size", None))
    assert (docker.utils.parse_bytes(shm) if shm else None) == sent.host.get("ShmSize")
    assert read_gpus(flags.pop("--gpus", [])) == sent.host.get("DeviceRequests")
    assert [read_mount(text) for text in flags.pop("--mount", [])] == sent.host.get("Mounts", [])
    assert flags.pop("--env", []) == (sent.config["Env"] or [])
    assert dict(text.split("=", 1) for text in flags.pop("--label", [])) == (sent.config["Labels"] or {})
    policy, _, retries = (one(flags.pop("--restart", ["no"])) or "").partition(":")
    assert sent.host["RestartPolicy"] == {"Name": policy, "MaximumRetryCount": int(retries or 0)}
    assert not flags, "the line says more than the engine is sent"
    specs = TypeAdapter(RunSpec)
    assert specs.validate_json(specs.dump_json(spec)) == spec


@given(argv=st.lists(TEXT, max_size=4), name=TEXT.filter(lambda text: "/" not in text and len(text.encode()) < 100))
@settings(max_examples=25)
def test_the_shell_gets_every_word_and_the_log_as_they_are(argv: list[str], name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / f"x{name}"
        log.write_text("before\n")
        spec = replace(PLAIN, argv=("printf", r"%s\0", "first", *argv), output=str(log))
        subprocess.run(["/bin/bash", "-c", spec.shell], check=True, cwd=folder)
        assert log.read_bytes() == b"before\n" + b"".join(word.encode() + b"\0" for word in ("first", *argv))
        assert list(Path(folder).iterdir()) == [log], "no word is a command"


def test_the_script_takes_the_place_of_bash_and_errors_go_to_the_log(tmp_path: Path) -> None:
    spec = replace(PLAIN, argv=("bash", "-c", "echo $$; echo oh >&2"), output=str(tmp_path / "log"))
    with subprocess.Popen(["/bin/bash", "-c", spec.shell]) as process:
        process.wait()
    assert (tmp_path / "log").read_text() == f"{process.pid}\noh\n", "signals reach the script itself"


@pytest.mark.parametrize("name", ["x", "", "a b", "-ab", ".ab", "ä-pretrain", "a/b", "ab\n", "a'b"])
def test_names_that_engines_refuse(name: str) -> None:
    with pytest.raises(UserError, match=r"^--name"):
        replace(PLAIN, name=name)
