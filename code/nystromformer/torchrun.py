"""torchrun, that ends with a sentence and a status which tell a stop from a failure.

PyTorch's own ends a stop, a user's mistake and a crash alike: with its traceback, and status 1.
"""

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

LAUNCHER = "NYSTROM_LAUNCHER"
"""Environment variable by which processes know the launcher that started them: its process id."""


class Stopped(BaseException):
    """A signal came before PyTorch was there to be told of it."""


class OneSignal:
    """From now on the first signal that ends programs raises `error`, made of its name and number; others do nothing.

    A scheduler sends its signal to every process and more than once, and what starts a launcher passes it on, too.
    PyTorch's own handler would leave the wait for the processes at the second one, and them behind.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.error: type[BaseException] = Stopped
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # nohup has SIGHUP ignored.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(number)
            raise self.error(self.received.name, self.received)


def launch(flags: Sequence[str]) -> int:
    """Run torchrun with these flags until its processes have ended; returns the exit status.

    That is 0 where all is done, 128 + the signal's number after a stop, and else that of the process that failed first.
    """
    signals = OneSignal()
    try:
        return _launch(flags, signals)
    except Stopped:
        pass
    except BaseException:
        # What else comes of a stop says nothing more than that.
        if signals.received is None:
            raise
    assert signals.received is not None
    _say(
        f"stopped by {signals.received.name}. The same command goes on from the last checkpoint, with any number of "
        "processes"
    )
    return 128 + signals.received


def _launch(flags: Sequence[str], signals: OneSignal) -> int:
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError

    # The one error after which PyTorch hands the signal on to the processes, and waits for them.
    signals.error = SignalException
    os.environ[LAUNCHER] = str(os.getpid())
    try:
        # It shall put its handler where no signal comes that `OneSignal` handles.
        run.main(["--signals-to-handle", "SIGQUIT", *flags])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        how = f"exit status {failure.exitcode}" if failure.exitcode > 0 else failure.signal_name()
        _say(f"error: process {rank} ended with {how}, and the run with it. What it said stands above")
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    except RendezvousError as error:
        _say(
            "error: the machines did not meet, or lost each other. Does the same command run on each of them, as many "
            f"as --nnodes says, and can all reach --rdzv_endpoint? ({_first_line(error)})"
        )
        return 1
    return 0


def tell_launcher(number: int) -> None:
    """Pass a stop on from one of the processes.

    Where only another machine got the signal, this one's launcher would take the end of its processes for a failure,
    and start them again.
    """
    if os.environ.get(LAUNCHER) == str(os.getppid()):
        os.kill(os.getppid(), number)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _say(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
