"""A finished run behind a local page and a JSON API."""

import asyncio
import html
import logging
import os
import re
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Self

import uvicorn
from fastapi import Body, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from starlette.middleware.trustedhost import TrustedHostMiddleware

import nystromformer
from nystromformer.errors import UserError
from nystromformer.prediction.explain import explain_text
from nystromformer.prediction.predictor import Predictor, check_texts

MOST_BYTES = 1 << 20
"""Of a request's body."""
MOST_TEXTS, WAITING, TOGETHER = 64, 256, 16
"""Texts of a request, that may wait, and that are computed together."""
_SHOWN = 10
"""Classes of an answer, at most."""
_PAGE = Path(__file__).with_name("serve.html")
_HOST = re.compile(r"\*|(\*\.)?[\w.:-]+")


def _checked(text: str) -> str:
    check_texts([text])
    return text


Text = Annotated[str, AfterValidator(_checked)]


class Texts(BaseModel):
    """One text, or several."""

    model_config = ConfigDict(extra="forbid")

    text: Text | None = None
    texts: list[Text] | None = Field(default=None, min_length=1, max_length=MOST_TEXTS)

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.text is None) == (self.texts is None):
            raise ValueError('expected either {"text": "…"} or {"texts": ["…", "…"]}')
        return self


class Choice(BaseModel):
    """A class or label and its probability; or `value` and what the model predicts."""

    label: str
    probability: float | None = None
    value: float | None = None


class Answer(BaseModel):
    """What a model says of a text: its choices, the likeliest first; what it predicts; and what it read.

    predicted: the class (of ordered classes the median), or all labels that hold; absent for a value. tokens: that were
    read, in so many rows. cut: whether the text was longer than that. unknown_share: of its tokens, those that the
    tokenizer does not know.
    """

    choices: list[Choice]
    predicted: list[str] | None = None
    tokens: int
    rows: int
    cut: bool
    unknown_share: float


class Prediction(BaseModel):
    """The answers to a request's texts in their order, and the seconds that they waited and were computed."""

    answers: list[Answer]
    seconds: float


class ServedModel:
    """A finished run on single texts, read at once and not when the first one asks."""

    def __init__(self, folder: Path, device: str) -> None:
        self.predictor = Predictor(folder, device)
        network = self.predictor.network
        if network.recipe.is_of_pairs:
            raise UserError(f"{folder}: it was trained on pairs of texts, and the service takes single texts")
        assert self.predictor.run is not None
        assert network.model  # read now
        self.folder = folder
        self.name = f"{self.predictor.run.experiment}, {self.predictor.run.task}"
        names = network.recipe.answer.names
        predicted = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        self.does = f"It predicts {predicted or 'a value'}, and reads up to {network.length:,} tokens."

    def answer(self, texts: Sequence[str]) -> list[Answer]:
        """Of each text, in their order."""
        network = self.predictor.network
        examples = network.encode(texts)
        found = self.predictor.results(network.scores(examples))
        answers = []
        for number in range(len(texts)):
            choices, predicted = answer_of(*self.predictor.told(found, number))
            read = {"tokens": int(examples.tokens[number]), "rows": int(examples.rows[number])}
            unknown = round(float(found["unknown_share"][number]), 6)
            cut = bool(found["cut"][number])
            answers.append(Answer(choices=choices, predicted=predicted, cut=cut, unknown_share=unknown, **read))
        return answers

    def explain(self, text: str) -> str:
        """A page with the tokens shaded that the answer goes by."""
        return explain_text(self.predictor, text).page


def answer_of(told: Any, chances: dict[str, Any]) -> tuple[list[Choice], list[str] | None]:
    """The likeliest classes or labels of a text, and what is predicted: its class, or all labels that hold."""
    if not chances:
        return [Choice(label="value", value=float(told))], None
    likeliest = sorted(chances.items(), key=lambda each: (each[1], each[0]), reverse=True)[:_SHOWN]
    choices = [Choice(label=name, probability=float(chance)) for name, chance in likeliest]
    return choices, told if isinstance(told, list) else [told]


