"""`python3 -m nystromformer.container.per_gpu [--expect N] SCRIPT FLAGS...`: run a script in one process for each GPU.

What is seen in the container counts, so that nobody has to know the machine; where it is started for N GPUs, there have
to be as many, which torchrun would not say in words. A single GPU needs no torchrun, whose exit status does not tell a
stop from a failure.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from nystromformer.errors import UserError
from nystromformer.wording import number_of

SHUTDOWN_SECONDS = 280
"""From a SIGTERM to the end: torchrun's own 30 may be too few for the step in progress and the writing of a checkpoint.
Less than what the engine waits for (`spec.STOP_SECONDS`)."""

PROGRAM = ("python3", "-m", "nystromformer.container.per_gpu")
_EXPECT = "--expect"


def torchrun(processes: int) -> tuple[str, ...]:
    """The beginning of a command line that runs a script in several processes."""
    count = ("--nproc_per_node", str(processes), "--shutdown_timeout", str(SHUTDOWN_SECONDS))
    return ("torchrun", "--standalone", *count)


def expecting(gpus: int) -> tuple[str, ...]:
    """The beginning of a command line that runs a script in a process for each of so many GPUs, or says how many there
    are."""
    return (*PROGRAM, _EXPECT, str(gpus))


def command(num_gpus: int, argv: Sequence[str]) -> tuple[str, ...]:
    """The command line for so many GPUs.

    Raises:
        UserError: there are none, or fewer than are expected.
    """
    started_for, processes = "all of them", num_gpus
    if argv[:1] == [_EXPECT]:
        started_for, processes, argv = argv[1], int(argv[1]), argv[2:]
    if num_gpus < max(1, processes):
        raise UserError(
            f"this container sees {number_of(num_gpus, 'GPU') if num_gpus else 'no GPU'}, though it was started to use "
            f"{started_for}: does the engine's machine have them, and the NVIDIA Container Toolkit, and "
            "was it asked for GPUs (docker run --gpus all)? On CPUs: launch.py … --gpus none"
        )
    return (*(("python3",) if processes == 1 else torchrun(processes)), *argv)


def main(argv: Sequence[str]) -> None:
    """Count the GPUs and become the command."""
    import torch

    try:
        program = command(torch.cuda.device_count(), argv)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(error.exit_status) from None
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
