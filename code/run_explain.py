"""Explain a prediction: which tokens a finished run's answer depends on, as text and as a page."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flags import DeviceName


def explain(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run: run_classify.py, run_glue.py or run_imdb.py.")],
    text: Annotated[Path, typer.Option("--input", help="File with the text.")],
    second: Annotated[
        Path | None, typer.Option("--second", help="File with the second text, for runs on pairs.")
    ] = None,
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
    texts = [read_text(path, "a text") for path in (text, second) if path is not None]

    # After the files were read: importing torch takes seconds.
    from nystromformer.prediction.explain import run_explain

    run_explain(run, texts, label, out, device, typer.echo)


if __name__ == "__main__":
    cli.run(explain)
