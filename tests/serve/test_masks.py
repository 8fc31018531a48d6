"""Masked tokens filled in by a pretrained model, and the command that serves it."""

import hashlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from served import ask, ask_json
from small import CPU, command, run_here

from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.serve import masks
from nystromformer.serve.masks import FillMask
from nystromformer.tasks.experiment.folder import Experiment, open_experiment
from nystromformer.tasks.pretraining.validation import load_checkpoint

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


def test_it_says_which_files_it_was_loaded_from(experiment: Experiment, model: FillMask) -> None:
    found, checkpoints = model.source, experiment.checkpoints
    assert (found.experiment, found.task, found.folder) == (experiment.name, None, experiment.folder.name)
    assert found.seed == experiment.config.pretraining_setting.seed
    assert found.checkpoint == "cp-0001.model"
    assert found.checkpoint_sha256 == hashlib.sha256((checkpoints / found.checkpoint).read_bytes()).hexdigest()
    tokenizer = checkpoints / "tokenizer" / "tokenizer.json"
    assert found.tokenizer_sha256 == hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    assert len(model.answer([model.example])) == 1


def test_texts_of_several_lengths_and_masks_do_not_change_each_other(model: FillMask) -> None:
    texts = ["a <mask>", "landmark segment <mask> matrix <mask> value.", "<mask>"]
    together = model.answer(texts)
    for text, found in zip(texts, together, strict=True):
        (alone,) = model.answer([text])
        assert [choice.label for choice in alone.choices] == [choice.label for choice in found.choices]
        assert [c.probability for c in alone.choices] == pytest.approx([c.probability for c in found.choices], rel=1e-3)
    assert [choice.label.split(":")[0] for choice in together[1].choices] == ["1"] * 5 + ["2"] * 5


def test_an_attention_of_one_length_gets_rows_of_it_and_one_that_mixes_rows_gets_one_alone(
    model: FillMask, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, ...]] = []
    hook = model._model.encoder.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
    monkeypatch.setattr(model, "_length", model.longest)
    monkeypatch.setattr(model, "_one_by_one", True)
    model.answer(["a <mask>", "landmark <mask> matrix"])
    hook.remove()
    assert shapes == [(1, model.longest)] * 2


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


def test_which_tokens_are_read(model: FillMask, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, cut = model.answer(["<mask> </s> <pad>", "<mask>" + " token" * 100])
    assert plain.tokens > 6, "other special tokens are spelt out"
    assert cut.cut
    assert cut.tokens == model.longest
    for text, words in (("token " * 100 + "<mask>", "among the first 32 tokens"), ("none", "expected <mask>")):
        with pytest.raises(ValueError, match=words):
            model.answer([text])
    monkeypatch.setattr(masks, "_MOST_MASKS", 2)
    assert len(model.answer(["<mask> <mask>"])[0].choices) == 10
    with pytest.raises(ValueError, match="expected at most 2 <mask> in a text, found 3"):
        model.answer(["<mask> <mask> <mask>"])


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


def test_what_cannot_be_served_is_told(
    tmp_path: Path, experiment: Experiment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(folder: Path, *flags: object) -> str:
        assert run_here(monkeypatch, SCRIPT, folder, *(flags or ("--port", 0))) == 2
        return capsys.readouterr().err

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"--port {port}: is in use: choose another with --port" in refused(experiment.folder, "--port", port)
    assert "expected the folder of a pretrained experiment, with config.json, or of a finished" in refused(tmp_path)
    assert "expected --checkpoint last or one of 0, 1" in refused(experiment.folder, "--checkpoint", 7, "--port", 0)
    named = refused(experiment.folder, "--allowed_hosts", "http://a.example")
    assert "--allowed_hosts http://a.example: 'http://a.example' is no host name" in named
    assert "cannot be listened on" in refused(experiment.folder, "--host", "no.such.host.invalid")
    assert "expected a name or an address, found none" in refused(experiment.folder, "--host", "a..b")
    for package in ("fastapi", "fastapi_offline", "prometheus_client"):
        with monkeypatch.context() as missing:
            missing.setitem(sys.modules, package, None)
            for name in ("app", "metrics"):
                missing.delitem(sys.modules, f"nystromformer.serve.{name}", raising=False)
            said = refused(experiment.folder)
            assert f"this needs {package}, which is not installed" in said
            assert "nystromformer-torch[serve]" in said
