"""A client's request: why it is refused, what its body is, and whether anybody still waits for the answer."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect

_GONE = 499
"""What nobody reads."""
_UNTYPED = ("", "application/x-www-form-urlencoded")
"""Without a header, and what curl says by itself."""

T = TypeVar("T")


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text


class JsonRoute(APIRoute):
    """A route that takes a body for JSON that does not say what it is."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def taking(request: Request) -> Response:
            try:
                body = await request.body()
            except ClientDisconnect:
                raise Refused(_GONE, "the client has gone") from None
            if _is_unsaid(headers := MutableHeaders(scope=request.scope)) and body.lstrip().startswith(b"{"):
                headers["content-type"] = "application/json"
            return await handle(request)

        return taking


def _is_unsaid(headers: MutableHeaders) -> bool:
    # A browser lets any web page send a form here, but asks before it sends JSON. It says whose page it is.
    said = headers.get("content-type", "").partition(";")[0].strip().lower()
    return said in _UNTYPED and "origin" not in headers


async def while_asked(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What comes of the work, which is given up where the client goes before.

    Raises:
        Refused: the client has gone.
    """
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refused(_GONE, "the client has gone")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    # The body was read: what comes next is the end of the connection.
    while (await request.receive())["type"] != "http.disconnect":
        pass
