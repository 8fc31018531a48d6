"""What a service refuses before it reads a request: another host's name, and a body that is longer than it takes."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from nystromformer.errors import UserError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


_DRAINED = 1 << 26
"""Bytes that are read of what nobody wants."""
_SECONDS = 5.0
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_EVERY = "*"
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(?::\d*)?")
_NAME = re.compile(r"[\w.:-]+")
_SHOWN = 100


def allowed_hosts(text: str, bound: str) -> frozenset[str]:
    """Names that a request may call the service: loopback's, the address that it listens on, those of a flag.

    Args:
        text: names with commas between them, or `*`.

    Raises:
        UserError: one of them is no name of a host.
    """
    given = [name.strip().lower() for name in text.split(",")] if text else []
    for name in given:
        # An IPv6 address has several colons, a name with a port one.
        if name != _EVERY and (not _NAME.fullmatch(name) or name.count(":") == 1):
            raise UserError(
                f"--allowed_hosts {text}: {name!r} is no host name; expected names with commas between them, without "
                "http:// and without a port, such as models.example,10.0.0.7, or * for any name"
            )
    return frozenset((*LOOPBACK, bound.lower(), *given))


class HostCheck:
    """An ASGI app around another, which answers 400 to requests that call the service by a name that is not its own.

    A page of the web whose name is made to lead to this machine (DNS rebinding) could otherwise read the answers. The
    address at which a request arrived is always allowed: no name was needed for it.
    """

    def __init__(self, app: App, names: Collection[str]) -> None:
        self.app, self.names = app, names

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        told = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        match = _HOST.fullmatch(told)
        name = "" if match is None else match[1].strip("[]").rstrip(".").lower()
        own = (scope.get("server") or ("",))[0]
        if _EVERY in self.names or (name and name in (*self.names, own)):
            await self.app(scope, receive, send)
            return
        text = (
            f"the request's Host header is {told[:_SHOWN]!r}; expected localhost, or the address that the service "
            "listens on. Start it with --allowed_hosts NAME if it is reached by another name"
        )
        await _refuse(400, text, receive, send)


class BodyLimit:
    """An ASGI app around another, which answers 413 to a body of more bytes than it takes, and keeps no more of it."""

    def __init__(self, app: App, most_bytes: int) -> None:
        self.app, self.most_bytes = app, most_bytes
        self._text = f"the request is longer than the {most_bytes:,} bytes that are taken (--most_bytes)"

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if told.isdigit() and int(told) > self.most_bytes:
            await _refuse(413, self._text, receive, send)
            return
        read, answered, is_over = 0, False, False

        async def limited() -> Message:
            nonlocal read, is_over
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.most_bytes:
                is_over = True
                return {"type": "http.disconnect"}
            return message

        async def noticing(message: Message) -> None:
            nonlocal answered
            # What the app says of half a request is of no interest.
            if not is_over:
                answered = True
                await send(message)

        try:
            await self.app(scope, limited, noticing)
        except Exception:
            if not is_over:
                raise
        if is_over and not answered:
            await _refuse(413, self._text, receive, send)


async def _refuse(status: int, text: str, receive: Receive, send: Send) -> None:
    """Answer with an error, and read what the client still sends for a while: many send all before they read an answer,
    and where the connection ends before that they see it break."""
    body = json.dumps({"error": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    # All of the answer; only the connection stays open.
    await send({"type": "http.response.body", "body": body, "more_body": True})
    left = _DRAINED
    try:
        async with asyncio.timeout(_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    break
    except TimeoutError:
        pass
    await send({"type": "http.response.body", "body": b""})
