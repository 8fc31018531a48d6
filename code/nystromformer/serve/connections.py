"""Connections of a service: how many there may be at a time, and how long a client may keep one waiting.

uvicorn limits neither the time of a header or a body, nor what a client takes to read its answer, and accepts until no
descriptor is left. A connection of this module has a time for each of these, and the next is accepted when there is
room: those beyond wait in the kernel's queue.
"""

import asyncio
import json
import logging
import resource
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)

_MOST = 512
_BODY_SECONDS, _BODY_RATE = 30.0, 32 << 10
_RETRY_SECONDS, _SILENT_SECONDS = 1.0, 60.0


@dataclass(frozen=True)
class Patience:
    """Seconds that the service waits for a client."""

    header: float = 10.0
    """From the connection, or the first byte of a further request, to the end of the header."""
    body: float = _BODY_SECONDS
    """From there to the end of the body; and until an answer was taken."""
    idle: float = 5.0
    """From an answer to the next request."""
    stopping: float = 8.0
    """From the signal that ends the service, for the requests that are under way."""

    @classmethod
    def for_bodies_of(cls, most_bytes: int) -> "Patience":
        """The usual one, with time for the longest body at 32 KiB a second."""
        return cls(body=max(_BODY_SECONDS, most_bytes / _BODY_RATE))


def most_connections() -> int:
    """Connections at a time: 512, or half of the files that this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if files == resource.RLIM_INFINITY else max(1, min(_MOST, files // 2))


class Server(uvicorn.Server):
    """Serves an ASGI app on a socket that listens.

    Args:
        most: connections at a time; None: `most_connections`.
    """

    def __init__(
        self, app: Any, listener: socket.socket, patience: Patience | None = None, most: int | None = None
    ) -> None:
        self._patience = patience or Patience()
        self._listener, self._said = listener, -_SILENT_SECONDS
        self._room = asyncio.Semaphore(most or most_connections())
        connection: Any = partial(_Connection, self._patience, self._room.release)
        # Of what clients do wrong nothing is logged: they could fill the disk with it.
        super().__init__(
            uvicorn.Config(
                app, http=connection, ws="none", log_level="error", timeout_keep_alive=self._patience.idle  # type: ignore[arg-type]  # any number
            )
        )  # fmt: skip

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._accepting.cancel()
        self._listener.close()
        end = asyncio.get_running_loop().call_later(self._patience.stopping, self._give_up)
        await super().shutdown(sockets=[])
        end.cancel()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                self._room.release()
                if not isinstance(error, ConnectionError):
                    self._say(error)
                    await asyncio.sleep(_RETRY_SECONDS)
                continue
            await loop.connect_accepted_socket(self._new_connection, accepted)

    def _new_connection(self) -> asyncio.Protocol:
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def _say(self, error: OSError) -> None:
        """Log it, once a minute at most."""
        if time.monotonic() - self._said >= _SILENT_SECONDS:
            self._said = time.monotonic()
            logger.warning(
                "no connection can be accepted (%s); it is tried again every second", error.strerror or error
            )

    def _give_up(self) -> None:
        left = list(self.server_state.connections)
        if left:
            seconds = self._patience.stopping
            logger.warning("stopping: %d requests were not answered within %g seconds", len(left), seconds)
        for connection in left:
            connection.transport.abort()


class _Connection(H11Protocol):
    """Ends when its client takes too long for a header, for a body, or to read an answer.

    Args:
        ended: called when the connection is gone.
    """

    def __init__(self, patience: Patience, ended: Callable[[], None], **usual: Any) -> None:
        super().__init__(**usual)
        self._patience, self._ended = patience, ended
        self._awaited: tuple[str, object] = ("", None)
        self._timer: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # `pause_writing` is called as soon as anything waits to be read by the client.
        transport.set_write_buffer_limits(high=0)
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taking = self._taking or self.loop.call_later(self._patience.body, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel(self._taking)
        self._taking = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel(self._timer)
        self._cancel(self._taking)
        super().connection_lost(exc)
        self._ended()

    def _watch(self) -> None:
        """Have the time run of what is awaited now; further bytes of the same do not renew it."""
        awaited = (self._awaits(), self.cycle)
        if awaited == self._awaited:
            return
        self._awaited = awaited
        self._cancel(self._timer)
        seconds = {"header": self._patience.header, "body": self._patience.body}.get(awaited[0])
        if seconds is not None and not self.transport.is_closing():
            self._timer = self.loop.call_later(seconds, self._expire, awaited[0], seconds)

    def _awaits(self) -> str:
        """`header`, `body`, or nothing: an answer is awaited, or the next request, of which uvicorn takes care."""
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        is_begun = self.cycle is None or bool(self.conn.trailing_data[0])
        return "header" if self.conn.their_state is h11.IDLE and is_begun else ""

    def _expire(self, what: str, seconds: float) -> None:
        # Nothing may be said where an answer is under way, or was given.
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        text = f"the request's {what} was not complete after {seconds:g} seconds"
        body = json.dumps({"error": text}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=408, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @staticmethod
    def _cancel(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
