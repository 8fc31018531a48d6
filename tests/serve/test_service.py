"""The service: what it answers, refuses and survives."""

import base64
import http.client
import json
import math
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

import browser
import matplotlib.pyplot as plt
import numpy as np
import pytest
from browser import BROWSER, open_browser
from processes import wait_for
from served import FakeModel, ask, ask_json, served

import nystromformer
from nystromformer.report.explained import Explained
from nystromformer.report.explained import page as explained_page
from nystromformer.serve.answers import Answer, Choice
from nystromformer.serve.app import Limits, create_app
from nystromformer.serve.cost import RowTime

SUPPORT = Path(browser.__file__).parent
TIMES = RowTime([10, 100], [0.01, 1.0])
LIMITS = Limits(most_bytes=4096, most_texts=8, waiting=300, together=16)


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def address(model: FakeModel) -> Iterator[str]:
    with served(
        create_app(model, LIMITS, {"encoder_seconds": lambda tokens, rows: 0.5, "softmax_seconds": TIMES.of_rows})
    ) as found:
        yield found


def test_a_text_and_several(address: str) -> None:
    status, found = ask_json(f"{address}/predict", text="four")
    assert status == 200
    assert found["answers"][0]["choices"][0] == {"label": "4", "probability": 0.75}
    assert found["softmax_seconds"] == pytest.approx(0.01)
    assert found["encoder_seconds"] == 0.5
    status, found = ask_json(f"{address}/predict", texts=["a", "bb", "ccc"])
    assert [answer["tokens"] for answer in found["answers"]] == [1, 2, 3]


def test_health_and_version(address: str) -> None:
    assert json.loads(ask(f"{address}/health")[1]) == {"status": "ok"}
    told = json.loads(ask(f"{address}/version")[1])
    source = told.pop("source")
    assert told == {"version": nystromformer.__version__, "model": "counting <b>", "longest": 100}
    assert source == asdict(FakeModel.source)


def test_a_model_that_reads_any_length_says_none(model: FakeModel) -> None:
    model.longest = None
    with served(create_app(model, LIMITS, {})) as address:
        assert json.loads(ask(f"{address}/version")[1])["longest"] is None
        assert "It reads up to" not in ask(address)[1]
        assert set(ask_json(f"{address}/predict", text="a")[1]) == {"answers", "seconds"}


def test_a_probability_that_is_no_number_is_no_answer(model: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    nan = Answer([Choice("a", math.nan)], 1, False)
    monkeypatch.setattr(model, "answer", lambda texts: [nan] * len(texts))
    with served(create_app(model, LIMITS, {})) as address:
        assert ask(f"{address}/predict", b'{"text": "a"}')[0] == 500


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"{", 400, "expected JSON such as"),
        (b"[]", 400, "expected JSON such as"),
        (b'{"text": 3}', 400, "text: "),
        (b'{"texts": "a"}', 400, "texts: "),
        (b'{"text": "a", "path": "/etc/passwd"}', 400, "path: "),
        (b"{}", 400, 'expected either "text" or "texts"'),
        (b'{"text": "a", "texts": ["b"]}', 400, 'expected either "text" or "texts"'),
        (b'{"texts": ["a", " "]}', 422, "a text is empty"),
        (json.dumps({"texts": ["a"] * 9}).encode(), 413, "expected at most 8 texts, found 9"),
        (b'{"texts": ["a", "b \\ud800 c"]}', 422, "a text has half of a surrogate pair"),
        (b'{"text": "a\xff"}', 400, ""),
        (b"[" * 3000, 400, ""),
        (b'{"text": "wrong"}', 422, "this text has no answer"),
    ],
)
def test_what_is_no_question_is_refused_with_a_sentence(content: bytes, status: int, words: str, address: str) -> None:
    found, text = ask(f"{address}/predict", content)
    assert found == status
    assert words in json.loads(text)["error"]
    assert ask_json(f"{address}/predict", text="on it goes")[0] == 200


def test_one_texts_fault_is_not_anothers(address: str) -> None:
    statuses = {"wrong": 422, "broken": 500}
    texts = ["fine", "wrong", "good", "broken", "well", "wrong"]
    with ThreadPoolExecutor(8) as pool:
        asked = [json.dumps({"text": text}).encode() for text in texts]
        found = list(pool.map(lambda content: ask(f"{address}/predict", content)[0], asked))
    assert found == [statuses.get(text, 200) for text in texts]


