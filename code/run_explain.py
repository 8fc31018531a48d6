"""Explain a prediction: which tokens a finished run's answer depends on, as text and as a page."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flags import DeviceName

_SHOWN = 20
"""Tokens on the terminal."""


def explain(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run: run_classify.py, run_glue.py or run_imdb.py.")],
    text: Annotated[Path, typer.Option("--text", help="File with the text.")],
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
    from nystromformer.errors import UserError
    from nystromformer.files.reading import JSON_BYTES, read_text
    from nystromformer.files.writing import check_new_file, write_text

    check_new_file("--out", out)
    texts = [read_text(path, JSON_BYTES, "a text") for path in (text, second) if path is not None]

    # After the files were read: importing torch takes seconds.
    from nystromformer.report.explanation import explain_text
    from nystromformer.tasks.prediction.loaded import load_run

    try:
        found = explain_text(load_run(run, device), texts[0], *texts[1:], label=label)
    except ValueError as error:
        raise UserError(f"{run}: {error}") from None
    write_text(out, found.page)
    for name, value in found.facts.items():
        typer.echo(f"{name}: {value}")
    attention_N = found.attention_LN.mean(0)
    typer.echo("\nattention, %   gradient x input   token")
    for number in (-attention_N).argsort()[:_SHOWN].tolist():
        name = found.text[slice(*found.offsets[number])].strip() or found.names[number]
        typer.echo(f"{100 * attention_N[number]:12.2f} {found.steepness_N[number]:+18.4f}   {name}")
    typer.echo(f"\npage: {out}")


if __name__ == "__main__":
    cli.run(explain)
