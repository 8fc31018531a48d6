"""Serve a trained model: a local page, and a JSON API."""

import nystromformer.command_line.interrupt  # noqa: F401  # first of all: for Ctrl-C within the imports below

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flags import DeviceName
from nystromformer.config.ranges import MOST
from nystromformer.files.paths import experiment_folder

_MOST_PORT = 65_535


def serve(
    run: Annotated[
        Path,
        typer.Argument(
            parser=experiment_folder,
            metavar="RUN",
            help="Folder of a pretrained experiment (fill-mask), or of a finished fine-tuning run.",
        ),
    ],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint", help="Checkpoint of a pretrained experiment: an epoch's number, or last. Default: last."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", help="Folder of a pretrained model's tokenizer. Default: the one beside it."),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0 allows other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=_MOST_PORT, help="Port; 0: any free one.")] = 8000,
    most_bytes: Annotated[int, typer.Option("--most_bytes", min=64, max=MOST, help="Largest request in bytes.")] = 1
    << 20,
    waiting: Annotated[
        int,
        typer.Option("--waiting", min=1, max=100_000, help="Texts that may wait; further ones are answered with 503."),
    ] = 256,
    together: Annotated[
        int, typer.Option("--together", min=1, max=4096, help="Largest number of texts computed together.")
    ] = 16,
    allowed_hosts: Annotated[
        str,
        typer.Option(
            "--allowed_hosts",
            help="Allowed Host headers of requests, separated by commas, or * for any. localhost and the address "
            "that the service listens on are always allowed.",
        ),
    ] = "",
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline", help="Serve the regression on words (tf-idf) that run_classify.py keeps beside its runs."
        ),
    ] = False,
    device: DeviceName = "auto",
) -> None:
    """Serve a trained model: a local page, and a JSON API that /docs describes."""
    from nystromformer.serve.server import serve_run

    where = (host, port, most_bytes, waiting, together, allowed_hosts)
    serve_run(run, checkpoint, tokenizer, *where, device, baseline, typer.echo)


if __name__ == "__main__":
    cli.run(serve)
