"""What a service tells those that watch it: probes, figures, and the description of its API."""

import json
import re
import socket
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient
from processes import wait_for
from prometheus_client.parser import text_string_to_metric_families
from served import FakeModel, ask, ask_json, served

import nystromformer
from nystromformer.serve.app import Limits, create_app

LIMITS = Limits(most_bytes=4096, waiting=3, together=2)
LOCAL = "http://localhost"


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def address(model: FakeModel) -> Iterator[str]:
    with served(create_app(model, LIMITS, {"encoder_seconds": lambda tokens, rows: 0.5})) as found:
        yield found


def figures(address: str) -> dict[tuple[str, ...], float]:
    """By name and labels' values, without those that say when each began to be counted."""
    families = text_string_to_metric_families(ask(f"{address}/metrics")[1])
    samples = [sample for family in families for sample in family.samples if not sample.name.endswith("_created")]
    return {(each.name.removeprefix("nystromformer_"), *each.labels.values()): each.value for each in samples}


def test_requests_are_counted_by_path_and_status(address: str) -> None:
    asked: list[tuple[str, bytes | None, dict[str, str]]] = [
        *[("/predict", b'{"text": "four"}', {})] * 3,
        ("/predict", b'{"text": "wrong"}', {}),
        ("/predict", b"x" * 5000, {}),
        ("/predict", None, {}),
        ("/health", None, {}),
        ("/health", None, {"host": "evil.example"}),
        ("/explain", b'{"text": "a"}', {}),
        *((f"/nothing/{number}", None, {}) for number in range(20)),
        ("/static-offline-docs/swagger-ui.css", None, {}),
    ]
    expected = Counter(
        (path if path in ("/predict", "/health", "/explain") else "other", str(ask(address + path, body, **headers)[0]))
        for path, body, headers in asked
    )
    assert {("/predict", "413"), ("/predict", "422"), ("/predict", "405"), ("/health", "400")} <= set(expected)
    # A client may have its answer a moment before it is counted.
    wait_for(lambda: sum(requests_in(figures(address)).values()) == len(asked))
    found = figures(address)
    assert requests_in(found) == expected
    for path in ("/predict", "/health", "/explain", "other"):
        count = sum(number for (each, _), number in expected.items() if each == path)
        assert found["request_seconds_count", path] == found["request_seconds_bucket", "+Inf", path] == count
        assert 0 < found["request_seconds_sum", path] < 60


def requests_in(found: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """Without those for the figures themselves."""
    return {key[1:]: count for key, count in found.items() if key[0] == "requests_total" and key[1] != "/metrics"}


def test_texts_and_tokens_are_counted_where_they_are_answered(address: str) -> None:
    ask_json(f"{address}/predict", texts=["a", "bb", "ccc"])
    ask_json(f"{address}/predict", text="dddd")
    for texts in (["wrong"], ["fine", "wrong"], ["broken"], []):
        assert ask_json_status(address, texts) != 200
    found = figures(address)
    assert found["texts_total",] == 4
    assert found["tokens_total",] == 1 + 2 + 3 + 4


def ask_json_status(address: str, texts: list[str]) -> int:
    return ask(f"{address}/predict", json.dumps({"texts": texts}).encode())[0]


def test_the_build_is_told_and_each_service_counts_for_itself(address: str, model: FakeModel) -> None:
    ask_json(f"{address}/predict", text="four")
    with served(create_app(model, LIMITS, {})) as other:
        found = figures(other)
        assert found["texts_total",] == 0
    (build,) = [key for key in found if key[0] == "build_info"]
    source = model.source
    told = {source.experiment, source.folder, source.task, source.checkpoint_sha256, nystromformer.__version__}
    assert set(build[1:]) == told


def test_the_form_is_the_one_that_is_asked_for(address: str) -> None:
    assert "# EOF" not in ask(f"{address}/metrics")[1]
    assert ask(f"{address}/metrics", accept="application/openmetrics-text; version=1.0.0")[1].endswith("# EOF\n")


def test_a_full_queue_is_not_ready_but_alive(address: str, model: FakeModel) -> None:
    assert json.loads(ask(f"{address}/ready")[1]) == {"status": "ready"}
    model.go.clear()
    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask_json, f"{address}/predict", text="a")]
        wait_for(lambda: model.begun > 0)
        asking += [pool.submit(ask_json, f"{address}/predict", text="a") for _ in range(2)]
        wait_for(lambda: figures(address)["texts_waiting",] == 2)
        assert ask(f"{address}/ready")[0] == 200
        asking.append(pool.submit(ask, f"{address}/explain", b'{"text": "a"}'))
        wait_for(lambda: figures(address)["texts_waiting",] == 3)
        status, text = ask(f"{address}/ready")
        assert (status, json.loads(text)["error"]) == (503, "too many requests wait: try again in a moment")
        assert ask(f"{address}/health")[0] == 200
        model.go.set()
        assert [one.result()[0] for one in asking] == [200] * 4
    assert ask(f"{address}/ready")[0] == 200
    assert figures(address)["texts_waiting",] == 0


