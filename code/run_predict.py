"""Predict new rows with a finished fine-tuning run; resumes when it is started again."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from nystromformer.command_line import cli, flags
from nystromformer.command_line.flag_groups import Without, with_flag_groups
from nystromformer.tabular.reading import Reading


@with_flag_groups
def predict(
    run: Annotated[
        Path,
        typer.Argument(
            help="Folder of a finished run of run_classify.py, run_glue.py, run_imdb.py or run_transactions.py, such "
            "as MODEL/model/imdb/cp-0099-…; with --embed also an experiment, whose last checkpoint is used.",
        ),
    ],
    input: Annotated[
        str,
        typer.Option(
            "--input",
            help="Input table, as for run_classify.py --train, or a folder of Parquet files; for "
            "run_transactions.py the folder that `experiments/transactions/prepare.py new` wrote.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            help="Output file, ending in .csv, .tsv or .parquet; for a folder of Parquet files an output "
            "folder. It must not exist.",
        ),
    ],
    text: Annotated[
        str | None,
        typer.Option("--text", help="Text column; two for pairs. Default: as in the training data."),
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="Column with the rows' ids. Default: their numbers, from 1.")
    ] = None,
    device: flags.DeviceName = "auto",
    embed: Annotated[
        bool,
        typer.Option(
            "--embed", help="Write each text's vector (what the encoder gives the head) instead of a prediction."
        ),
    ] = False,
    length: Annotated[
        int | None, typer.Option("--length", help="With --embed: tokens to read of each text. Default: all it takes.")
    ] = None,
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(
            "--engine",
            help="Where to predict a folder: local (this process) or ray (the cluster of RAY_ADDRESS; without it, one "
            "on this machine that ends with the command).",
        ),
    ] = "local",
    array_index: flags.ArrayIndex = None,
    array_size: flags.ArraySize = None,
    *,
    reading: Annotated[Reading, Without("keep_na")],
) -> None:
    """Predict labels and their probabilities for a table of any size, in its order, or a folder of tables."""
    part = flags.array_slice(array_index, array_size)
    # After the flags were checked: importing torch takes seconds.
    from nystromformer.prediction.predict import run_predict
    from nystromformer.prediction.predictor import Predictor

    predictor = Predictor(run, device, embed, length=length)
    run_predict(predictor, input, out, text, id, reading, engine == "ray", part)


if __name__ == "__main__":
    cli.run(predict)
