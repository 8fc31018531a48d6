"""Stopping at the end of a step instead of in the middle of one."""

import signal
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """Within the block, the first SIGTERM or SIGINT only sets `received`; the second acts as usual.

    Args:
        patient: later signals do nothing, after the block neither: what follows a stop is the process' end, together
            with the others. What starts several processes passes on each signal that it gets, beside the terminal or
            scheduler that sends it to every process, and ends processes that take too long.
    """

    def __init__(self, patient: bool = False) -> None:
        self._patient = patient
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopSignal":
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._patient and self.received:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)
        else:
            self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        if not self._patient:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
