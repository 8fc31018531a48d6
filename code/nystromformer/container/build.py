"""Building the image with the engine's own builder."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from nystromformer.container.engine import Engine, clear_errors
from nystromformer.container.options import BuildOptions
from nystromformer.errors import UserError


def build_line(context: Path, options: BuildOptions) -> str:
    """The `docker build` line that does the same."""
    flags = [["--tag", options.tag]]
    flags += [["--build-arg", f"{name}={value}"] for name, value in options.arguments.items()]
    flags += [["--network", options.network]] if options.network else []
    flags += [["--pull", "--no-cache"]] if options.fresh else []
    return " ".join(["docker build", *(shlex.join(flag) for flag in flags), shlex.quote(str(context))])


def build_image(engine: Engine, context: Path, options: BuildOptions, write: Callable[[str], None]) -> None:
    """Build the project's Dockerfile.

    Args:
        context: the project's folder.
        write: takes the builder's output, in pieces.

    Raises:
        UserError: a step failed.
    """
    if not (context / "Dockerfile").is_file():
        raise UserError(f"{context / 'Dockerfile'}: no such file; the image is built from a clone of the project")
    with clear_errors(f"building {options.tag}"):
        steps = engine.api.build(
            path=str(context),
            tag=options.tag,
            buildargs=options.arguments,
            network_mode=options.network,
            nocache=options.fresh,
            pull=options.fresh,
            rm=True,
            forcerm=True,
            decode=True,
        )
        for step in steps:
            if "error" in step:
                raise UserError(f"building {options.tag} failed: {str(step['error']).strip()}")
            if "stream" in step:
                write(step["stream"])
            elif "status" in step:
                write(" ".join(filter(None, (step.get("id"), step["status"], step.get("progress")))) + "\n")
