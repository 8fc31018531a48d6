"""What a service counts of itself, for Prometheus."""

import time
from collections.abc import Callable, Collection, MutableMapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.exposition import choose_encoder

import nystromformer
from nystromformer.serve.answers import Answer, Source
from nystromformer.serve.limits import App, Message, Receive, Send

_OTHER = "other"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histogram's buckets. A long text on a CPU takes seconds, and a full queue minutes."""


class Metrics:
    """The figures of one service, in a registry of their own.

    Args:
        waiting: how many texts wait.
    """

    def __init__(self, source: Source, waiting: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "nystromformer_requests",
            "Requests by path (`other`: one that does not exist) and status (499: the client left first).",
            ("path", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "nystromformer_request_seconds",
            "Seconds from a request's headers to the end of its answer.",
            ("path",),
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._texts = Counter("nystromformer_texts", "Texts answered by /predict.", registry=self._registry)
        self._tokens = Counter("nystromformer_tokens", "Tokens read of these texts.", registry=self._registry)
        texts_waiting = Gauge(
            "nystromformer_texts_waiting",
            "Texts that wait to be computed, those to be explained included.",
            registry=self._registry,
        )
        texts_waiting.set_function(waiting)
        build = Info(
            "nystromformer_build", "Version of the package, and the run that it serves.", registry=self._registry
        )
        build.info(
            {
                "version": nystromformer.__version__,
                "experiment": source.experiment,
                "task": source.task or "",
                "run": source.folder,
                "checkpoint_sha256": source.checkpoint_sha256,
            }
        )

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def count_texts(self, answers: Sequence[Answer]) -> None:
        """Count the texts of a request that was answered."""
        self._texts.inc(len(answers))
        self._tokens.inc(sum(answer.tokens for answer in answers))

    def exposed(self, accept: str) -> tuple[bytes, str]:
        """All figures and their media type: Prometheus' text format, or OpenMetrics where `accept` asks for it."""
        encode, media_type = choose_encoder(accept)
        return encode(self._registry), media_type


class CountedApp:
    """An ASGI app around another, which counts its requests.

    Args:
        paths: those that are told apart; a client could make up any number of others.
    """

    def __init__(self, app: App, metrics: Metrics, paths: Collection[str]) -> None:
        self.app, self._metrics, self._paths = app, metrics, frozenset(paths)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def noticing(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noticing)
        finally:
            path = scope["path"] if scope["path"] in self._paths else _OTHER
            self._metrics.count(path, status, time.perf_counter() - began)
