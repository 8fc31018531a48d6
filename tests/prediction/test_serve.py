"""The service: what it answers, and refuses with a sentence; clients that are slow, many, or gone."""

import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import requests
from browser import BROWSER, open_browser
from fastapi.testclient import TestClient
from finetuning import finetuned_glue
from processes import wait_for
from served import FakeModel, ask, service
from small import command, run_here

import nystromformer
from nystromformer.prediction import serve
from nystromformer.prediction.predictor import Predictor
from nystromformer.prediction.serve import Choice, ServedModel, answer_of, create_app

LOCAL = "http://localhost"


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


def client_of(model: FakeModel, *hosts: str, **limits: Any) -> TestClient:
    served = create_app(cast(ServedModel, model), hosts, **limits)
    return TestClient(served, LOCAL, raise_server_exceptions=False)


@pytest.fixture
def client(model: FakeModel) -> Iterator[TestClient]:
    with client_of(model) as found:
        yield found


def test_a_text_and_several(client: TestClient) -> None:
    found = client.post("/predict", json={"text": "four"}).json()
    answer = {
        "choices": [{"label": "4", "probability": 0.75}],
        "tokens": 1,
        "rows": 1,
        "cut": False,
        "unknown_share": 0,
    }
    assert found.pop("seconds") >= 0
    assert found == {"answers": [answer]}
    found = client.post("/predict", json={"texts": ["a", "bb", "ccc"]}).json()
    assert [each["choices"][0]["label"] for each in found["answers"]] == ["1", "2", "3"]


def test_what_is_served(client: TestClient) -> None:
    told = {"status": "ok", "version": nystromformer.__version__, "model": FakeModel.name, "run": "/runs/counting"}
    assert client.get("/health").json() == told
    shown = client.get("/").text
    assert "counting &lt;b&gt;" in shown
    assert "It counts &amp; tells." in shown
    assert set(client.get("/openapi.json").json()["paths"]) == {"/", "/predict", "/explain", "/health"}
    assert client.get("/docs").status_code == 404, "its page would load files from another site"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "JSON decode error"),
        (b"[]", "body: "),
        (b'{"text": 3}', "body.text: "),
        (b'{"texts": "a"}', "body.texts: "),
        (b'{"text": "a", "path": "/etc/passwd"}', "body.path: "),
        (b"{}", "expected either"),
        (b'{"text": "a", "texts": ["b"]}', "expected either"),
        (b'{"texts": []}', "at least 1"),
        (b'{"texts": ["a", " "]}', "found an empty one"),
        (json.dumps({"texts": ["a"] * 65}).encode(), "at most 64"),
        (b'{"text": "b \\ud800 c"}', "half of a surrogate pair"),
        (b'{"text": "a\xff"}', ""),
        (b"[" * 3000, ""),
    ],
)
def test_what_is_no_question_is_refused_with_a_sentence(content: bytes, words: str, client: TestClient) -> None:
    answer = client.post("/predict", content=content, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert words in answer.json()["detail"]
    assert client.post("/predict", json={"text": "on it goes"}).status_code == 200


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
def test_what_any_page_of_the_web_may_send_is_no_question(kind: str | None, client: TestClient) -> None:
    headers = {"content-type": kind} if kind else {}
    assert client.post("/predict", content=b'{"text": "a"}', headers=headers).status_code == 422


def test_a_body_that_is_too_long(client: TestClient, model: FakeModel) -> None:
    """Whether its length is told or not."""
    body = b'{"text": "' + b"x" * serve.MOST_BYTES + b'"}'
    headers = {"content-type": "application/json"}
    for content in (body, iter([body])):
        assert client.post("/predict", content=content, headers=headers).status_code == 413
    assert model.begun == 0


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("localhost", "LocalHost:80", "127.0.0.1", "[::1]:8000", "models.example")),
        *((host, 400) for host in ("evil.example", "localhost.evil.example", "", "localhost@evil.example")),
    ],
)
@pytest.mark.parametrize("path", ["/health", "/", "/predict"])
def test_only_its_own_names_are_answered(path: str, host: str, status: int, model: FakeModel) -> None:
    with client_of(model, "models.example") as client:
        answer = client.request(
            "POST" if path == "/predict" else "GET", path, json={"text": "a"}, headers={"host": host}
        )
    assert answer.status_code == status
    assert model.begun == (path == "/predict" and status == 200)


