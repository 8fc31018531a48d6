"""Which container each command starts: its mounts, its program, and the `docker run` line of the same."""

import csv
import shlex
from pathlib import Path
from typing import Any

import docker
import pytest
from fake_engine import FakeEngine, Launcher
from small import ROOT, write_experiment

from nystromformer.container.scripts import CODE_FOLDER

CODE = (CODE_FOLDER, "/code", True)


def mounts(sent: dict[str, Any]) -> set[tuple[Path, str, bool]]:
    return {(Path(m["Source"]), m["Target"], m["ReadOnly"]) for m in sent["HostConfig"]["Mounts"]}


def test_an_experiment(
    fake: FakeEngine, launch: Launcher, words: tuple[object, ...], home: Path, dataset_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("os.getuid", lambda: 1234)
    monkeypatch.setattr("os.getgid", lambda: 99)
    said = launch(*words, "--gpus", "0", "--attention=linear").out
    (sent,), host = fake.sent, fake.sent[0]["HostConfig"]
    assert (sent["Name"], sent["Image"], sent["User"]) == ("small-pretrain", "nystromformer", "1234:99")
    flags = "--attention linear --dataset /dataset --device cuda >> /model/pretrain.txt 2>&1"
    assert sent["Cmd"] == ["/bin/bash", "-c", f"exec python3 /code/run_pretrain.py {flags}"]
    assert sent["StopTimeout"] == 300
    assert mounts(sent) == {(home, "/model", False), (dataset_folder, "/dataset", True), CODE}
    assert host["Init"] is True
    assert host["NetworkMode"] == host["IpcMode"] == "host"
    assert host["DeviceRequests"][0]["DeviceIDs"] == ["0"]
    assert fake.states == {"small-pretrain": "running"}
    assert f"small-pretrain: started; its log is {home / 'pretrain.txt'}\n" in said


def test_the_launchers_flags(fake: FakeEngine, launch: Launcher, words: tuple[object, ...], tmp_path: Path) -> None:
    fake.images, fake.security = {"mine:2"}, ["name=rootless"]
    launch(
        *words,
        *("--image", "mine:2", "--name", "first", "--network", "none"),
        *("--mount", f"{tmp_path}:/a:ro", "--env", "A=1", "--env", "B=x y=z", "--gpus", "none"),
    )
    (sent,), host = fake.sent, fake.sent[0]["HostConfig"]
    assert (sent["Image"], sent["Name"], sent["Env"]) == ("mine:2", "first", ["A=1", "B=x y=z"])
    assert sent["User"] == "0:0", "a rootless engine's root is who calls"
    assert sent["Cmd"][2].endswith(">> /model/first.txt 2>&1")
    assert "DeviceRequests" not in host
    assert host["NetworkMode"] == "none"
    assert {(tmp_path, "/a", True), CODE} < mounts(sent)


@pytest.mark.parametrize(
    ("command", "flags", "program"),
    [
        ("pretrain", ["--gpus", "all"], "torchrun --standalone --shutdown_timeout 280 --nproc_per_node gpu"),
        ("pretrain", ["--gpus", "0,1"], "torchrun --standalone --shutdown_timeout 280 --nproc_per_node 2"),
        ("pretrain", ["--gpus", "3"], "python3"),
        ("pretrain", ["--device", "cpu"], "python3"),
        ("validate", ["--gpus", "0,1"], "python3"),
    ],
)
def test_one_process_for_each_gpu(launch: Launcher, home: Path, command: str, flags: list[str], program: str) -> None:
    line = launch(command, home, "--dry_run", *flags).out
    assert f"'exec {program} /code/run_" in line
    assert ("--device cuda >>" in line) == ("--gpus" in flags)


@pytest.mark.parametrize(
    ("config", "words", "mounted", "passed"),
    [
        ({}, ["pretrain"], {("{root}/data-preprocessing/32-roberta", "/dataset")}, ""),
        ({}, ["glue", "--task", "RTE"], {("{root}/glue", "/glue")}, "--task RTE"),
        ({}, ["glue", "--task", "RTE", "--glue", "/x"], {("/x", "/glue")}, "--task RTE --glue /glue"),
        ({}, ["imdb", "--imdb", "{tmp}/a.csv"], {("{tmp}/a.csv", "/imdb/a.csv")}, "--imdb /imdb/a.csv"),
        ({}, ["transactions", "--data", "/x/bank"], {("/x/bank", "/dataset")}, "--data /dataset --task bank"),
        ({}, ["wikihop"], {("{root}/wikihop", "/wikihop")}, ""),
        ({}, ["classify", "--train", "{tmp}/a.csv", "--validation", "0.2", "--text", "t", "--label", "l"],
         {("{root}/data/documents", "/documents"), ("{tmp}/a.csv", "{tmp}/a.csv")},
         "--validation 0.2 --text t --label l --train {tmp}/a.csv"),
        ({"data_folder": "/model/rows"}, ["pretrain"], set(), ""),
        ({"data_folder": "/scratch/rows"}, ["pretrain"], {("/scratch/rows", "/scratch/rows")}, ""),
        ({"data_folder": "/model/rows", "from_cp": "../other/model/cp.model"}, ["pretrain"],
         {("{tmp}/other/model/cp.model", "/other/model/cp.model")}, ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_where_data_are(
    launch: Launcher, tmp_path: Path, config: dict[str, str], words: list[str], mounted: set[tuple[str, str]],
    passed: str,
) -> None:  # fmt: skip
    names = {"tmp": tmp_path, "root": ROOT}
    write_experiment(tmp_path / "other")
    (tmp_path / "other" / "model").mkdir()
    (tmp_path / "a.csv").touch()
    home = write_experiment(tmp_path / "small").folder
    for key, value in config.items():
        words += ["--set", f"{key}={value}"]
    command, *flags = [word.format(**names) for word in words]
    line = launch(command, home, *flags, "--dry_run", "--gpus", "none").out
    expected = {(str(home), "/model"), (str(CODE_FOLDER), "/code")}
    expected |= {(source.format(**names), target.format(**names)) for source, target in mounted}
    assert {mount[:2] for mount in read_line(line)["--mount"]} == expected
    assert sorted(shell_words(line, "--set")) == sorted(passed.format(**names).split())


def shell_words(line: str, but: str) -> list[str]:
    """A script's flags, but those of one name."""
    words = shlex.split(shlex.split(line)[-1])
    words = words[next(at for at, word in enumerate(words) if word.startswith("/code/run_")) + 1 : words.index(">>")]
    return [word for at, word in enumerate(words) if but not in words[max(0, at - 1) : at + 1]]


def read_line(line: str) -> dict[str, list[Any]]:
    """The flags of a `docker run` line; mounts as source, target and whether they are read-only."""
    words, flags = iter(shlex.split(line.replace("\\\n", ""))[3:]), dict[str, list[Any]]()
    for word in words:
        if not word.startswith("--"):
            return {**flags, "words": [word, *words]}
        flags.setdefault(word, []).append("" if word == "--init" else next(words))
        if word == "--mount":
            kind, source, target, *more = flags[word][-1].split(",")
            assert kind == "type=bind"
            flags[word][-1] = (source.removeprefix("source="), target.removeprefix("target="), more == ["readonly"])
    raise AssertionError(line)


@pytest.mark.parametrize("more", [["--gpus", "0,1"], ["--gpus", "none", "--env", "A=b c"], ["--network", "n"]])
@pytest.mark.parametrize("command", ["pretrain", "serve", "predict"])
def test_the_docker_line_is_what_the_engine_is_sent(
    fake: FakeEngine, launch: Launcher, words: tuple[object, ...], tmp_path: Path, command: str, more: list[str]
) -> None:
    run = {"serve": [], "predict": ["--input", tmp_path, "--out", tmp_path / "out.csv"]}
    start = {"pretrain": [*words], **{name: [name, words[1], *flags] for name, flags in run.items()}}
    line = read_line(launch(*start[command], *more, "--dry_run").out)
    launch(*start[command], *more)
    (sent,), host = fake.sent, fake.sent[0]["HostConfig"]
    assert line.pop("--name") == [sent["Name"]]
    assert line.pop("words") == [sent["Image"], *sent["Cmd"]]
    assert line.pop("--init") == [""]
    assert line.pop("--stop-timeout") == [str(sent["StopTimeout"])]
    assert line.pop("--user") == [sent["User"]]
    assert line.pop("--network") == [host["NetworkMode"]]
    assert line.pop("--ipc") == [host["IpcMode"]]
    assert {(Path(s), t, ro) for s, t, ro in line.pop("--mount")} == mounts(sent)
    assert line.pop("--env", None) == sent["Env"]
    assert dict(text.split("=", 1) for text in line.pop("--label")) == sent["Labels"]
    ports = {f"{port}/tcp": [{"HostIp": ip, "HostPort": to}] for ip, to, port in map(_port, line.pop("--publish", []))}
    assert ports == (host.get("PortBindings") or {})
    assert ("--gpus" in line) == ("DeviceRequests" in host)
    for text in line.pop("--gpus", []):
        ids = None if text == "all" else next(csv.reader([text]))[0].removeprefix("device=").split(",")
        assert host["DeviceRequests"] == [docker.types.DeviceRequest(count=-1 if ids is None else 0, device_ids=ids,
                                                                     capabilities=[["gpu"]])]  # fmt: skip
    assert not line, "the line says more than the engine is sent"


def _port(text: str) -> list[str]:
    return text.split(":")


def test_a_prediction_sees_the_run_its_input_and_the_folder_of_its_output(launch: Launcher, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "imdb"
    said = launch("predict", run, "--input", tmp_path / "new.csv", "--out", tmp_path / "out" / "new.csv", "--dry_run")
    line = read_line(said.out)
    sources = {(tmp_path / "runs", True), (tmp_path / "new.csv", True), (tmp_path / "out", False), (CODE_FOLDER, True)}
    assert {(Path(source), ro) for source, _, ro in line["--mount"]} == sources
    assert all(source == target or target == "/code" for source, target, _ in line["--mount"])
    paths = f"{run} --input {tmp_path / 'new.csv'} --out {tmp_path / 'out' / 'new.csv'}"
    assert line["words"] == ["nystromformer", *f"python3 /code/run_predict.py {paths} --device cuda".split()]


@pytest.mark.parametrize(
    ("flags", "network", "published", "passed"),
    [
        ([], "bridge", "127.0.0.1:8000:8000", "--port 8000 --allowed_hosts 127.0.0.1"),
        (["--port", "9", "--host", "10.0.0.1", "--allowed_hosts", "lab"], "bridge", "10.0.0.1:9:9",
         "--port 9 --allowed_hosts lab,10.0.0.1"),
        (["--network", "host"], "host", None, "--port 8000 --allowed_hosts 127.0.0.1"),
    ],
)  # fmt: skip
def test_the_service_is_reached_at_its_port_alone(
    launch: Launcher, tmp_path: Path, flags: list[str], network: str, published: str | None, passed: str
) -> None:
    line = read_line(launch("serve", tmp_path / "run", *flags, "--gpus", "none", "--dry_run").out)
    assert line["--network"] == [network]
    assert line.get("--publish") == (None if published is None else [published])
    host = "0.0.0.0" if published else "127.0.0.1"
    assert line["words"][2:] == ["/code/run_serve.py", str(tmp_path / "run"), "--host", host, *passed.split()]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pretrain", "{home}", "--gpus", "0;1"], "--gpus 0;1: expected all, none, or numbers"),
        (["pretrain", "{home}", "--mount", "/x:relative"], "--mount /x:relative: expected FOLDER:/IN/CONTAINER"),
        (["pretrain", "{home}", "--env", "=value"], "--env =value: expected NAME=VALUE"),
        (["pretrain", "{home}", "--learning_rate", "1"], "No such option: --learning_rate"),
        (["pretrain", "{home}", "--set", "model.num_layers=0"], "model.num_layers"),
        (["pretrain", "{home}", "--attention", "nystrm"], "did you mean nystrom?"),
        (["pretrain", "--attention", "linear", "{home}"], "--attention: expected the folder"),
        (["pretrain", "nowhere"], "nowhere: no such folder"),
        (["pretrain", "{home}", "another"], "another"),
        (["glue", "{home}"], "Missing option '--task'"),
        (["predict", "{home}", "--input", "x.csv"], "Missing option '--out'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_start_nothing(fake: FakeEngine, launch: Launcher, home: Path, words: list[str], said: str) -> None:
    assert said in launch.refused(*(word.format(home=home) for word in words))
    assert not fake.sent


def test_missing_data_are_named(fake: FakeEngine, launch: Launcher, home: Path) -> None:
    said = launch.refused("pretrain", home, "--dataset", "/nowhere")
    assert "/nowhere: no such file or folder, which is /dataset in the container" in said
    assert not fake.sent
