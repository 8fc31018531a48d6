"""Import models of other libraries as experiment folders, and export experiments to other libraries."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.command_line.flags import DeviceName
from nystromformer.command_line.runtime import this_command
from nystromformer.interop.experiments.settings import Conversion, ImportSettings


@with_flag_groups
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            help="Folder saved by transformers or sentence-transformers (Nystromformer, BERT, RoBERTa, DistilBERT or "
            "ModernBERT), its name on the Hugging Face hub, or a .model or .cp file of the authors' code."
        ),
    ],
    dest: Annotated[Path, typer.Argument(help="Experiment folder to create.")],
    settings: ImportSettings,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The authors' config.json. Default: beside their checkpoint, or a folder above."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", help="Folder of the tokenizer, or none for the weights alone. Default: SOURCE."),
    ] = None,
) -> None:
    """Make an experiment folder from a model of transformers, sentence-transformers or the authors' code."""
    from nystromformer.interop.experiments.import_model import import_model

    for line in import_model(source, dest, settings, config, tokenizer):
        typer.echo(line)
    typer.echo(f"imported: {dest}")


import_.__name__ = "import"


@with_flag_groups
def convert(
    source: Annotated[
        Path,
        typer.Argument(help="Experiment folder with softmax in all layers, or what `import` takes."),
    ],
    dest: Annotated[Path, typer.Argument(help="Experiment folder to create.")],
    conversion: Conversion,
    device: DeviceName = "auto",
) -> None:
    """Replace softmax with another attention, and train it to reproduce the source's output.

    It resumes when it is started again. DEST gets a conversion.json with the errors before and after.
    """
    from nystromformer.interop.experiments.convert import convert_model

    told, stopped_by = convert_model(source, dest, conversion, device, this_command())
    typer.echo(told)
    if stopped_by is not None:
        raise typer.Exit(128 + stopped_by)


def export(
    folder: Annotated[
        Path,
        typer.Argument(help="Experiment folder, or the folder of a fine-tuning run below its checkpoints."),
    ],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="hf: a folder for transformers; sentence-transformers: a folder for that library, which gives "
            "pooled vectors; onnx; torch: a torch.export program.",
        ),
    ],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            help="Weights: last, an epoch's number, or best (finished runs only). Default: best of a finished run, "
            "else last.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder to write. Default: FOLDER/export-FORMAT."),
    ] = None,
) -> None:
    """Write a model for transformers, onnxruntime or torch.export."""
    from nystromformer.interop.experiments.export_model import export_model

    typer.echo(export_model(folder, checkpoint, form, out))


if __name__ == "__main__":
    cli.run_one_of(import_, convert, export)
