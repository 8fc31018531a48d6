"""Explain a prediction: which tokens a finished run's answer depends on, as a page and as numbers."""

import nystromformer.command_line.interrupt  # noqa: F401  # first of all: for Ctrl-C within the imports below

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flags import DeviceName


def explain(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run: run_classify.py, run_glue.py or run_imdb.py.")],
    text: Annotated[Path, typer.Option("--text", help="File with the text.")],
    second: Annotated[
        Path | None, typer.Option("--second", help="File with the second text, for runs on pairs.")
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", help="Label whose score is explained. Default: the most likely one.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Output page, ending in .html; the numbers are written beside it as .json.")
    ] = Path("explained.html"),
    device: DeviceName = "auto",
) -> None:
    """Shade a text by what a prediction depends on: the pooled vector's attention over layers, and gradient x input."""
    from nystromformer.errors import UserError
    from nystromformer.files.reading import JSON_BYTES, read_text
    from nystromformer.files.writing import check_new_file

    if out.suffix != ".html":
        raise UserError(f"--out {out}: expected a name that ends in .html; the numbers are written beside it as .json")
    numbers = out.with_suffix(".json")
    for path in (out, numbers):
        check_new_file("--out", path)
    texts = [read_text(path, JSON_BYTES, "a text") for path in (text, second) if path is not None]

    # After the files were read: importing torch takes seconds.
    from nystromformer.report.explain_run import explain_text, write_explanation
    from nystromformer.tasks.prediction.loaded import load_run

    made = explain_text(load_run(run, device), texts[0], *texts[1:], label=label)
    write_explanation(made, out, numbers)
    for name, value in made.facts.items():
        typer.echo(f"{name}: {value}")
    typer.echo(f"page: {out}, numbers: {numbers}")


if __name__ == "__main__":
    cli.run(explain)
