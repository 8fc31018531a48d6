"""torchrun, that ends with a sentence and a status which tell a stop from a failure.

PyTorch's own ends a stop, a user's mistake and a crash alike: with its traceback, and status 1.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from nystromformer.errors import first_line

LAUNCHER = "NYSTROM_LAUNCHER"
"""Environment variable by which processes know the launcher that started them: its process id."""


CPP_WARNINGS = "TORCH_CPP_LOG_LEVEL"
"""Environment variable of PyTorch's, read as it is imported."""


MISTAKE = signal.SIGUSR2
"""What a process sends to its launcher where starting it again would not help."""


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
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, MISTAKE):
            # nohup has SIGHUP ignored.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(number)
            passed_on = signal.SIGTERM if number == MISTAKE else self.received
            raise self.error(passed_on.name, passed_on)


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
    if signals.received == MISTAKE:
        _say("error: the processes stopped with an error; the messages above state the reason")
        return 2
    _say(
        f"stopped by {signals.received.name}: the same command resumes from the last checkpoint, or starts again if "
        "there is none"
    )
    return 128 + signals.received


def _launch(flags: Sequence[str], signals: OneSignal) -> int:
    # The launcher's own connections: each one that ends is a page of C++ frames. The processes keep their warnings.
    before = os.environ.get(CPP_WARNINGS)
    os.environ[CPP_WARNINGS] = before or "ERROR"
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError

    if before is None:
        del os.environ[CPP_WARNINGS]
    for name in ("agent.server.api", "rendezvous.dynamic_rendezvous"):
        logging.getLogger(f"torch.distributed.elastic.{name}").addFilter(_is_no_farewell)
    # The one error after which PyTorch hands the signal on to the processes, and waits for them.
    signals.error = SignalException
    os.environ[LAUNCHER] = str(os.getpid())
    # It shall put its handler where no signal comes that `OneSignal` handles.
    arguments = ["--signals-to-handle", "SIGQUIT", *flags]
    try:
        config, *_ = run.config_from_args(run.parse_args(arguments))  # type: ignore[no-untyped-call]
        if config.nproc_per_node < 1:
            raise ValueError(f"--nproc_per_node: expected at least 1, found {config.nproc_per_node}")
    except (ValueError, AssertionError) as error:
        reason = first_line(error) if str(error) else "expected at least one machine in --nnodes"
        _say(f"error: torchrun's flags: {reason:.200}")
        return 2
    try:
        run.main(arguments)
    except ChildFailedError as error:
        if signals.received is not None:
            raise
        rank, failure = error.get_first_failure()
        how = f"exit status {failure.exitcode}" if failure.exitcode > 0 else failure.signal_name()
        _say(f"error: process {rank} ended with {how}, which ended the run. Its messages are above")
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    except RendezvousError as error:
        if signals.received is not None:
            raise
        _say(
            "error: the machines could not connect, or lost their connection. Run the same command on each of the "
            f"--nnodes machines, and check that all can reach --rdzv_endpoint ({first_line(error):.200})"
        )
        return 1
    return 0


def _is_no_farewell(record: logging.LogRecord) -> bool:
    """Whether a line of PyTorch's says more than that, with all processes done, another machine's launcher left first.

    For that it shows a traceback.
    """
    return not any(
        words in record.getMessage() for words in ("waiting on exit barrier", "failed to shutdown the rendez")
    )


def tell_launcher(number: int) -> None:
    """Pass a stop on from one of the processes.

    Where only another machine got the signal, this one's launcher would take the end of its processes for a failure,
    and start them again.
    """
    if _has_launcher():
        os.kill(os.getppid(), number)


def tell_launcher_of_mistake() -> None:
    """A mistake that all processes know is told by the first one, which has shown it; the others wait to be ended."""
    if _has_launcher():
        if os.environ.get("LOCAL_RANK", "0") == "0":
            os.kill(os.getppid(), MISTAKE)
        else:
            # The first of them to end would end the one that speaks.
            time.sleep(10)


def _has_launcher() -> bool:
    return os.environ.get(LAUNCHER) == str(os.getppid())


def _say(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
