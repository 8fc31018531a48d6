"""Fine-tune a model on a table of documents and labels; run again, it goes on where it was stopped."""

import nystromformer.command_line.interrupt  # noqa: F401  # first of all: for Ctrl-C within the imports below

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.config.ranges import MOST, MOST_SEED
from nystromformer.tasks.finetuning.settings import FinetuningFlags


@with_flag_groups
def classify(
    train: Annotated[
        str,
        typer.Option(
            "--train",
            help="Table to learn from: a file that ends in .csv, .tsv, .jsonl or .parquet; hub:NAME, hub:NAME:SPLIT or "
            "hub:NAME@CONFIG:SPLIT.",
        ),
    ],
    text: Annotated[str, typer.Option("--text", help="Column of the texts; two, such as question,answer: pairs.")],
    label: Annotated[
        str,
        typer.Option(
            "--label", help="Column of the labels; several, of 0 and 1: a text may have any of them (--kind several)."
        ),
    ],
    test: Annotated[
        str | None,
        typer.Option("--test", help="Table that the best run predicts, and is scored on where it has labels."),
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(
            "--validation",
            help="Share of the training table, of each class alike, held out to choose the epoch by; or a table. "
            "Default: 0.1.",
        ),
    ] = None,
    split_seed: Annotated[
        int | None,
        typer.Option("--split_seed", min=0, max=MOST_SEED, help="Random seed: which rows are held out. Default: 0."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", help="Column, such as an author: rows that share its value are not divided."),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option("--time", help="Column of dates or numbers: the latest rows are held out."),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option("--folds", min=2, max=1000, help="Hold out each of so many parts in turn, and report their mean."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="What labels are: classes; several (any number of classes at once); value; ordered (classes with an "
            "order, such as 1 to 5 stars). Default: what they look like.",
        ),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option("--order", help="With --kind ordered: the classes from the lowest on, such as low,middle,high."),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            "--separator", help="With --kind several: what stands between the labels of a cell. Default: a comma."
        ),
    ] = None,
    class_weights: Annotated[
        str | None,
        typer.Option(
            "--class_weights",
            help="balanced: each class counts as much as the others; or such as spam=3,other=1. Default: all alike.",
        ),
    ] = None,
    cut: Annotated[
        str,
        typer.Option(
            "--cut",
            help="What becomes of a text longer than --length: head (its end is lost), head_and_tail (its middle), or "
            "windows (nothing: it takes several rows that overlap, whose mean is classified).",
        ),
    ] = "head",
    overlap: Annotated[
        int | None,
        typer.Option(
            "--overlap", min=0, max=MOST, help="With --cut windows: tokens that two share. Default: an eighth of a row."
        ),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option("--id", help="Column that predictions name rows by. Default: their numbers, from 1."),
    ] = None,
    no_quotes: Annotated[
        bool,
        typer.Option("--no_quotes", help="A quote in CSV and TSV is a character like any other, as in GLUE's files."),
    ] = False,
    skip_empty: Annotated[
        bool, typer.Option("--skip_empty", help="Leave rows without text out instead of stopping.")
    ] = False,
    task: Annotated[
        str | None,
        typer.Option("--task", help="What the task is called, in folders and tables. Default: as the training table."),
    ] = None,
    documents: Annotated[
        Path | None,
        typer.Option(
            "--documents",
            help="Folder of tables with relative names. Default: the current one, or else documents_folder of "
            "config.json.",
        ),
    ] = None,
    from_scratch: Annotated[
        bool,
        typer.Option(
            "--from_scratch",
            help="Begin with initial weights and a tokenizer trained on the training rows, not with a checkpoint.",
        ),
    ] = False,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            "--vocab_size",
            min=261,
            max=MOST,
            help="With --from_scratch: tokens of the tokenizer. Default: vocab_size of config.json.",
        ),
    ] = None,
    *,
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

    experiment, sweep = shared.open()
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
        quotes=not no_quotes,
        separator=between,
        id=id,
        group=group,
        time=time,
        skip_empty=skip_empty,
        kind=wanted,
        order=classes_named(order),
        weights=weights,
        cut=check_rule(cut, overlap),
        division=check_division(validation, split_seed, folds, group, time),
    )
    run_documents(experiment, Documents(question), sweep, shared.device, typer.echo, from_scratch, vocab_size)


if __name__ == "__main__":
    cli.run(classify)
