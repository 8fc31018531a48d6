"""Fine-tune a model on a table of documents and labels; resumes when it is started again."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.config.ranges import MOST, MOST_SEED
from nystromformer.tasks.documents.reading import Reading
from nystromformer.tasks.finetuning.settings import FinetuningFlags


@with_flag_groups
def classify(
    train: Annotated[
        str,
        typer.Option(
            "--train",
            help="Training table: a .csv, .tsv, .jsonl, .json, .parquet or .xlsx file; a folder with a folder of .txt "
            "files for each class (columns text and label); hub:NAME, hub:NAME:SPLIT or hub:NAME@CONFIG:SPLIT.",
        ),
    ],
    text: Annotated[str, typer.Option("--text", help="Text column; two for pairs, such as question,answer.")],
    label: Annotated[
        str,
        typer.Option(
            "--label",
            help="Label column; several columns of 0 and 1 for texts with any number of labels (--kind several).",
        ),
    ],
    test: Annotated[
        str | None,
        typer.Option("--test", help="Test table: predicted by the best run, and scored if it has labels."),
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(
            "--validation",
            help="Share of each class of the training table to hold out, to select the best epoch; or a table. "
            "Default: 0.1.",
        ),
    ] = None,
    split_seed: Annotated[
        int | None,
        typer.Option("--split_seed", min=0, max=MOST_SEED, help="Random seed of the held-out rows. Default: 0."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", help="Column, such as an author: rows with the same value stay on one side of the split."
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option("--time", help="Column of dates or numbers: the latest rows are held out."),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            "--folds",
            min=2,
            max=1000,
            help="Cross-validation: hold out each of this many parts in turn, and report the mean.",
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="Kind of labels: classes; several (any number of classes for a text); value; ordered (such as 1 to "
            "5 stars). Default: detected, except ordered.",
        ),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            "--order", help="With --kind ordered: the classes from lowest to highest, such as low,middle,high."
        ),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option("--separator", help="With --kind several: separator of the labels in a cell. Default: a comma."),
    ] = None,
    class_weights: Annotated[
        str | None,
        typer.Option(
            "--class_weights",
            help="Weights in the loss: balanced (each class counts as much as the others), or numbers, "
            "such as spam=3,other=1. Default: each example counts the same.",
        ),
    ] = None,
    cut: Annotated[
        str | None,
        typer.Option(
            "--cut",
            help="How to cut texts longer than --length: head (drop the end), head_and_tail (drop the middle), or "
            "windows (drop nothing: read overlapping rows and classify their mean). Default: head; windows if "
            "--length is not given and more than 5 % of the texts are longer than the model's rows.",
        ),
    ] = None,
    overlap: Annotated[
        int | None,
        typer.Option(
            "--overlap", min=0, max=MOST, help="With --cut windows: overlap in tokens. Default: an eighth of a row."
        ),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option("--id", help="Column with the rows' ids, for predictions. Default: their numbers, from 1."),
    ] = None,
    skip_empty: Annotated[
        bool, typer.Option("--skip_empty", help="Leave out rows without text instead of stopping.")
    ] = False,
    skip_unlabelled: Annotated[
        bool, typer.Option("--skip_unlabelled", help="Leave out rows without a label instead of stopping.")
    ] = False,
    task: Annotated[
        str | None,
        typer.Option("--task", help="Name of the task in folders and tables. Default: that of the training table."),
    ] = None,
    documents: Annotated[
        Path | None,
        typer.Option(
            "--documents",
            help="Folder for relative table names. Default: the current folder, then documents_folder of config.json.",
        ),
    ] = None,
    from_scratch: Annotated[
        bool,
        typer.Option(
            "--from_scratch",
            help="Start from random weights and a tokenizer trained on the training rows instead of a checkpoint.",
        ),
    ] = False,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            "--vocab_size",
            min=261,
            max=MOST,
            help="With --from_scratch: vocabulary size of the tokenizer. Default: that of config.json.",
        ),
    ] = None,
    *,
    reading: Reading,
    shared: FinetuningFlags,
) -> None:
    """Fine-tune on your own texts: classes, several labels at once, values, or ordered classes."""
    from nystromformer.tasks.documents.flag_values import (
        check_kind,
        check_separator,
        check_weights,
        classes_named,
        name_of,
    )

    experiment, sweep = shared.open(tries_rates=True)
    wanted, weights, called = check_kind(kind), check_weights(class_weights), name_of(task, train)
    between = check_separator(separator, wanted)

    # After the flags were checked: importing torch takes seconds.
    from nystromformer.tasks.documents.cut import check_rule
    from nystromformer.tasks.documents.divide import check_division
    from nystromformer.tasks.documents.folds import check_scratch, run_documents
    from nystromformer.tasks.documents.question import Question
    from nystromformer.tasks.documents.task import Documents

    check_scratch(from_scratch, vocab_size, shared)
    question = Question(
        name=called,
        train=train,
        text=text,
        label=label,
        test=test,
        folder=documents,
        default=experiment.path(experiment.config.documents_folder),
        reading=reading,
        separator=between,
        id=id,
        group=group,
        time=time,
        skip_empty=skip_empty,
        skip_unlabelled=skip_unlabelled,
        kind=wanted,
        order=classes_named(order),
        weights=weights,
        cut=check_rule(cut, overlap),
        division=check_division(validation, split_seed, folds, group, time),
    )
    run_documents(experiment, Documents(question), sweep, shared.device, typer.echo, from_scratch, vocab_size)


if __name__ == "__main__":
    cli.run(classify)
