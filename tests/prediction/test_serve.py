"""The service: what it answers, and refuses with a sentence."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient
from processes import wait_for
from served import FakeModel

import nystromformer
from nystromformer.prediction import serve
from nystromformer.prediction.serve import ServedModel, create_app

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
    answer = {"choices": [{"label": "4", "probability": 0.75}], "tokens": 1, "rows": 1, "cut": False}
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


def test_every_name_may_be_allowed(model: FakeModel) -> None:
    with client_of(model, "*") as client:
        assert client.get("/health", headers={"host": "evil.example"}).status_code == 200


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
        two = pool.submit(client.post, "/predict", json={"texts": ["a", "b"]})
        refused = []

        def is_full() -> bool:
            refused.append(client.post("/predict", json={"texts": ["a"] * 4}))
            return pool.submit(client.post, "/predict", json={"texts": ["a", "b"]}).result().status_code == 503

        wait_for(is_full)
        assert refused[-1].status_code == 503
        assert refused[-1].headers["retry-after"] == "1"
        assert client.get("/health").status_code == 200
        model.go.set()
        assert first.result().status_code == two.result().status_code == 200
        assert client.post("/predict", json={"texts": ["a", "b", "c"]}).status_code == 200
