"""Fine-tune a model on a table of documents and labels; resumes when it is started again."""

from dataclasses import replace
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flag_groups import Without, with_flag_groups
from nystromformer.errors import UserError
from nystromformer.tabular.reading import TABLE, Reading
from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.finetuning.flags import Flags


@with_flag_groups
def classify(
    *,
    question: Question,
    from_scratch: Annotated[
        bool,
        typer.Option(
            "--from_scratch",
            help="Start from random weights and a tokenizer of at most model.vocab_size tokens, trained on all "
            "texts of the training table, instead of a checkpoint.",
            rich_help_panel=TABLE,
        ),
    ] = False,
    reading: Reading,
    shared: Annotated[Flags, Without("baselines", "checkpoint", "pad_to", "train_rows")],
) -> None:
    """Fine-tune on your own texts: classes, several labels at once, values, or ordered classes."""
    if from_scratch and shared.freeze:
        raise UserError("--from_scratch: expected no --freeze with it")
    shared, grid, experiment = replace(shared, baselines=True), shared.grid(), shared.open()

    # After the flags were checked: importing torch takes seconds.
    from nystromformer.tasks.documents.task import Documents
    from nystromformer.tasks.finetuning.run import finetune

    documents = Documents(question, reading, experiment.path(experiment.config.documents_folder))
    finetune(experiment, [documents], shared, grid, documents.open_from_scratch if from_scratch else None)


if __name__ == "__main__":
    cli.run(classify)
