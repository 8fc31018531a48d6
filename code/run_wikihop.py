"""Fine-tune a pretrained model on WikiHop or MedHop; resumes when it is started again."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flag_groups import Without, with_flag_groups
from nystromformer.runs.settings import Settings
from nystromformer.tasks.finetuning.flags import Flags


@with_flag_groups
def wikihop(
    wikihop: Annotated[
        Path | None,
        typer.Option(
            "--wikihop",
            help="Folder with train.json and dev.json, of WikiHop or MedHop. Default: wikihop_dataset_folder of "
            "config.json.",
        ),
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(
            "--validation",
            min=0.001,
            max=0.9,
            help="Hold out this share of train.json to select the best epoch. Default: use dev.json.",
        ),
    ] = None,
    split_seed: Annotated[int, typer.Option("--split_seed", min=0, help="Random seed of --validation.")] = 0,
    skip_unanswerable: Annotated[
        bool,
        typer.Option(
            "--skip_unanswerable", help="Leave out instances whose answer is not a candidate, instead of stopping."
        ),
    ] = False,
    *,
    # There are no guessers for candidates, no objectives, and no vector of a text.
    shared: Annotated[Flags, Without("baselines", "objective", "freeze")],
) -> None:
    """Fine-tune on WikiHop: which candidate answers a query, given any number of documents."""
    grid, experiment = shared.grid(Settings(epochs=15)), shared.open()

    # After the flags were checked: importing torch takes seconds.
    from nystromformer.tasks.finetuning.run import finetune
    from nystromformer.tasks.wikihop.task import WikiHop

    source = wikihop or experiment.path(experiment.config.wikihop_dataset_folder)
    task = WikiHop(source, skip_unanswerable, validation, split_seed)
    finetune(experiment, [task], shared, grid)


if __name__ == "__main__":
    cli.run(wikihop)
