"""Building the image with the engine's own builder."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nystromformer.container.engine import Engine, clear_errors
from nystromformer.errors import UserError


def build_arguments(base: str | None, torch_index_url: str | None, more: Sequence[str]) -> dict[str, str]:
    """The Dockerfile's arguments that flags name.

    Raises:
        UserError: one that is not NAME=VALUE.
    """
    arguments = {"BASE_IMAGE": base, "TORCH_INDEX_URL": torch_index_url}
    found = {name: value for name, value in arguments.items() if value}
    for text in more:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UserError(f"--build_arg {text}: expected NAME=VALUE")
        found[name] = value
    return found


def build_line(context: Path, tag: str, arguments: Mapping[str, str], network: str | None, fresh: bool) -> str:
    """The `docker build` line that does the same."""
    flags = [["--tag", tag], *(["--build-arg", f"{name}={value}"] for name, value in arguments.items())]
    flags += [["--network", network]] if network else []
    flags += [["--pull", "--no-cache"]] if fresh else []
    return " ".join(["docker build", *(shlex.join(flag) for flag in flags), shlex.quote(str(context))])


def build_image(
    engine: Engine,
    context: Path,
    tag: str,
    arguments: Mapping[str, str],
    network: str | None,
    fresh: bool,
    write: Callable[[str], None],
) -> None:
    """Build the project's Dockerfile.

    Args:
        context: the project's folder.
        network: of the building containers.
        fresh: fetch the base image again and use no cached layer.
        write: takes the builder's output, in pieces.

    Raises:
        UserError: a step failed.
    """
    if not (context / "Dockerfile").is_file():
        raise UserError(f"{context / 'Dockerfile'}: no such file; the image is built from a clone of the project")
    with clear_errors(f"building {tag}"):
        steps = engine.api.build(
            path=str(context),
            tag=tag,
            buildargs=dict(arguments),
            network_mode=network,
            nocache=fresh,
            pull=fresh,
            rm=True,
            forcerm=True,
            decode=True,
        )
        for step in steps:
            if "error" in step:
                raise UserError(f"building {tag} failed: {str(step['error']).strip()}")
            if "stream" in step:
                write(step["stream"])
            elif "status" in step:
                write(" ".join(filter(None, (step.get("id"), step["status"], step.get("progress")))) + "\n")