def test_an_explanation_is_a_page_or_none(client: TestClient) -> None:
    assert client.post("/explain", json={"text": "short"}).text == "<p>5</p>"
    answer = client.post("/explain", json={"text": "x" * 60})
    assert (answer.status_code, answer.json()) == (404, {"detail": "no weights"})
    assert client.post("/explain", json={"text": ""}).status_code == 422


def test_texts_that_come_together_are_computed_together(client: TestClient, model: FakeModel) -> None:
    """And one text's fault is not another's."""
    model.go.clear()
    texts = ["first", "fine", "broken", "good", "well", *(f"text {number}" for number in range(20))]
    with ThreadPoolExecutor(32) as pool:
        asked = [pool.submit(client.post, "/predict", json={"text": texts[0]})]
        wait_for(lambda: model.begun > 0)
        asked += [pool.submit(client.post, "/predict", json={"text": text}) for text in texts[1:]]
        wait_for(lambda: all(one.running() for one in asked))
        model.go.set()
        found = [one.result() for one in asked]
    assert [one.status_code for one in found] == [500 if text == "broken" else 200 for text in texts]
    for text, one in zip(texts, found, strict=True):
        assert text == "broken" or one.json()["answers"][0]["choices"][0]["label"] == str(len(text))
    assert sum(model.sizes) == len(texts) - 1
    assert max(model.sizes) <= serve.TOGETHER


def test_more_than_may_wait_are_told_to_come_again(model: FakeModel) -> None:
    """All texts of a request wait, or none."""
    model.go.clear()
    with client_of(model, waiting=3) as client, ThreadPoolExecutor(8) as pool:
        first = pool.submit(client.post, "/predict", json={"text": "a"})
        wait_for(lambda: model.begun > 0)
        pairs: list[Future[Any]] = []

        def refused() -> list[Any]:
            """Of equal requests, of which one has room."""
            pairs.append(pool.submit(client.post, "/predict", json={"texts": ["a", "b"]}))
            return [pair.result() for pair in pairs if pair.done()]

        wait_for(refused)
        assert {each.status_code for each in refused()} == {503}
        assert {each.headers["retry-after"] for each in refused()} == {"1"}
        assert client.post("/predict", json={"texts": ["a"] * 4}).status_code == 503
        assert client.get("/health").status_code == 200
        model.go.set()
        assert first.result().status_code == 200
        assert [pair.result().status_code for pair in pairs].count(200) >= 1
        assert client.post("/predict", json={"texts": ["a", "b", "c"]}).status_code == 200


SCRIPT = "code/run_serve.py"
TEXTS = ["softmax landmark", "query value key", "token " * 60]
HALF = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"


@pytest.fixture(scope="module")
def port(finished: Path) -> Iterator[int]:
    with service(command(SCRIPT, finished, "--port", 0, "--device", "cpu")) as (_, found):
        yield found


def test_answers_are_the_runs_predictions(finished: Path, port: int) -> None:
    told = Predictor(finished, "cpu")(TEXTS)
    found = ask(port, "predict", texts=TEXTS)
    assert found.status_code == 200
    answers = found.json()["answers"]
    for number, answer in enumerate(answers):
        assert answer["predicted"] == [answer["choices"][0]["label"]] == [told["prediction"][number]]
        chance = answer["choices"][0]["probability"]
        assert chance == pytest.approx(max(told["p_0"][number], told["p_1"][number]), rel=1e-5)
        assert answer["cut"] == (number == 2)
    page = ask(port, "explain", text="softmax <b>")
    assert page.status_code == 200
    assert "Gradient × input" in page.text
    assert "<b>" not in page.text
    assert ask(port, "predict", texts=TEXTS).json()["answers"] == answers


