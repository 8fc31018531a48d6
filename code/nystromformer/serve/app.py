"""The service: a page, and JSON."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

import nystromformer
from nystromformer.files.reading import half_character
from nystromformer.serve.answers import Answer, Model
from nystromformer.serve.batching import Batcher, Full
from nystromformer.serve.limits import LOOPBACK, BodyLimit, HostCheck
from nystromformer.serve.page import page

_RETRY_SECONDS = "1"
_GONE = 499
"""What nobody reads."""

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


class Texts(BaseModel):
    """One text, or several."""

    model_config = ConfigDict(extra="forbid")

    text: str | None = Field(default=None, min_length=1)
    texts: list[str] | None = Field(default=None, min_length=1)


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text


def create_app(model: Model, limits: Limits, seconds_of: Mapping[str, Callable[[int, int], float]]) -> Any:
    """The ASGI app.

    Args:
        seconds_of: what is told of a text of so many tokens in so many rows beside the time that the answer took, by
            name.
    """
    batcher: Batcher[Answer] = Batcher(model.answer, limits.together, limits.waiting)

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        work = asyncio.create_task(batcher.run())
        yield
        work.cancel()

    app = FastAPI(
        title="Nyströmformer", version=nystromformer.__version__, lifespan=running, docs_url=None, redoc_url=None
    )

    @app.exception_handler(_Refused)
    async def refused(request: Request, error: _Refused) -> JSONResponse:
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

    @app.get("/", response_class=HTMLResponse)
    async def show() -> str:
        return page(model)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/version")
    async def version() -> dict[str, Any]:
        return {"version": nystromformer.__version__, "model": model.name, "longest": model.longest}

    @app.post("/predict")
    async def predict(texts: Texts, request: Request) -> dict[str, Any]:
        asked = _asked(texts, limits)
        began = time.perf_counter()
        answers = await _while_asked(request, _answered(batcher, asked))
        seconds = time.perf_counter() - began
        found: dict[str, Any] = {"answers": [each.as_data() for each in answers], "seconds": seconds}
        return found | {name: sum(of(each.tokens, each.rows) for each in answers) for name, of in seconds_of.items()}

    @app.post("/explain", response_class=HTMLResponse)
    async def explain(texts: Texts, request: Request) -> str:
        (text,) = _asked(texts, Limits(most_texts=1))
        made = await _while_asked(request, _understood(batcher.alone(lambda: model.explain(text))))
        if made is None:
            raise _Refused(404, "this model's answers have no explanation")
        return made

    return HostCheck(BodyLimit(app, limits.most_bytes), limits.hosts)


def _asked(texts: Texts, limits: Limits) -> list[str]:
    if (texts.text is None) == (texts.texts is None):
        raise _Refused(400, 'expected either "text" or "texts"')
    asked = [texts.text] if texts.text is not None else list(texts.texts or ())
    # More than may wait would be refused for ever.
    most = min(limits.most_texts, limits.waiting)
    if len(asked) > most:
        raise _Refused(413, f"expected at most {most} texts, found {len(asked)}")
    if not all(text.strip() for text in asked):
        raise _Refused(422, "a text is empty")
    if any(half_character(text) is not None for text in asked):
        raise _Refused(422, "a text has half of a surrogate pair")
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
        raise _Refused(503, "too many requests wait: try again in a moment") from None
    except ValueError as error:
        raise _Refused(422, str(error)) from None


async def _while_asked(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What comes of the work, which is given up where the client goes before."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _Refused(_GONE, "the client has gone")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    # The body was read: what comes next is the end of the connection.
    while (await request.receive())["type"] != "http.disconnect":
        pass
