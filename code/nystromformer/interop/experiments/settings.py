"""What imports and conversions are asked: the fields are flags of run_export.py. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from nystromformer.command_line.flags import Overrides
from nystromformer.config.ranges import LEAST_RATE, MOST


def _count(flag: str, help: str, least: int = 1) -> Any:
    return typer.Option(flag, min=least, max=MOST, help=help)


def _rate(flag: str, help: str) -> Any:
    return typer.Option(flag, min=LEAST_RATE, max=1, help=help)


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
        _count(
            "--length", "Tokens of the longest input: learned positions are repeated or cut. Default: the source's."
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
    input: Annotated[Path, typer.Option("--input", help="Unlabelled text: a table (.csv, .tsv, .jsonl, .parquet).")]
    steps: Annotated[
        int, _count("--steps", "Steps that train each layer's attention towards the source's output.", least=0)
    ]
    end_to_end_steps: Annotated[
        int,
        _count(
            "--end_to_end_steps", "Steps that then train the whole model towards the source's hidden vectors.", least=0
        ),
    ] = 0
    overrides: Overrides = None
    text: Annotated[str, typer.Option("--text", help="Text column of the table.")] = "text"
    rows: Annotated[int, _count("--rows", "Rows of a step.")] = 8
    length: Annotated[
        int | None, _count("--length", "Tokens of the longest row. Default: the model's max_seq_len.", least=3)
    ] = None
    least_tokens: Annotated[int, _count("--least_tokens", "Tokens of the shortest row to use.")] = 1
    held_out: Annotated[int, _count("--held_out", "Rows held out for measuring.")] = 48
    learning_rate: Annotated[
        float, _rate("--learning_rate", "Peak learning rate of --steps, with linear warm-up and decay.")
    ] = 2e-4
    end_to_end_learning_rate: Annotated[
        float, _rate("--end_to_end_learning_rate", "Peak learning rate of --end_to_end_steps.")
    ] = 3e-5
    validate_every: Annotated[int, _count("--validate_every", "Steps between two measurements and checkpoints.")] = 25
    seed: Annotated[int, _count("--seed", "Random seed of the order of rows.", least=0)] = 0
