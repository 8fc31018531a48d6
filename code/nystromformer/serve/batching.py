"""Texts of requests that come at the same time, computed together."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Batcher(Generic[T]):
    """Computes what waits, in one thread: PyTorch's own threads share the cores.

    Args:
        work: from texts to results; not called twice at once.
        together: texts of one call, at most.
        waiting: texts that may wait.
    """

    def __init__(self, work: Callable[[Sequence[str]], Sequence[T]], together: int, waiting: int) -> None:
        self.alone = threading.Lock()
        """Held while texts are computed; whoever holds it has the model."""
        self._work, self._together = work, together
        self._waiting: queue.Queue[tuple[str, Future[T]]] = queue.Queue(waiting)
        # Nobody waits for its end: a long computation would hold up that of the service.
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, texts: Sequence[str]) -> list[Future[T]]:
        """The results to come, of all texts or of none; to be called in one thread.

        Raises:
            queue.Full: there is no room for them.
        """
        if self._waiting.qsize() + len(texts) > self._waiting.maxsize:
            raise queue.Full
        futures: list[Future[T]] = [Future() for _ in texts]
        for each in zip(texts, futures, strict=True):
            self._waiting.put_nowait(each)
        return futures

    def _run(self) -> None:
        while True:
            batch = [self._waiting.get()]
            while len(batch) < self._together and not self._waiting.empty():
                batch.append(self._waiting.get())
            with self.alone:
                self._compute([each for each in batch if each[1].set_running_or_notify_cancel()])

    def _compute(self, batch: Sequence[tuple[str, Future[T]]]) -> None:
        try:
            results = self._work([text for text, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return
            # One text's fault is not the others': each by itself.
            for each in batch:
                self._compute([each])
            return
        for (_, future), result in zip(batch, results, strict=True):
            future.set_result(result)
