"""What imports and conversions are asked: the fields are flags of run_export.py. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line.flags import Overrides
from nystromformer.config.ranges import LEAST_RATE, MOST


@dataclass(frozen=True)
class ImportSettings:
    """What of the imported network is chosen."""

    compatible: Annotated[
        bool,
        typer.Option(
            "--compatible",
            help="Compute the attention exactly as the source does, for the lengths that it accepts. Default: accept "
            "any length and padding.",
        ),
    ] = False
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            help="Attention that replaces the source's, untrained, with parameters after commas, such as "
            "near_far,num_blocks=2. Default: the source's own.",
        ),
    ] = None
    length: Annotated[
        int | None,
        typer.Option(
            "--length",
            min=1,
            max=MOST,
            help="Tokens of the longest input: learned positions are repeated up to it, or cut. Default: the source's.",
        ),
    ] = None
    overrides: Overrides = None


@dataclass(frozen=True)
class Conversion:
    """What a conversion is asked."""

    attention: Annotated[
        str,
        typer.Option(
            "--attention",
            help="Attention that replaces softmax, with parameters after commas, such as near_far,num_selected=32.",
        ),
    ]
    input: Annotated[
        Path,
        typer.Option(
            "--input",
            help="Unlabelled text: a table (.csv, .tsv, .jsonl, .parquet).",
        ),
    ]
    steps: Annotated[
        int,
        typer.Option(
            "--steps", min=0, max=MOST, help="Steps that train each layer's attention towards the source's output."
        ),
    ]
    end_to_end_steps: Annotated[
        int,
        typer.Option(
            "--end_to_end_steps",
            min=0,
            max=MOST,
            help="Steps that then train the whole model towards the source's hidden vectors.",
        ),
    ] = 0
    overrides: Overrides = None
    text: Annotated[str, typer.Option("--text", help="Text column of the table.")] = "text"
    rows: Annotated[int, typer.Option("--rows", min=1, max=MOST, help="Rows of a step.")] = 8
    length: Annotated[
        int | None,
        typer.Option("--length", min=3, max=MOST, help="Tokens of the longest row. Default: the model's max_seq_len."),
    ] = None
    least_tokens: Annotated[
        int, typer.Option("--least_tokens", min=1, max=MOST, help="Tokens of the shortest row to use.")
    ] = 1
    held_out: Annotated[int, typer.Option("--held_out", min=1, max=MOST, help="Rows held out for measuring.")] = 48
    learning_rate: Annotated[
        float,
        typer.Option(
            "--learning_rate",
            min=LEAST_RATE,
            max=1,
            help="Peak learning rate of --steps, with linear warm-up and decay.",
        ),
    ] = 2e-4
    end_to_end_learning_rate: Annotated[
        float,
        typer.Option(
            "--end_to_end_learning_rate", min=LEAST_RATE, max=1, help="Peak learning rate of --end_to_end_steps."
        ),
    ] = 3e-5
    validate_every: Annotated[
        int, typer.Option("--validate_every", min=1, max=MOST, help="Steps between two measurements and checkpoints.")
    ] = 25
    seed: Annotated[int, typer.Option("--seed", min=0, max=MOST, help="Random seed of the order of rows.")] = 0
