"""The campaign's judgement of a service and of the launcher's queue: planted faults are called by their names."""

import json
import random
from pathlib import Path

import pytest
from ask_service import QUESTION
from campaign import queueing, serving
from campaign.commands import Command
from campaign.queueing import QUEUED, queue
from campaign.scenes import Prepared
from campaign.serving import SERVE, service
from campaign.trees import listing
from campaign.trial import Trial, try_out
from fake_engine import FakeEngine, connected
from small import write_experiment

from nystromformer.container.scripts import GPUS_LABEL

CHOICES = [{"label": "a", "probability": 0.75}]
SERVICE = """
import json, os, signal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

mode = Path("mode").read_text()

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"] or 0))
        label = "b" if mode == "silent" else "a"
        body = json.dumps({"answers": [{"choices": [{"label": label, "probability": 0.7500001}]}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

if mode == "hang":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if mode == "lost":
    Path("model.txt").unlink()
if mode == "traceback":
    signal.signal(signal.SIGTERM, lambda *args: os._exit(1))
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_address[1]}/", "x" * (30_000 if mode == "unclear" else 0), flush=True)
server.serve_forever()
"""


@pytest.mark.parametrize("expected", ["identical", "silent", "hang", "traceback", "unclear", "lost"])
def test_how_a_service_behaved(expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = tmp_path / "before", tmp_path / "after0"
    for folder in (before, after):
        folder.mkdir()
    (before / "mode").write_text(expected)
    (before / "model.txt").write_text("weights")
    (after / "served.json").write_text(json.dumps({"answers": [{"choices": CHOICES}]}))
    (tmp_path / "script.py").write_text(SERVICE)
    monkeypatch.setattr(serving, "_COMMAND", Command(str(tmp_path / "script.py"), ()))
    monkeypatch.setattr(serving, "_ATTACKS", (lambda draw, clients: "",))
    monkeypatch.setattr(serving, "LIMIT", 1 if expected == "hang" else 30)
    prepared = {SERVE.name: Prepared(SERVE, before, listing(before), {}, {}, 1.0)}
    seed = next(seed for seed in range(99) if "SIGTERM" in drawn(Trial("service", 1, seed)))
    assert try_out(service, Trial("service", 1, seed), prepared, tmp_path / "trial").verdict.kind == expected


def drawn(trial: Trial) -> str:
    """The signal of a trial: what is drawn second."""
    draw = trial.draw
    draw.choice(serving._ATTACKS)
    return str(draw.choice(("SIGTERM", "SIGTERM", "SIGINT", "SIGKILL")))


def test_what_is_hostile_is_no_good_request() -> None:
    requests = serving._hostile_requests(random.Random(1))
    assert len(requests) > 30
    assert serving._GOOD not in requests
    assert json.dumps(QUESTION).encode() in serving._GOOD


def two_on_a_gpu(draw: random.Random, launchers: queueing._Launchers) -> None:
    api = connected(FakeEngine(url=launchers.url)).api
    command = ["/bin/bash", "-c", "python3 /code/run_pretrain.py"]
    for name in ("x", "y"):
        api.start(api.create_container("nystromformer", command, name=name, labels={GPUS_LABEL: "0"})["Id"])
    api.close()


def one_that_never_runs(draw: random.Random, launchers: queueing._Launchers) -> None:
    launchers.queued.add("a-pretrain")


def a_removed_config(draw: random.Random, launchers: queueing._Launchers) -> None:
    (launchers.folder / "b" / "config.json").unlink()


def a_command_that_is_accepted(draw: random.Random, launchers: queueing._Launchers) -> None:
    launchers.refuse(launchers.begin("queue"), ("queue",))


@pytest.mark.parametrize(
    ("plot", "expected"),
    [
        (queueing._two_at_once, "identical"),
        (queueing._a_spoilt_place, "clear error"),
        (queueing._a_promised_gpu, "clear error"),
        (two_on_a_gpu, "silent"),
        (one_that_never_runs, "lost"),
        (a_removed_config, "lost"),
        (a_command_that_is_accepted, "unclear"),
    ],
)
def test_how_a_queue_ended(
    plot: object, expected: str, tmp_path: Path, dataset_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tmp_path / "before"
    (before / "dataset").mkdir(parents=True)
    for path in dataset_folder.iterdir():
        (before / "dataset" / path.name).symlink_to(path)
    (before / "model").mkdir()
    write_experiment(before / "model")
    monkeypatch.setattr(queueing, "_PLOTS", (plot,))
    prepared = {QUEUED.name: Prepared(QUEUED, before, listing(before), {}, {}, 1.0)}
    outcome = try_out(queue, Trial("queue", 1, 1), prepared, tmp_path / "trial")
    assert outcome.verdict.kind == expected, outcome
