"""Serve a trained model: a local page, and a JSON API."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flags import DeviceName


def serve(
    run: Annotated[
        Path,
        typer.Argument(help="Folder of a finished run on single texts: run_classify.py, run_glue.py or run_imdb.py."),
    ],
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0 allows other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="Port; 0: any free one.")] = 8000,
    allowed_hosts: Annotated[
        str,
        typer.Option(
            "--allowed_hosts",
            help="Allowed Host headers of requests beside localhost and --host, separated by commas, or * for any.",
        ),
    ] = "",
    device: DeviceName = "auto",
) -> None:
    """Serve a trained model: a local page, and a JSON API."""
    from nystromformer.prediction.serve import serve_run

    serve_run(run, host, port, allowed_hosts, device, typer.echo)


if __name__ == "__main__":
    cli.run(serve)
