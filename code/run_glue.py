"""Fine-tune a pretrained model on tasks of GLUE; resumes when it is started again."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.tasks.finetuning.flags import Flags


@with_flag_groups
def glue(
    task: Annotated[
        list[str],
        typer.Option(
            "--task",
            help="Task, such as MRPC; several, separated by commas; paper (the paper's five); or all. Repeatable.",
        ),
    ],
    glue: Annotated[
        Path | None,
        typer.Option("--glue", help="Folder of GLUE's files. Default: glue_dataset_folder of config.json."),
    ] = None,
    skip_bad_rows: Annotated[
        bool,
        typer.Option("--skip_bad_rows", help="Leave out malformed rows of train and dev files instead of stopping."),
    ] = False,
    *,
    shared: Flags,
) -> None:
    """Fine-tune on CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI; prints a table and writes predictions."""
    from nystromformer.tasks.glue.catalog import find_tasks

    grid, experiment = shared.grid(), shared.open()
    tasks = find_tasks(",".join(task))

    # After the flags were checked: importing torch takes seconds.
    from nystromformer.tasks.finetuning.run import finetune
    from nystromformer.tasks.glue.task import Glue

    source = glue or experiment.path(experiment.config.glue_dataset_folder)
    finetune(experiment, [Glue(each, source, skip_bad_rows) for each in tasks], shared, grid)


if __name__ == "__main__":
    cli.run(glue)
