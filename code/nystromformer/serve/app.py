"""The service: a page, and JSON."""

import asyncio
import logging
import os
import queue
import re
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Self

import uvicorn
from fastapi import Body, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from starlette.middleware.trustedhost import TrustedHostMiddleware

import nystromformer
from nystromformer.errors import UserError
from nystromformer.serve.batching import Batcher
from nystromformer.serve.model import Answer, ServedModel
from nystromformer.serve.page import page
from nystromformer.tasks.prediction.loaded import check_texts

MOST_BYTES = 1 << 20
"""Of a request's body."""
MOST_TEXTS, WAITING, TOGETHER = 64, 256, 16
"""Texts of a request, that may wait, and that are computed together."""
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


class Prediction(BaseModel):
    """The answers to a request's texts in their order, and the seconds that they waited and were computed."""

    answers: list[Answer]
    seconds: float


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
    batcher: Batcher[Answer] = Batcher(model.answer, TOGETHER, waiting)

    @app.exception_handler(RequestValidationError)
    async def refuse(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return JSONResponse({"detail": f"{'.'.join(map(str, first['loc']))}: {first['msg']}"}, 422)

    @app.post("/predict", response_model_exclude_none=True)
    async def predict(asked: Texts) -> Prediction:
        """The model's answers to one text, or to several."""
        began = time.perf_counter()
        try:
            futures = batcher.submit(asked.texts or [asked.text or ""])
        except queue.Full:
            raise HTTPException(503, "too many texts wait", {"Retry-After": "1"}) from None
        answers = await asyncio.gather(*map(asyncio.wrap_future, futures))
        return Prediction(answers=answers, seconds=time.perf_counter() - began)

    @app.post("/explain", response_class=HTMLResponse)
    def explain(text: Annotated[Text, Body(embed=True)]) -> str:
        """A page that shades the tokens of a text by what they count for the answer."""
        try:
            with batcher.alone:
                return model.explain(text)
        except ValueError as error:
            raise HTTPException(404, str(error)) from None

    @app.get("/health")
    async def health() -> dict[str, str]:
        """200 as long as the service runs."""
        return {"status": "ok", "version": nystromformer.__version__, "model": model.name, "run": str(model.folder)}

    @app.get("/", response_class=HTMLResponse)
    async def show() -> str:
        """A page on which people try the model."""
        return page(model)

    return app


def serve_run(run: Path, host: str, port: int, allowed_hosts: str, device: str, show: Callable[[str], None]) -> None:
    """Serve a finished run until stopped.

    Args:
        allowed_hosts: names that requests may call the service beside loopback's and `host`, with commas between them.
        show: prints the address.

    Raises:
        UserError: nothing to serve there, an address that cannot be listened on, or a wrong host name.
    """
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
