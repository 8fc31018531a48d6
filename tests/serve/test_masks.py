"""Masked tokens filled in by a pretrained model, and the command that serves it."""

import json
import math
import re
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from served import ask, ask_json
from small import CPU, command, run_here

from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.errors import UserError
from nystromformer.serve import masks, server
from nystromformer.serve.masks import FillMask
from nystromformer.tasks.experiment.folder import Experiment, open_experiment
from nystromformer.tasks.pretraining.validation import load_checkpoint
from nystromformer.training.archive import read_checkpoint, write_checkpoint

SCRIPT = "code/run_serve.py"


@pytest.fixture(scope="module")
def experiment(source: Path) -> Experiment:
    return open_experiment(source)


@pytest.fixture(scope="module")
def model(experiment: Experiment) -> FillMask:
    return FillMask(experiment, "last", None, CPU)


def test_it_says_what_the_model_says(experiment: Experiment, model: FillMask) -> None:
    text = "landmark <mask> token."
    (answer,) = model.answer([text])
    tokenizer = load_tokenizer(experiment.checkpoints / "tokenizer")
    ids = tokenizer.encode(text).ids
    place = ids.index(tokenizer.token_to_id("<mask>"))
    network, _ = load_checkpoint(experiment, experiment.checkpoints / "cp-0001.model", CPU)
    with torch.no_grad():
        logits = network(torch.tensor([ids]), torch.tensor([[place]])).mlm_BKV
    assert logits is not None
    chances = logits[0, 0].softmax(-1).topk(5).values.tolist()
    assert [choice.probability for choice in answer.choices] == pytest.approx(chances, rel=1e-4)
    assert answer.tokens == len(ids)
    assert not answer.cut


def test_weights_that_are_no_numbers_are_refused(experiment: Experiment, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(experiment.folder, folder)
    path = folder / "model" / "cp-0001.model"
    content = read_checkpoint(path)
    name = next(iter(content["model"]))
    content["model"][name].view(-1)[-1] = math.inf
    write_checkpoint(content, path)
    with pytest.raises(
        UserError, match=rf"cp-0001.model: {name}: expected finite weights, found NaN or infinity in 1 of"
    ):
        FillMask(replace(experiment, folder=folder), "last", None, CPU)


def test_texts_of_several_lengths_and_masks_do_not_change_each_other(model: FillMask) -> None:
    texts = ["a <mask>", "landmark segment <mask> matrix <mask> value.", "<mask>"]
    together = model.answer(texts)
    for text, found in zip(texts, together, strict=True):
        (alone,) = model.answer([text])
        assert [choice.label for choice in alone.choices] == [choice.label for choice in found.choices]
        assert [c.probability for c in alone.choices] == pytest.approx([c.probability for c in found.choices], rel=1e-3)
    assert [choice.label.split(":")[0] for choice in together[1].choices] == ["1"] * 5 + ["2"] * 5


def test_texts_of_masks_alone_hold_few_logits(model: FillMask, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["<mask>" * 40, "landmark <mask> matrix"]
    before = model.answer(texts)
    held = []
    head = model._model.mlm.forward
    monkeypatch.setattr(model._model.mlm, "forward", lambda *args: held.append(head(*args).shape) or head(*args))
    monkeypatch.setattr(masks, "_LOGITS", 7 * 1024 + 1)
    after = model.answer(texts)
    assert max(rows * width for rows, width in held) <= masks._LOGITS
    for one, other in zip(before, after, strict=True):
        assert [choice.label for choice in one.choices] == [choice.label for choice in other.choices]
        chances = [choice.probability for choice in other.choices]
        assert [choice.probability for choice in one.choices] == pytest.approx(chances, rel=1e-4)


def test_other_special_tokens_are_text(model: FillMask) -> None:
    (plain,) = model.answer(["<mask> </s> <pad>"])
    assert plain.tokens > 6, "spelt out"


def test_a_longer_text_is_cut_and_a_mask_beyond_is_missed(model: FillMask) -> None:
    (answer,) = model.answer(["<mask>" + " token" * 100])
    assert answer.cut
    assert answer.tokens == model.longest
    for text, words in (("token " * 100 + "<mask>", "among the first 32 tokens"), ("none", "expected <mask>")):
        with pytest.raises(ValueError, match=words):
            model.answer([text])


@pytest.mark.slow
@pytest.mark.parametrize(("number", "ended"), [(signal.SIGINT, (0, 130)), (signal.SIGTERM, (-signal.SIGTERM,))])
def test_the_command_serves_until_it_is_stopped(experiment: Experiment, number: int, ended: tuple[int, ...]) -> None:
    words = command(SCRIPT, experiment.folder, "--port", 0, "--device", "cpu")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert found, line
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            assert json.loads(ask(f"{found[0]}/health")[1])["status"] == "ok"
            break
        except OSError:
            time.sleep(0.05)
    status, answer = ask_json(f"{found[0]}/predict", text="a <mask> token")
    assert status == 200
    assert len(answer["answers"][0]["choices"]) == 5
    assert answer["softmax_seconds"] > 0
    assert "--allowed_hosts" in ask(f"{found[0]}/health", host="evil.example")[1]
    with socket.create_connection(("127.0.0.1", int(found[0].rpartition(":")[2]))) as half:
        half.sendall(b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{")
        assert ask(f"{found[0]}/health")[0] == 200
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode in ended
    assert "Traceback" not in errors


def test_a_port_in_use_is_told(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert run_here(monkeypatch, SCRIPT, experiment.folder, "--port", port) == 2
    assert f"--port {port}: is in use: choose another with --port" in capsys.readouterr().err


def test_what_cannot_be_served_is_told(
    tmp_path: Path, experiment: Experiment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(monkeypatch, SCRIPT, tmp_path, "--port", 0) == 2
    assert (
        "expected the folder of a pretrained experiment, with config.json, or of a finished" in capsys.readouterr().err
    )
    assert run_here(monkeypatch, SCRIPT, experiment.folder, "--port", 0, "--checkpoint", 7) == 2
    assert "expected --checkpoint last or one of 0, 1" in capsys.readouterr().err
    assert run_here(monkeypatch, SCRIPT, experiment.folder, "--allowed_hosts", "http://a.example") == 2
    assert "--allowed_hosts http://a.example: 'http://a.example' is no host name" in capsys.readouterr().err
    assert run_here(monkeypatch, SCRIPT, experiment.folder, "--host", "no.such.host.invalid") == 2
    assert "cannot be listened on" in capsys.readouterr().err
    monkeypatch.setattr(server, "_NEEDED", ("fastapi", "no_such_library"))
    assert run_here(monkeypatch, SCRIPT, experiment.folder, "--port", 0) == 2
    assert "the service needs no_such_library, which is not installed" in capsys.readouterr().err
