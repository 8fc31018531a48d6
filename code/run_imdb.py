"""Fine-tune a pretrained model on IMDB reviews; resumes when it is started again."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.tasks.finetuning.flags import Flags


@with_flag_groups
def imdb(
    imdb: Annotated[
        Path | None,
        typer.Option(
            "--imdb",
            help="Folder of the unpacked aclImdb_v1.tar.gz. Default: imdb_dataset_folder of config.json.",
        ),
    ] = None,
    validation: Annotated[
        str,
        typer.Option(
            "--validation",
            help="Share of the training reviews to hold out, to select the best epoch; 0.1,seed=3 draws other ones.",
        ),
    ] = "0.1",
    *,
    shared: Flags,
) -> None:
    """Fine-tune on IMDB reviews, e.g. with --length 512 or 1024; the chosen epoch is tested on the whole test set."""
    grid, experiment = shared.grid(), shared.open()

    # After the flags were checked: importing torch takes seconds.
    from nystromformer.tasks.finetuning.examples import share_of
    from nystromformer.tasks.finetuning.run import finetune
    from nystromformer.tasks.imdb.task import Imdb

    source = imdb or experiment.path(experiment.config.imdb_dataset_folder)
    finetune(experiment, [Imdb(source, *share_of(validation))], shared, grid)


if __name__ == "__main__":
    cli.run(imdb)
