"""`python3 -m nystromformer.container.per_gpu SCRIPT FLAGS...`: run a script in one process for each GPU.

What is seen in the container counts, so that nobody has to know the machine. A single GPU needs no torchrun, whose exit
status does not tell a stop from a failure.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from nystromformer.errors import UserError

SHUTDOWN_SECONDS = 280
"""From a SIGTERM to the end: torchrun's own 30 may be too few for the step in progress and the writing of a checkpoint.
Less than what the engine waits for (`spec.STOP_SECONDS`)."""


def torchrun(processes: int) -> tuple[str, ...]:
    """The beginning of a command line that runs a script in several processes."""
    count = ("--nproc_per_node", str(processes), "--shutdown_timeout", str(SHUTDOWN_SECONDS))
    return ("python3", "/code/torchrun.py", "--standalone", *count)


def command(num_gpus: int, argv: Sequence[str]) -> tuple[str, ...]:
    """The command line for so many GPUs.

    Raises:
        UserError: there are none.
    """
    if num_gpus == 0:
        raise UserError(
            "this container sees no GPU, though it was started to use all of them: does the engine have the NVIDIA "
            "Container Toolkit, and was it asked for GPUs (docker run --gpus all)? On CPUs: launch.py … --gpus none"
        )
    return (*(("python3",) if num_gpus == 1 else torchrun(num_gpus)), *argv)


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