def test_a_huge_body_is_not_read(address: str) -> None:
    """Whether its length is told or not; who sends all before reading, as most clients do, sees the refusal."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    connection.putrequest("POST", "/predict")
    connection.putheader("transfer-encoding", "chunked")
    connection.endheaders()
    with suppress(OSError):  # it does not listen to the end
        for _ in range(200):
            connection.send(b"400\r\n" + b"x" * 1024 + b"\r\n")
    answer = connection.getresponse()
    assert answer.status == 413
    assert "longer than the 4,096 bytes" in json.loads(answer.read())["error"]
    for size in (4097, 1 << 20, 20 << 20):
        status, text = ask(f"{address}/predict", b'{"text": "' + b"x" * size + b'"}')
        assert status == 413
        assert "longer than the 4,096 bytes" in text
    assert ask_json(f"{address}/predict", text="on")[0] == 200


def test_two_hundred_at_once_of_mixed_lengths(address: str, model: FakeModel) -> None:
    texts = ["x" * (1 + 37 * number % 1500) for number in range(200)]
    with ThreadPoolExecutor(64) as pool:
        found = list(pool.map(lambda text: ask_json(f"{address}/predict", text=text), texts))
    assert [status for status, _ in found] == [200] * 200
    assert [answer["answers"][0]["tokens"] for _, answer in found] == [len(text) for text in texts]
    assert sum(model.sizes) == 200
    assert max(model.sizes) <= LIMITS.together


def test_who_has_gone_is_not_computed(address: str, model: FakeModel) -> None:
    place = urlsplit(address)
    model.go.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask_json, f"{address}/predict", text="first")
        wait_for(lambda: model.begun > 0)
        for path in ("predict", "explain") * 5:
            gone = socket.create_connection((place.hostname, place.port))
            body = b'{"text": "gone"}'
            gone.sendall(b"POST /%s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" % path.encode())
            gone.sendall(b"content-length: %d\r\n\r\n%s" % (len(body), body))
            time.sleep(0.05)
            gone.close()
        time.sleep(0.5)
        model.go.set()
        assert first.result()[0] == 200
    assert ask_json(f"{address}/predict", text="here")[0] == 200
    assert model.sizes == [1, 1]
    assert model.explained == 0


def test_more_than_may_wait_are_told_to_come_again(model: FakeModel) -> None:
    """Explanations wait in the same queue."""
    with served(create_app(model, Limits(waiting=3, together=2), {})) as address:
        model.go.clear()
        with ThreadPoolExecutor(12) as pool:
            asking = [pool.submit(ask_json, f"{address}/predict", text="a")]
            wait_for(lambda: model.begun > 0)
            asking += [pool.submit(ask, f"{address}/explain", b'{"text": "a"}') for _ in range(11)]
            wait_for(lambda: sum(one.done() for one in asking) == 8)
            model.go.set()
            statuses = sorted(one.result()[0] for one in asking)
        assert statuses == [200] * 4 + [503] * 8, "one is computed, three wait"
        assert ask_json(f"{address}/predict", text="a")[0] == 200


def test_more_texts_than_may_wait_are_not_told_to_come_again(model: FakeModel) -> None:
    with served(create_app(model, Limits(waiting=3), {})) as address:
        status, found = ask_json(f"{address}/predict", texts=["a"] * 4)
        assert (status, found["error"]) == (413, "expected at most 3 texts, found 4")
        assert ask_json(f"{address}/predict", texts=["a"] * 3)[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/nothing", "/../../etc/passwd", "/static/../app.py", "/predict/../../x", "/static-offline-docs/"),
        *("/static-offline-docs/../core.py", "/static-offline-docs/..%2fcore.py", "/static-offline-docs/%2fetc/passwd"),
    ],
)
def test_no_path_reads_a_file(path: str, address: str) -> None:
    status, text = ask(address + path)
    assert status in (404, 405)
    assert json.loads(text)["error"]
    assert "root:" not in text
    assert "import" not in text


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": ""},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "Application/X-WWW-Form-urlencoded; charset=utf-8"},
        {"content-type": "application/json", "origin": "http://localhost"},
    ],
    ids=["none", "empty", "form", "form with parameters", "JSON of a page"],
)
def test_json_need_not_say_that_it_is(headers: dict[str, str], address: str) -> None:
    for body in (b'{"text": "four"}', b' \n{"text": "four"}'):
        status, text = post(address, "/predict", body, headers)
        assert status == 200, text
        assert json.loads(text)["answers"][0]["tokens"] == 4


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"text=four", {"content-type": "application/x-www-form-urlencoded"}),
        (b"four", {}),
        (b"", {}),
        (b'{"text": "four"}', {"content-type": "text/plain"}),
        # Any page of the web may send these, without asking first.
        (b'{"text": "four"}', {"content-type": "application/x-www-form-urlencoded", "origin": "http://evil.example"}),
        (b'{"text": "four"}', {"origin": "null"}),
    ],
    ids=["form", "text", "nothing", "plain text", "form of a page", "untyped of a page"],
)
def test_what_does_not_say_that_it_is_json_and_is_none_is_refused(
    body: bytes, headers: dict[str, str], address: str, model: FakeModel
) -> None:
    status, text = post(address, "/predict", body, headers)
    assert status == 400
    assert re.match(r'the body: .*; expected JSON such as {"text": "…"}', json.loads(text)["error"])
    assert model.begun == 0


def post(address: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
    """Status and body; `urllib` would say by itself that it sends a form."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_an_explanation_is_a_page_or_none(address: str) -> None:
    assert ask(f"{address}/explain", b'{"text": "short"}') == (200, "<p>5</p>")
    status, text = ask(f"{address}/explain", json.dumps({"text": "x" * 60}).encode())
    assert status == 404
    assert "no explanation" in json.loads(text)["error"]


