"""Predict new rows with a finished fine-tuning run; resumes when it is started again."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli, flags
from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.config.ranges import MOST
from nystromformer.errors import UserError
from nystromformer.tasks.documents.reading import Reading


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
            help="Input table, as for run_classify.py --train, or a folder of Parquet files on this machine or in "
            "an S3 object store (s3://BUCKET/PREFIX); for run_transactions.py the folder that "
            "`experiments/transactions/prepare.py new` wrote.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            help="Output file, ending in .csv, .tsv, .jsonl or .parquet; for a folder of Parquet files an output "
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
    weights: Annotated[
        str | None,
        typer.Option(
            "--predict",
            help="Weights for predictions: best (the default: the best epoch on the validation data) or last.",
        ),
    ] = None,
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline",
            help="Predict with the regression on words (tf-idf) that run_classify.py keeps beside its runs.",
        ),
    ] = False,
    embed: Annotated[
        bool,
        typer.Option(
            "--embed", help="Write each text's vector (what the encoder gives the head) instead of a prediction."
        ),
    ] = False,
    skip_empty: Annotated[
        bool, typer.Option("--skip_empty", help="Leave rows without text unpredicted instead of stopping.")
    ] = False,
    tokens_at_a_time: Annotated[
        int | None,
        typer.Option(
            "--tokens_at_a_time",
            min=1,
            max=MOST,
            help="Tokens of a batch, padding included. Default: 2048 on a CPU (512 for a folder), 8192 on a GPU; a "
            "large GPU may be faster with more.",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option("--engine", help="Where to predict a folder: local (this process) or ray (a Ray cluster)."),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            help="Address of a running Ray cluster. Default: RAY_ADDRESS, or a cluster on this machine that ends with "
            "the command.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Number of Ray workers. Default: one per CPU or GPU of the cluster."),
    ] = None,
    array_index: flags.ArrayIndex = None,
    array_size: flags.ArraySize = None,
    device: flags.DeviceName = "auto",
    *,
    reading: Reading,
) -> None:
    """Predict labels and their probabilities for a table of any size, in its order, or a folder of tables."""
    from nystromformer.tasks.finetuning.settings import check_alone, predict_choice
    from nystromformer.tasks.prediction.engines import check_engine, is_experiment

    whose = predict_choice(weights or "best")
    check_alone(baseline, embed, whose)
    if weights is not None and embed and is_experiment(run):
        raise UserError("--predict: expected a run; for an experiment the last checkpoint is used")
    check_engine(engine, address, workers)
    part = flags.array_slice(array_index, array_size)

    # After the flags were checked: importing torch takes seconds.
    from nystromformer.tasks.prediction.predict import run_predict

    run_predict(
        *(run, input, out, text, id, whose, reading, skip_empty, tokens_at_a_time, device),
        baseline=baseline,
        embed=embed,
        on_ray=engine == "ray",
        address=address,
        workers=workers,
        part=part,
    )


if __name__ == "__main__":
    cli.run(predict)
