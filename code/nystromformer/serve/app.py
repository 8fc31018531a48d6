"""The service: a page, and JSON."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, TypeVar

from fastapi import Body, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

import nystromformer
from nystromformer.files.reading import half_character
from nystromformer.serve.answers import Answer, Model
from nystromformer.serve.batching import FULL, Batcher, Full
from nystromformer.serve.limits import LOOPBACK, BodyLimit, HostCheck
from nystromformer.serve.metrics import CountedApp, Metrics
from nystromformer.serve.page import page
from nystromformer.serve.requests import JsonRoute, Refused, while_asked
from nystromformer.serve.schemas import Prediction, Status, Texts, Version, error_responses, text_response

_RETRY_SECONDS = "1"
_TEXTS: list[str | Enum] = ["texts"]
_SERVICE: list[str | Enum] = ["service"]
_REFUSALS = (400, 408, 413, 422, 503)
"""Statuses of the errors of what reads texts."""

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What the service takes."""

    most_bytes: int = 1 << 20
    """Of a request."""
    most_texts: int = 64
    """Of a request."""
    waiting: int = 256
    """Texts that may wait."""
    together: int = 16
    """Texts that are computed together."""
    hosts: Collection[str] = LOOPBACK
    """Names that a request may call the service, beside the address at which it arrives."""


def create_app(model: Model, limits: Limits, seconds_of: Mapping[str, Callable[[int, int], float]]) -> Any:
    """The ASGI app.

    Args:
        seconds_of: what is told of a text of so many tokens in so many rows beside the time that the answer took, by
            name: fields of `Prediction`.
    """
    batcher: Batcher[Answer] = Batcher(model.answer, limits.together, limits.waiting)
    metrics = Metrics(model.source, lambda: batcher.waiting)

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        work = asyncio.create_task(batcher.run())
        yield
        work.cancel()

    app = FastAPIOffline(
        redoc_url=None,
        title="Nyströmformer",
        description=f"{model.does} Errors are JSON with the key `error`.",
        version=nystromformer.__version__,
        lifespan=running,
        # Else the page of the documentation may ask a site of Swagger's whether the schema is valid.
        swagger_ui_parameters={"validatorUrl": None},
    )
    app.router.route_class = JsonRoute
    _answer_errors(app)
    _add_questions(app, model, batcher, metrics, limits, seconds_of)
    _add_probes(app, model, batcher, metrics)
    paths = [path for route in app.routes if (path := getattr(route, "path", None)) is not None]
    return CountedApp(HostCheck(BodyLimit(app, limits.most_bytes), limits.hosts), metrics, paths)


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        headers = {"Retry-After": _RETRY_SECONDS} if error.status == 503 else None
        return JSONResponse({"error": error.text}, error.status, headers)

    @app.exception_handler(HTTPException)
    async def wrong(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
        text = f'{place}: {first["msg"]}; expected JSON such as {{"text": "…"}} or {{"texts": ["…", "…"]}}'
        return JSONResponse({"error": text}, 400)


def _add_questions(
    app: FastAPI,
    model: Model,
    batcher: Batcher[Answer],
    metrics: Metrics,
    limits: Limits,
    seconds_of: Mapping[str, Callable[[int, int], float]],
) -> None:
    one = {"summary": "One text", "value": {"text": model.example}}
    several = {"summary": "Several texts", "value": {"texts": [model.example, model.example]}}

    @app.post(
        "/predict",
        tags=_TEXTS,
        summary="Predict",
        response_model_exclude_none=True,
        responses=error_responses(*_REFUSALS),
    )
    async def predict(
        texts: Annotated[Texts, Body(openapi_examples={"one": one, "several": several})], request: Request
    ) -> Prediction:
        """The model's answers to one text, or to several."""
        asked = _asked(texts, limits)
        began = time.perf_counter()
        answers = await while_asked(request, _answered(batcher, asked))
        seconds = time.perf_counter() - began
        costs = {name: sum(of(each.tokens, each.rows) for each in answers) for name, of in seconds_of.items()}
        found = Prediction(answers=answers, seconds=seconds, **costs)
        metrics.count_texts(answers)
        return found

    # A response class with a media type would have the errors documented as pages, too.
    @app.post(
        "/explain",
        tags=_TEXTS,
        summary="Explain",
        response_class=Response,
        responses=text_response("text/html", "A page without scripts") | error_responses(*_REFUSALS, 404),
    )
    async def explain(texts: Annotated[Texts, Body(openapi_examples={"one": one})], request: Request) -> HTMLResponse:
        """A page that shades the tokens of one text by what they count for the answer."""
        (text,) = _asked(texts, Limits(most_texts=1))
        made = await while_asked(request, _understood(batcher.alone(lambda: model.explain(text))))
        if made is None:
            raise Refused(404, "this model's answers have no explanation")
        return HTMLResponse(made)


def _add_probes(app: FastAPI, model: Model, batcher: Batcher[Answer], metrics: Metrics) -> None:
    told = Version.of(model)

    @app.get("/", tags=_TEXTS, response_class=HTMLResponse, summary="The page")
    async def show() -> str:
        """A page on which people try the model."""
        return page(model)

    @app.get("/health", tags=_SERVICE, summary="Liveness")
    async def health() -> Status:
        """200 as long as the service runs."""
        return Status(status="ok")

    @app.get("/ready", tags=_SERVICE, summary="Readiness", responses=error_responses(503))
    async def ready() -> Status:
        """200 if a text would be accepted; 503 while the queue is full."""
        if (obstacle := batcher.obstacle) is not None:
            raise Refused(503, obstacle)
        return Status(status="ready")

    @app.get("/version", tags=_SERVICE, summary="Version")
    async def version() -> Version:
        """What is served, and by which version."""
        return told

    @app.get(
        "/metrics",
        tags=_SERVICE,
        summary="Metrics",
        response_class=Response,
        responses=text_response("text/plain", "Prometheus' text format, or OpenMetrics where Accept asks for it"),
    )
    async def figures(request: Request) -> Response:
        """Figures for Prometheus."""
        content, media_type = metrics.exposed(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": media_type})


def _asked(texts: Texts, limits: Limits) -> list[str]:
    if (texts.text is None) == (texts.texts is None):
        raise Refused(400, 'expected either "text" or "texts"')
    asked = [texts.text] if texts.text is not None else list(texts.texts or ())
    # More than may wait would be refused for ever.
    most = min(limits.most_texts, limits.waiting)
    if len(asked) > most:
        raise Refused(413, f"expected at most {most} texts, found {len(asked)}")
    if not all(text.strip() for text in asked):
        raise Refused(422, "a text is empty")
    if any(half_character(text) is not None for text in asked):
        raise Refused(422, "a text has half of a surrogate pair")
    return asked


async def _answered(batcher: Batcher[Answer], texts: Sequence[str]) -> list[Answer]:
    tasks = [asyncio.create_task(_understood(batcher(text))) for text in texts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        # Where one is refused, the others are of no use.
        for task in tasks:
            task.cancel()


async def _understood(work: Awaitable[T]) -> T:
    try:
        return await work
    except Full:
        raise Refused(503, FULL) from None
    except ValueError as error:
        raise Refused(422, str(error)) from None
