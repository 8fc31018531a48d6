"""No request's body is longer than a service takes, whatever it says of its length."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class BodyLimit:
    """An ASGI app around another, which answers 413 to a body of more bytes than it takes, and reads no more of it."""

    def __init__(self, app: App, most_bytes: int) -> None:
        self.app, self.most_bytes = app, most_bytes

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if told.isdigit() and int(told) > self.most_bytes:
            await self._refuse(send)
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
            await self._refuse(send)

    async def _refuse(self, send: Send) -> None:
        text = f"the request is longer than the {self.most_bytes:,} bytes that are taken (--most_bytes)"
        body = json.dumps({"error": text}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})
