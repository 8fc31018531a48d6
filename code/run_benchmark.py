"""Measure attention, training steps and preprocessing, each beside its alternatives."""

import sys

from nystromformer.benchmark.questions import find_commands
from nystromformer.command_line import cli

if __name__ == "__main__":
    cli.run_one_of(*find_commands("".join(sys.argv[1:2])))