def test_many_and_slow_and_broken_clients_at_once(port: int) -> None:
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
    for number, connection in enumerate(slow):
        connection.sendall(HALF if number % 2 else HALF[:30])
        if number % 4 == 0:
            connection.close()
    with socket.create_connection(("127.0.0.1", port)) as huge, suppress(ConnectionError):
        huge.sendall(HALF.replace(b"99", b"50000000") + b"x" * 5_000_000)
    texts = ["token " * (1 + 37 * number % 300) for number in range(200)]
    with ThreadPoolExecutor(200) as pool:
        found = list(pool.map(lambda text: ask(port, "predict", text=text).status_code, texts))
    assert found == [200] * 200
    for connection in slow:
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_within_seconds(finished: Path, number: int) -> None:
    """Whoever has not sent all of a request."""
    words = command(SCRIPT, finished, "--port", 0, "--device", "cpu")
    with service(words) as (process, port), socket.create_connection(("127.0.0.1", port)) as half:
        half.sendall(HALF)
        assert requests.get(f"http://127.0.0.1:{port}/health", timeout=60).status_code == 200
        begin = time.monotonic()
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
        assert time.monotonic() - begin < 15
    assert process.returncode in (-number, 128 + number)
    assert "Traceback" not in errors


def test_what_cannot_be_served_is_told(
    tmp_path: Path, finished: Path, source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(folder: Path, *flags: object) -> str:
        assert run_here(monkeypatch, SCRIPT, folder, *(flags or ("--port", 0)), "--device", "cpu") == 2
        return capsys.readouterr().err

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"--host 127.0.0.1 --port {port}: Address already in use" in refused(finished, "--port", port)
    assert "expected the folder of a finished fine-tuning run" in refused(tmp_path)
    pairs = finetuned_glue(source, tmp_path, "STS-B")
    assert "it was trained on pairs of texts" in refused(pairs)
    for name in ("http://a.example", "a b", "a,,b", "a*"):
        assert "--allowed_hosts: expected names such as" in refused(finished, "--allowed_hosts", name)
    for name in ("no.such.host.invalid", "a..b"):
        assert f"--host {name}" in refused(finished, "--host", name)


def test_choices_are_the_likeliest_and_values_have_no_probability() -> None:
    assert answer_of(0.5, {}) == ([Choice(label="value", value=0.5)], None)
    chances = dict(zip("abcdefghijkl", np.random.default_rng(0).dirichlet(np.ones(12)).astype(np.float32), strict=True))
    # The median of ordered classes, and labels beyond those that are shown.
    for told, predicted in (("h", ["h"]), (list(chances), list(chances))):
        choices, found = answer_of(told, chances)
        assert found == predicted
        assert [each.probability for each in choices] == sorted(map(float, chances.values()), reverse=True)[:10]
        assert all(each.probability == chances[each.label] for each in choices)


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
@pytest.mark.slow
def test_the_page_answers_and_explains_in_a_browser(port: int) -> None:
    with open_browser() as page:
        page.open(f"http://127.0.0.1:{port}/")
        for text in ("a <i>text</i>", "softmax and more"):
            page.evaluate(f"document.getElementById('text').value = {json.dumps(text)}")
            page.evaluate("document.querySelector('button').click()")
            script = """new Promise(resolve => { const wait = () => {
                const cells = [...document.querySelectorAll('td')].map(cell => cell.textContent);
                const frame = document.getElementById('explained');
                if (cells.length && !frame.hidden) resolve([document.getElementById('said').textContent, ...cells]);
                else setTimeout(wait, 20); }; wait(); })"""
            said, *cells = page.evaluate(script)
            assert said.startswith(f"Predicted: {cells[0]}. ")
            assert cells[1].endswith(" %")
