"""`nystromformer COMMAND …`: the scripts under one name, where the package is installed."""

import runpy
import sys
from importlib.util import find_spec

from nystromformer.command_line.extras import how_to_install

_NAMES = "pretrain validate glue imdb wikihop lra transactions classify predict explain export serve report benchmark"
COMMANDS = {name: f"run_{name}" for name in _NAMES.split()} | {"validate": "run_validation"}
"""What each runs: a script of `code/`, with its flags."""


def main() -> None:
    """Run the script that the first argument names, as `python code/SCRIPT.py` does."""
    names = ", ".join(COMMANDS)
    asked = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if asked in ("-h", "--help"):
        sys.stdout.write(f"usage: nystromformer COMMAND …\n\n{names}; each has --help\n")
        return
    if asked not in COMMANDS:
        sys.stderr.write(f"error: {asked}: expected one of {names}\n")
        sys.exit(2)
    if find_spec("typer") is None:
        sys.stderr.write(f"error: the commands need further packages: {how_to_install('train,report')}\n")
        sys.exit(2)
    module = COMMANDS[asked]
    found = find_spec(module)
    assert found is not None, "scripts are installed with the package"
    # The record of a run names the script, by which it can be repeated.
    sys.argv[:2] = [str(found.origin)]
    runpy.run_module(module, run_name="__main__")
