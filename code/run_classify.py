"""Fine-tune a model on a table of documents and labels; resumes when it is started again."""

from dataclasses import replace
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flag_groups import Without, with_flag_groups
from nystromformer.errors import UserError
from nystromformer.tabular.reading import Reading
from nystromformer.tasks.finetuning.flags import Flags

_TABLE = "More about the table"
"""A heading of --help."""


@with_flag_groups
def classify(
    train: Annotated[
        str,
        typer.Option(
            "--train",
            help="Training table: a .csv, .tsv, .jsonl, .json, .parquet or .xlsx file (or FILE.xlsx:SHEET); a folder "
            "with a folder of .txt files for each class (columns text and label).",
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
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="Kind of labels: classes; several (any number of classes for a text; several,separator=; names what "
            "is between them in a cell, by default a comma); value; ordered (such as 1 to 5 stars; "
            "ordered,order=low/middle/high where they are no numbers). Default: detected, except ordered.",
        ),
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(
            "--validation",
            help="Share of each class of the training table to hold out, to select the best epoch (0.1,seed=3 draws "
            "other rows); or a table. Default: 0.1.",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            help="Column, such as an author: rows with the same value stay on one side of the split.",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            "--time", help="Column of dates or numbers: the latest rows are held out.", rich_help_panel=_TABLE
        ),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="Column with the rows' ids, for predictions. Default: their numbers, from 1.",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    skip_empty: Annotated[
        bool,
        typer.Option(
            "--skip_empty",
            help="Leave out rows without text or without a label instead of stopping.",
            rich_help_panel=_TABLE,
        ),
    ] = False,
    class_weights: Annotated[
        str | None,
        typer.Option(
            "--class_weights",
            help="Weights in the loss: balanced (each class counts as much as the others), or numbers, "
            "such as spam=3,other=1. Default: each example counts the same.",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    cut: Annotated[
        str | None,
        typer.Option(
            "--cut",
            help="How to cut texts longer than --length: head (drop the end), or windows (drop nothing: read rows that "
            "overlap and classify their mean; windows,overlap=64 sets the overlap in tokens, by default an eighth of a "
            "row). Default: head; windows if --length is not given and more than 5 % of the texts are longer than the "
            "model's rows.",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            help="Name of the task in folders and tables. Default: that of the training table.",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    from_scratch: Annotated[
        bool,
        typer.Option(
            "--from_scratch",
            help="Start from random weights and a tokenizer trained on the training rows instead of a checkpoint.",
            rich_help_panel=_TABLE,
        ),
    ] = False,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            "--vocab_size",
            min=261,
            max=10**6,
            help="With --from_scratch: tokens of that tokenizer at most. Default: config.json's.",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    *,
    reading: Reading,
    shared: Annotated[Flags, Without("baselines", "checkpoint", "pad_to", "train_rows")],
) -> None:
    """Fine-tune on your own texts: classes, several labels at once, values, or ordered classes."""
    if from_scratch and shared.freeze:
        raise UserError("--from_scratch: expected no --freeze with it")
    if vocab_size is not None and not from_scratch:
        raise UserError("--vocab_size: expected --from_scratch with it: a checkpoint has a tokenizer of its own")
    shared, grid = replace(shared, baselines=True), shared.grid()
    experiment = shared.open([] if vocab_size is None else [f"model.vocab_size={vocab_size}"])

    # After the flags were checked: importing torch takes seconds.
    from nystromformer.tasks.documents.cut import cut_of
    from nystromformer.tasks.documents.divide import division_of
    from nystromformer.tasks.documents.question import Question, kind_of, name_of, weights_of
    from nystromformer.tasks.documents.task import Documents
    from nystromformer.tasks.finetuning.run import finetune

    wanted, separator, order = kind_of(kind)
    question = Question(
        name=name_of(task, train),
        train=train,
        text=text,
        label=label,
        test=test,
        default=experiment.path(experiment.config.documents_folder),
        reading=reading,
        id=id,
        group=group,
        time=time,
        skip_empty=skip_empty,
        kind=wanted,
        separator=separator,
        order=order,
        weights=weights_of(class_weights),
        cut=cut_of(cut),
        division=division_of(validation, group, time),
    )
    documents = Documents(question)
    finetune(experiment, [documents], shared, grid, documents.open_from_scratch if from_scratch else None)


if __name__ == "__main__":
    cli.run(classify)
