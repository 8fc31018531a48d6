"""Fine-tune a pretrained model on WikiHop; resumes when it is started again."""

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
            help="Folder with train.json and dev.json. Default: wikihop_dataset_folder of config.json.",
        ),
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(
            "--validation",
            help="Share of train.json to hold out, to select the best epoch; 0.1,seed=3 draws other instances. "
            "Default: use dev.json.",
        ),
    ] = None,
    *,
    # There are no guessers for candidates, no objectives, and no vector of a text.
    shared: Annotated[Flags, Without("baselines", "objective", "freeze")],
) -> None:
    """Fine-tune on WikiHop: which candidate answers a query, given any number of documents."""
    grid, experiment = shared.grid(Settings(epochs=15)), shared.open()

    # After the flags were checked: importing torch takes seconds.
    from nystromformer.tasks.finetuning.examples import share_of
    from nystromformer.tasks.finetuning.run import finetune
    from nystromformer.tasks.wikihop.task import WikiHop

    source = wikihop or experiment.path(experiment.config.wikihop_dataset_folder)
    share, seed = (None, 0) if validation is None else share_of(validation)
    finetune(experiment, [WikiHop(source, share, seed)], shared, grid)


if __name__ == "__main__":
    cli.run(wikihop)
