"""Bring models of others into experiment folders, and experiments into what others load."""

import nystromformer.interrupt  # noqa: F401  # first of all: for Ctrl-C within the imports below

from pathlib import Path
from typing import Annotated

import typer

from nystromformer import cli
from nystromformer.config.ranges import MOST
from nystromformer.flags import DeviceName, Overrides, command_line

Force = Annotated[bool, typer.Option("--force", help="Replace all that is in a target folder that is not empty.")]


def import_(
    source: Annotated[
        Path,
        typer.Argument(
            help="A folder as transformers saves it (Nystromformer, BERT or RoBERTa), the name of one on the Hugging "
            "Face hub, or a .model or .cp file of the authors' code."
        ),
    ],
    dest: Annotated[Path, typer.Argument(help="The experiment folder to make.")],
    compatible: Annotated[
        bool,
        typer.Option(
            "--compatible",
            help="Compute the attention exactly as the source does, on the lengths that it takes; else it takes any "
            "length and padding.",
        ),
    ] = False,
    conv_kernel_size: Annotated[
        int | None,
        typer.Option(
            "--conv_kernel_size",
            min=0,
            max=MOST,
            help="From BERT or RoBERTa: taps of the convolution, which begins at zero; 0 for none. Default: 33, and 0 "
            "beside --attention.",
        ),
    ] = None,
    num_landmarks: Annotated[
        int | None,
        typer.Option("--num_landmarks", min=1, max=MOST, help="From BERT or RoBERTa: landmarks. Default: 64."),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            help="From BERT or RoBERTa: what takes softmax's place, its parameters behind commas, such as "
            "near_far,block_size=32; softmax keeps the source as it is. Default: nystrom.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The authors' config.json. Default: beside their checkpoint or one above."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", help="Folder of the tokenizer, or none for the weights alone. Default: SOURCE."),
    ] = None,
    force: Force = False,
) -> None:
    """Make an experiment folder of a model that others have trained."""
    from nystromformer.exchange.imported import ImportSettings, import_model

    settings = ImportSettings(compatible, conv_kernel_size, num_landmarks, attention)
    for line in import_model(source, dest, settings, config, tokenizer, force):
        typer.echo(line)
    typer.echo(f"imported: {dest}")


import_.__name__ = "import"


def convert(
    source: Annotated[
        Path,
        typer.Argument(help="An experiment folder with softmax, or a folder as transformers saves it (BERT, RoBERTa)."),
    ],
    dest: Annotated[Path, typer.Argument(help="The experiment folder to make.")],
    attention: Annotated[
        str,
        typer.Option(
            "--attention",
            help="What takes softmax's place, its parameters behind commas, such as near_far,num_selected=32.",
        ),
    ],
    text: Annotated[
        Path,
        typer.Option(
            "--text",
            help="Unlabelled text: a table (.csv, .tsv, .jsonl, .parquet), a .txt file of paragraphs, a folder of "
            ".txt files, or a dataset that this project made with the model's tokenizer.",
        ),
    ],
    steps: Annotated[
        int,
        typer.Option(
            "--steps", min=0, max=MOST, help="Steps that train each layer's attention towards the source's output."
        ),
    ],
    end_to_end: Annotated[
        str | None,
        typer.Option(
            "--end_to_end",
            help="Then train the whole model. hidden: towards the source's hidden vectors; loss: to guess masked "
            "tokens.",
        ),
    ] = None,
    end_to_end_steps: Annotated[
        int | None,
        typer.Option("--end_to_end_steps", min=1, max=MOST, help="Steps of --end_to_end. Default: as --steps."),
    ] = None,
    text_column: Annotated[str, typer.Option("--text_column", help="The table's column with the text.")] = "text",
    rows: Annotated[int, typer.Option("--rows", min=1, max=MOST, help="Rows of a step.")] = 8,
    length: Annotated[
        int | None,
        typer.Option("--length", min=3, max=MOST, help="Tokens of a row at most. Default: the model's max_seq_len."),
    ] = None,
    least_tokens: Annotated[
        int, typer.Option("--least_tokens", min=1, max=MOST, help="Tokens of the shortest row that is used.")
    ] = 1,
    held_out: Annotated[
        int, typer.Option("--held_out", min=1, max=MOST, help="Rows that are kept for measuring.")
    ] = 48,
    learning_rate: Annotated[
        float, typer.Option("--learning_rate", min=0, max=1, help="Of --steps: its peak; it rises and falls linearly.")
    ] = 2e-4,
    end_to_end_learning_rate: Annotated[
        float, typer.Option("--end_to_end_learning_rate", min=0, max=1, help="The same of --end_to_end.")
    ] = 3e-5,
    validate_every: Annotated[
        int, typer.Option("--validate_every", min=1, max=MOST, help="Steps between two measurements and checkpoints.")
    ] = 25,
    seed: Annotated[int, typer.Option("--seed", min=0, max=MOST, help="Of the rows' order.")] = 0,
    device: DeviceName = "auto",
    overrides: Overrides = None,
    force: Force = False,
) -> None:
    """Put another attention in softmax's place, and train it to be like the source.

    Stopped and started again, it continues. The folder gets conversion.md, with the errors before and after.
    """
    from nystromformer.exchange.convert.convert import Conversion, convert_model

    asked = Conversion(
        attention,
        text,
        steps,
        end_to_end,
        end_to_end_steps,
        tuple(overrides or ()),
        text_column,
        rows,
        length,
        least_tokens,
        held_out,
        learning_rate,
        end_to_end_learning_rate,
        validate_every,
        seed,
    )
    told, stopped_by = convert_model(source, dest, asked, device, command_line(), force)
    typer.echo(told)
    if stopped_by is not None:
        raise typer.Exit(128 + stopped_by)


def export(
    folder: Annotated[
        Path,
        typer.Argument(help="The experiment folder, or the folder of a fine-tuning run below its checkpoints."),
    ],
    form: Annotated[
        str, typer.Option("--format", help="hf: a folder for transformers; onnx; torch: a torch.export program.")
    ],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            help="Which weights: last, an epoch's number, or best of a finished run. Default: best of a finished run, "
            "else last.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder to write. Default: FOLDER/export-FORMAT."),
    ] = None,
    code: Annotated[
        str,
        typer.Option(
            "--code",
            help="Of hf. transformers: its own modules; file: a file of code beside the weights; auto: transformers' "
            "own where they compute the same on all input.",
        ),
    ] = "auto",
    force: Force = False,
) -> None:
    """Write a model for transformers, onnxruntime or torch.export."""
    from nystromformer.exchange.exported import export_model

    typer.echo(export_model(folder, checkpoint, form, out, code, force))


def push(
    folder: Annotated[Path, typer.Argument(help="A folder that export --format hf has written.")],
    name: Annotated[str, typer.Argument(help="The repository on the hub, owner/model.")],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
) -> None:
    """Upload an exported folder to the Hugging Face hub, with the user's own login."""
    from nystromformer.exchange.hub import push as upload

    typer.echo(upload(folder, name, private))


if __name__ == "__main__":
    cli.run_one_of(import_, convert, export, push)