def test_texts_of_clients_that_have_gone_do_not_wait(address: str, model: FakeModel) -> None:
    place = urlsplit(address)
    model.go.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask_json, f"{address}/predict", text="a")
        wait_for(lambda: model.begun > 0)
        body = json.dumps({"texts": ["gone"] * 3}).encode()
        with socket.create_connection((place.hostname, place.port)) as gone:
            head = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            gone.sendall(head + b"content-length: %d\r\n\r\n%s" % (len(body), body))
            wait_for(lambda: ask(f"{address}/ready")[0] == 503)
        wait_for(lambda: ask(f"{address}/ready")[0] == 200)
        with socket.create_connection((place.hostname, place.port)) as half:
            half.sendall(head + b'content-length: 99\r\n\r\n{"text"')
        wait_for(lambda: figures(address).get(("requests_total", "/predict", "499")) == 2)
        model.go.set()
        assert first.result()[0] == 200


def test_a_probe_waits_for_no_body(address: str) -> None:
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_it_is_ready_while_something_computes(model: FakeModel) -> None:
    app = create_app(model, LIMITS, {})
    client = TestClient(app, LOCAL)
    assert client.get("/ready").status_code == 503
    with client:
        assert client.get("/ready").status_code == 200
    stopped = client.get("/ready")
    assert (stopped.status_code, stopped.json()) == (503, {"error": "the service is stopping"})
    assert stopped.headers["retry-after"] == "1"


@pytest.fixture
def described(address: str) -> dict[str, Any]:
    """What /openapi.json says."""
    found: dict[str, Any] = json.loads(ask(f"{address}/openapi.json")[1])
    return found


def test_the_page_of_the_api_loads_its_own_files_alone(address: str) -> None:
    status, text = ask(f"{address}/docs")
    assert status == 200
    loaded = re.findall(r"(?:src|href)=\"([^\"]+)\"", text) + re.findall(r"url: '([^']+)'", text)
    assert {name.rpartition(".")[2] for name in loaded} == {"js", "css", "png", "json"}
    for name in loaded:
        assert name.startswith("/")
        # A picture is no text, for which `ask` is.
        with urllib.request.urlopen(address + name, timeout=60) as answer:
            assert answer.read()
    assert '"validatorUrl": null' in text, "it would ask a site of Swagger's"


def test_every_status_that_is_answered_is_documented(described: dict[str, Any]) -> None:
    questions = described["paths"]["/predict"]["post"], described["paths"]["/explain"]["post"]
    for question, more in zip(questions, (set(), {"404"}), strict=True):
        assert set(question["responses"]) == {"200", "400", "408", "413", "422", "503"} | more
        for status, response in question["responses"].items():
            if status != "200":
                assert response["content"] == {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
        assert "Retry-After" in question["responses"]["503"]["headers"]
    assert set(described["paths"]["/ready"]["get"]["responses"]) == {"200", "503"}
    assert list(questions[1]["responses"]["200"]["content"]) == ["text/html"]
    assert set(described["paths"]) == {"/", "/predict", "/explain", "/health", "/ready", "/version", "/metrics"}


def test_the_examples_of_questions_are_answered(described: dict[str, Any], address: str) -> None:
    for path in ("/predict", "/explain"):
        content = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        for example in content["examples"].values():
            assert ask(address + path, json.dumps(example["value"]).encode())[0] == 200


def test_answers_are_as_described(described: dict[str, Any], address: str) -> None:
    schemas = described["components"]["schemas"]
    told = {
        "Prediction": ask_json(f"{address}/predict", text="four")[1],
        "Version": json.loads(ask(f"{address}/version")[1]),
        "Status": json.loads(ask(f"{address}/health")[1]),
        "Error": json.loads(ask(f"{address}/nothing")[1]),
    }
    told |= {"Answer": told["Prediction"]["answers"][0], "Source": told["Version"]["source"]}
    told |= {"Choice": told["Answer"]["choices"][0]}
    for name, value in told.items():
        properties = schemas[name]["properties"]
        assert set(schemas[name].get("required", ())) <= set(value) <= set(properties), name
        assert all(field.get("description") for key, field in properties.items() if key != "status"), name
        for example in schemas[name].get("examples", ()):
            assert set(example) <= set(properties), name
