"""Explain a prediction: which tokens a finished run's answer depends on, as text and as a page."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flags import DeviceName


def explain(
    run: Annotated[
        Path,
        typer.Argument(help="Folder of a finished run on single texts: run_classify.py, run_glue.py or run_imdb.py."),
    ],
    text: Annotated[Path, typer.Option("--input", help="File with the text.")],
    label: Annotated[
        str | None, typer.Option("--label", help="Label whose score is explained. Default: the most likely one.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Output page, ending in .html.")] = Path("explained.html"),
    device: DeviceName = "auto",
) -> None:
    """Shade a text by what a prediction depends on: the pooled vector's attention over layers, and gradient x input."""
    from nystromformer.files.reading import read_text
    from nystromformer.files.writing import check_new_file

    check_new_file("--out", out)
    content = read_text(text, "a text")

    # After the file was read: importing torch takes seconds.
    from nystromformer.prediction.explain import run_explain

    run_explain(run, content, label, out, device, typer.echo)


if __name__ == "__main__":
    cli.run(explain)