def test_times_are_between_what_was_measured_and_beyond_by_the_last_power() -> None:
    times = RowTime([64, 128, 256], [1.0, 2.0, 8.0])
    assert times.at(10) == times.at(64) == 1.0
    assert times.at(128) == pytest.approx(2.0)
    assert 2.0 < times.at(200) < 8.0
    assert times.at(512) == pytest.approx(32.0)
    linear = RowTime([64, 128], [1.0, 1.8])
    assert linear.at(1280) == pytest.approx(18.0), "never by less than the length"
    assert RowTime([64, 128], [1.0, 9.0]).at(256) == pytest.approx(36.0), "nor more than its square"
    assert times.of_rows(1024, 8) == pytest.approx(8 * times.at(128))
    assert RowTime([64], [1.0]).at(128) == pytest.approx(2.0)


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
@pytest.mark.slow
def test_the_page_answers_in_a_browser(model: FakeModel) -> None:
    model.name = "counting <b>" + "_of_a_run_with_a_long_name" * 3
    model.label = "a_label_that_is_long" * 5
    checks = (SUPPORT / "page_checks.js").read_text()
    app = create_app(model, LIMITS, {"encoder_seconds": TIMES.of_rows, "softmax_seconds": TIMES.of_rows})
    with served(app) as address, open_browser() as page:
        for width, dark in ((1200, False), (360, True), (360, False)):
            page.open(f"{address}/", width, dark)
            assert page.evaluate("document.querySelector('h1').textContent") == model.name
            page.evaluate("document.getElementById('text').value = 'a <i>text</i>'")
            page.evaluate("document.querySelector('button').click()")
            script = """new Promise(resolve => { const wait = () => {
                const cells = [...document.querySelectorAll('td')].map(cell => cell.textContent);
                const frame = document.getElementById('explained');
                if (cells.length && !frame.hidden) resolve(cells.concat(document.getElementById('said').textContent));
                else setTimeout(wait, 20); }; wait(); })"""
            *cells, said = page.evaluate(script)
            assert cells == ["13", "75.0 %", model.label, "25.0 %"]
            assert "13 tokens" in said
            assert "softmax attention" in said
            assert page.evaluate(checks) == []


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
@pytest.mark.slow
def test_each_question_has_its_explanation_on_the_page(model: FakeModel) -> None:
    """Its frame cannot be read from the page, so its pixels are."""
    with served(create_app(model, LIMITS, {})) as address, open_browser() as page:
        page.open(f"{address}/", 900, False)
        for text in ("a text", "another text", "a third text"):
            page.evaluate(f"document.getElementById('text').value = {text!r}")
            page.evaluate("document.querySelector('button').click()")
            script = """new Promise(resolve => { const wait = () => {
                const frame = document.getElementById('explained');
                if (frame.hidden) setTimeout(wait, 20);
                else setTimeout(() => { const box = frame.getBoundingClientRect();
                    resolve([box.x + 2, box.y + scrollY + 2, box.width - 4, box.height - 4]); }, 500); }; wait(); })"""
            clip = dict(zip(("x", "y", "width", "height", "scale"), [*page.evaluate(script), 1], strict=True))
            shot = page.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
            pixels = plt.imread(BytesIO(base64.b64decode(shot["data"])))
            assert pixels.std() > 0, text


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
@pytest.mark.slow
def test_an_explanation_fits_a_narrow_window(tmp_path: Path) -> None:
    weights = np.linspace(0, 1, 3, dtype=np.float32)
    explained = Explained(
        "one two", [(0, 3), (4, 7), (0, 0)], ["one", "two", "</s>"], weights[None].repeat(8, 0), weights
    )
    label, checks = "a_label_that_is_long" * 5, (SUPPORT / "page_checks.js").read_text()
    facts = {
        "run": "/of/runs" + "/a_folder_with_a_long_name" * 5,
        "predicted": label,
        "cut": "the text was longer " * 5,
    }
    (tmp_path / "page.html").write_text(explained_page(f"Explanation: {label}", facts, explained))
    with open_browser() as page:
        for dark in (False, True):
            page.open((tmp_path / "page.html").as_uri(), 360, dark)
            assert page.evaluate(checks) == []
            right = """[...document.querySelectorAll('h1, label, .text td, .shaded')].map(each => {
                const range = document.createRange(); range.selectNodeContents(each);
                return range.getBoundingClientRect().right; })"""
            assert max(page.evaluate(right)) <= 360


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
@pytest.mark.slow
def test_the_documentation_asks_no_other_site(address: str) -> None:
    with open_browser() as page:
        page.open(f"{address}/docs", 1200, False)
        script = """new Promise(resolve => { const wait = () => document.querySelector('.opblock')
            ? resolve(performance.getEntriesByType('resource').map(entry => entry.name)) : setTimeout(wait, 20);
            wait(); })"""
        loaded = page.evaluate(script)
        assert any(name.endswith(".js") for name in loaded)
        assert any(name.endswith("/openapi.json") for name in loaded)
        assert all(name.startswith((f"{address}/", "data:")) for name in loaded)
