"""Fine-tune a pretrained model on IMDB reviews; resumes when it is started again."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.config.ranges import MOST
from nystromformer.tasks.finetuning.flags import Flags


@with_flag_groups
def imdb(
    imdb: Annotated[
        Path | None,
        typer.Option(
            "--imdb",
            help="aclImdb_v1.tar.gz, or a folder with it or its files. Default: imdb_dataset_folder of config.json.",
        ),
    ] = None,
    validation: Annotated[
        float,
        typer.Option(
            "--validation",
            min=0.001,
            max=0.9,
            help="Share of the training reviews to hold out, to select the best epoch.",
        ),
    ] = 0.1,
    split_seed: Annotated[int, typer.Option("--split_seed", min=0, help="Random seed of the held-out reviews.")] = 0,
    min_tokens: Annotated[
        int | None,
        typer.Option(
            "--min_tokens",
            min=1,
            max=MOST,
            help="Train and test only on reviews of at least this many tokens, such as 513 for those that --length "
            "512 cuts. Default: all.",
        ),
    ] = None,
    *,
    shared: Flags,
) -> None:
    """Fine-tune on IMDB reviews, e.g. with --length 512 or 1024; the chosen epoch is tested on the whole test set."""
    grid, experiment = shared.grid(), shared.open()

    # After the flags were checked: importing torch takes seconds.
    from nystromformer.tasks.finetuning.run import finetune
    from nystromformer.tasks.imdb.task import Imdb

    source = imdb or experiment.path(experiment.config.imdb_dataset_folder)
    finetune(experiment, [Imdb(source, validation, split_seed, min_tokens)], shared, grid)


if __name__ == "__main__":
    cli.run(imdb)
