"""How a command was called."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field

from nystromformer.command_line.checked_command import ARGUMENTS, GIVEN
from nystromformer.files.checked_json import STRICT


@dataclass(frozen=True)
class Call:
    """A script and what it was given.

    script: as it was typed; flags: the words behind each, as they were typed, in the order of the script's help; none
    behind a flag that takes none; arguments: the words that belong to no flag.
    """

    __pydantic_config__ = STRICT

    script: str = ""
    flags: dict[str, tuple[str, ...]] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    def in_processes(self, count: int) -> str:
        """The line that starts it in so many processes."""
        launcher = ["torchrun", "--standalone", "--nproc_per_node", str(count)] if count > 1 else ["python"]
        words = [word for flag, values in self.flags.items() for value in values for word in (flag, value)]
        alone = [flag for flag, values in self.flags.items() if not values]
        return shlex.join([*launcher, self.script, *self.arguments, *words, *alone])

    def __str__(self) -> str:
        return self.in_processes(1)


def this_call() -> Call:
    """The call of this process' command."""
    return Call(sys.argv[0], dict(GIVEN), tuple(ARGUMENTS))
