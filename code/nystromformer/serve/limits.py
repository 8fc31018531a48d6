"""No request's body is longer than a service takes, whatever it says of its length."""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


_DRAINED = 1 << 26
"""Bytes that are read of what nobody wants."""
_SECONDS = 5.0


class BodyLimit:
    """An ASGI app around another, which answers 413 to a body of more bytes than it takes, and keeps no more of it.

    Many clients send all before they read an answer, and where the connection ends before that they see it break: so
    what they send is read and thrown away for a while.
    """

    def __init__(self, app: App, most_bytes: int) -> None:
        self.app, self.most_bytes = app, most_bytes

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if told.isdigit() and int(told) > self.most_bytes:
            await self._refuse(receive, send)
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
            await self._refuse(receive, send)

    async def _refuse(self, receive: Receive, send: Send) -> None:
        text = f"the request is longer than the {self.most_bytes:,} bytes that are taken (--most_bytes)"
        body = json.dumps({"error": text}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": 413, "headers": headers})
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
