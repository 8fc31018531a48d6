"""Measure attention, training steps and preprocessing, each beside its alternatives."""

import nystromformer.interrupt  # noqa: F401  # first of all: for Ctrl-C within the imports below

from nystromformer import cli
from nystromformer.benchmark.questions import find_commands

if __name__ == "__main__":
    cli.run_one_of(*find_commands())