class Batcher:
    """Has a model answer and explain in one thread: PyTorch's own threads share the cores."""

    def __init__(self, model: ServedModel, most: int) -> None:
        self.thread = ThreadPoolExecutor(1)
        self._model, self._most = model, most
        self._waiting: deque[tuple[str, Future[Answer]]] = deque()

    def submit(self, texts: Sequence[str]) -> list[Future[Answer]] | None:
        """The answers to come; None where there is no room for all of the texts. To be called in one thread."""
        if len(self._waiting) + len(texts) > self._most:
            return None
        futures: list[Future[Answer]] = [Future() for _ in texts]
        self._waiting.extend(zip(texts, futures, strict=True))
        for _ in texts:  # the first ones take the others with them
            self.thread.submit(self._answer_next)
        return futures

    def _answer_next(self) -> None:
        batch = [self._waiting.popleft() for _ in range(min(TOGETHER, len(self._waiting)))]
        if batch := [each for each in batch if each[1].set_running_or_notify_cancel()]:
            self._answer(batch)

    def _answer(self, batch: Sequence[tuple[str, Future[Answer]]]) -> None:
        try:
            answers = self._model.answer([text for text, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return
            # One text's fault is not the others': each by itself.
            for each in batch:
                self._answer([each])
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            future.set_result(answer)


def create_app(model: ServedModel, hosts: Sequence[str] = (), waiting: int = WAITING) -> FastAPI:
    """The app.

    Args:
        hosts: names that a request may call the service beside loopback's; `*` for any.
    """
    # The pages of the documentation would load files from another site.
    app = FastAPI(title="Nyströmformer", docs_url=None, redoc_url=None, max_body_size=MOST_BYTES)
    # A page of the web whose name is made to lead to this machine (DNS rebinding) could otherwise read the answers.
    names = ["localhost", "127.0.0.1", "[::1]", *hosts]
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False)
    batcher = Batcher(model, waiting)

    @app.exception_handler(RequestValidationError)
    async def refuse(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        said = first["msg"].removeprefix("Value error, ")
        return JSONResponse({"detail": f"{'.'.join(map(str, first['loc']))}: {said}"}, 422)

    @app.post("/predict", response_model_exclude_none=True)
    async def predict(asked: Texts) -> Prediction:
        """The model's answers to one text, or to several."""
        began = time.perf_counter()
        futures = batcher.submit(asked.texts or [asked.text or ""])
        if futures is None:
            raise HTTPException(503, "too many texts wait", {"Retry-After": "1"})
        answers = await asyncio.gather(*map(asyncio.wrap_future, futures))
        return Prediction(answers=answers, seconds=time.perf_counter() - began)

    @app.post("/explain", response_class=HTMLResponse)
    async def explain(text: Annotated[Text, Body(embed=True)]) -> str:
        """A page that shades the tokens of a text by what they count for the answer."""
        try:
            return await asyncio.wrap_future(batcher.thread.submit(model.explain, text))
        except ValueError as error:
            raise HTTPException(404, str(error)) from None

    @app.get("/health")
    async def health() -> dict[str, str]:
        """200 as long as the service runs."""
        return {"status": "ok", "version": nystromformer.__version__, "model": model.name, "run": str(model.folder)}

    @app.get("/", response_class=HTMLResponse)
    async def show() -> str:
        """A page on which people try the model."""
        # What a text says is put in place as text, never as HTML; the explanation is a page without scripts.
        shown = _PAGE.read_text(encoding="utf-8").replace("{{name}}", html.escape(model.name))
        return shown.replace("{{does}}", html.escape(model.does))

    return app


def serve_run(run: Path, host: str, port: int, allowed_hosts: str, device: str, show: Callable[[str], None]) -> None:
    """Serve a finished run until stopped."""
    hosts = [host, *(name.strip() for name in allowed_hosts.split(",") if allowed_hosts)]
    if wrong := [name for name in hosts if not _HOST.fullmatch(name)]:
        raise UserError(f"--allowed_hosts: expected names such as models.example,10.0.0.7, or *; found {wrong[0]!r}")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        raise UserError(f"--host {host} --port {port}: {getattr(error, 'strerror', None) or error}") from None
    with listener:
        model = ServedModel(run, device)
        shown = f"[{host}]" if ":" in host else host
        show(f"{model.name}: http://{shown}:{listener.getsockname()[1]}/ (Ctrl-C ends it)")
        app = create_app(model, [shown, *hosts])
        # Of what clients do wrong nothing is logged: it could fill the disk.
        config = uvicorn.Config(
            app, log_level="error", limit_concurrency=512, timeout_keep_alive=5, timeout_graceful_shutdown=5
        )
        # Requests that are cut off when it stops are no faults.
        logging.getLogger("uvicorn.error").addFilter(
            lambda record: not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
        )
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            # A computation that nobody waits for any more would hold up the end; SIGTERM's default ends it, too.
            os._exit(128 + signal.SIGINT)
