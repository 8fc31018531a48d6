"""Prepare the data of a task of the Long Range Arena: from its release, from the data it is made of, or drawn."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flags import refuse_given
from nystromformer.errors import UserError
from nystromformer.tasks.lra.image_data import read_image
from nystromformer.tasks.lra.listops import Expressions
from nystromformer.tasks.lra.listops_data import draw_listops, read_listops
from nystromformer.tasks.lra.pathfinder import STYLES
from nystromformer.tasks.lra.pathfinder_data import draw_pathfinder, read_pathfinder
from nystromformer.tasks.lra.pixels import draw_path_pixels
from nystromformer.tasks.lra.prepare import describe

HERE = Path(__file__).resolve().parent
LONGEST = 1 << 20

Out = Annotated[
    Path | None, typer.Option(help="Folder for the prepared data. Default: data, beside the task's config.json.")
]
Seed = Annotated[int, typer.Option(min=0, help="Random seed of the drawn examples and of the splits.")]
Partial = Annotated[
    bool,
    typer.Option(
        "--partial",
        help="Accept a source that lacks files or examples; missing splits are cut from its training examples. Every "
        "result says so.",
    ),
]
Release = Annotated[
    Path | None,
    typer.Option(help="The Long Range Arena's release, lra_release, or the folder in it with the task's files."),
]
Workers = Annotated[int, typer.Option(min=1, max=256, help="Processes; the result is the same for any number.")]
Count = Annotated[int, typer.Option(min=1, max=10**8)]
Distractors = Annotated[
    bool, typer.Option("--distractors/--no_distractors", help="Whether to draw short paths beside the two long ones.")
]
_OF_DRAWING = ("train", "validation", "test", "workers")


def listops(
    context: typer.Context,
    release: Release = None,
    partial: Partial = False,
    train: Count = 96_000,
    validation: Count = 2_000,
    test: Count = 2_000,
    longer_than: Annotated[
        int,
        typer.Option(
            "--longer_than", min=0, help="Expressions have more than this many tokens, without grouping brackets."
        ),
    ] = 500,
    shorter_than: Annotated[
        int, typer.Option("--shorter_than", min=2, max=10**6, help="Expressions have fewer than this many tokens.")
    ] = 2000,
    train_longer_than: Annotated[
        int | None,
        typer.Option(
            "--train_longer_than",
            min=0,
            help="The same for training expressions: a smaller number adds shorter ones, with fewer levels. Default: "
            "--longer_than.",
        ),
    ] = None,
    depth: Annotated[int, typer.Option(min=2, max=50, help="Levels of nesting, digits included.")] = 10,
    most_values: Annotated[
        int, typer.Option("--most_values", min=2, max=1000, help="Largest number of values of a list.")
    ] = 10,
    brackets: Annotated[
        bool,
        typer.Option(
            "--brackets",
            help="Keep the grouping brackets, which the Long Range Arena's loader leaves out: 17 kinds of token.",
        ),
    ] = False,
    seed: Seed = 0,
    workers: Workers = 2,
    out: Out = None,
) -> None:
    """Nested lists of digits under operators: drawn with LRA's distribution, or from its release."""
    own = ("longer_than", "shorter_than", "train_longer_than", "depth", "most_values")
    _check_source(context, release, partial, (*_OF_DRAWING, *own), "expressions")
    folder = out or HERE / "listops" / "data"
    if release is not None:
        manifest = read_listops(folder, release, brackets, partial, seed)
    else:
        wanted = Expressions(
            longer_than, shorter_than, depth, most_values, brackets=brackets, train_longer_than=train_longer_than
        )
        manifest = draw_listops(folder, wanted, {"train": train, "validation": validation, "test": test}, seed, workers)
    typer.echo(describe(folder, manifest))


def text(
    imdb: Annotated[Path, typer.Option(help="aclImdb_v1.tar.gz, or the folder with it or with its files.")] = Path(
        "imdb"
    ),
    length: Annotated[
        int,
        typer.Option(min=1, max=LONGEST, help="Bytes to keep of each review; the authors' released data have 1,000."),
    ] = 4000,
    validate_on_test: Annotated[
        bool,
        typer.Option(
            "--validate_on_test",
            help="As the authors did: use the test reviews as validation data, too; the results are then not those of "
            "a real test.",
        ),
    ] = False,
    partial: Partial = False,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """IMDB's reviews as bytes: whether one is positive; a tenth of train is validation data."""
    from nystromformer.tasks.lra.texts import read_text  # imports torch, which takes a second

    folder = out or HERE / "text" / "data"
    typer.echo(describe(folder, read_text(folder, imdb, length, validate_on_test, partial, seed)))


def retrieval(
    release: Annotated[
        Path, typer.Option(help="The Long Range Arena's release, lra_release, or tsv_data in it.")
    ] = HERE / "lra_release",
    partial: Partial = False,
    length: Annotated[int, typer.Option(min=1, max=LONGEST, help="Bytes to keep of each paper.")] = 4000,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Pairs of papers as bytes: whether one cites the other."""
    from nystromformer.tasks.lra.texts import read_retrieval  # imports torch, which takes a second

    folder = out or HERE / "retrieval" / "data"
    typer.echo(describe(folder, read_retrieval(folder, release, length, partial, seed)))


def image(
    cifar: Annotated[
        Path,
        typer.Option(
            help="CIFAR-10's folder cifar-10-batches-py, or the folder that holds it; hub: download from the Hugging "
            "Face hub."
        ),
    ] = HERE,
    validate_on_last: Annotated[
        bool,
        typer.Option(
            "--validate_on_last",
            help="As the authors did: validate on the last tenth of the training pictures, not on a random one.",
        ),
    ] = False,
    partial: Partial = False,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """CIFAR-10 in grey, pixel by pixel; a tenth of train is validation data."""
    folder = out or HERE / "image" / "data"
    if str(cifar) == "hub" and partial:
        raise UserError("--partial: expected no --cifar hub with it, where nothing is missing")
    source = None if str(cifar) == "hub" else cifar
    typer.echo(describe(folder, read_image(folder, source, partial, seed, validate_on_last)))


def pathfinder(
    context: typer.Context,
    release: Release = None,
    partial: Partial = False,
    size: Annotated[int, typer.Option(help="Pixels of a side: 32, 64, 128 (Path-X) or 256.")] = 32,
    contour: Annotated[
        int, typer.Option(min=2, max=100, help="Dashes of a long path; the release has 6, 9 and 14.")
    ] = 14,
    distractors: Distractors = True,
    train: Count = 160_000,
    validation: Count = 20_000,
    test: Count = 20_000,
    seed: Seed = 0,
    workers: Workers = 2,
    out: Out = None,
) -> None:
    """Dashed paths: whether both marks are on one; drawn with LRA's parameters, or LRA's own pictures."""
    _check_size(size)
    _check_source(context, release, partial, _OF_DRAWING, "pictures")
    folder = out or HERE / "pathfinder" / f"data-{size}"
    if release is not None:
        if not distractors:
            raise UserError("--no_distractors: expected no --release with it, whose pictures are taken as they are")
        manifest = read_pathfinder(folder, release, size, contour, partial, seed)
    else:
        sizes = {"train": train, "validation": validation, "test": test}
        manifest = draw_pathfinder(folder, size, contour, distractors, sizes, seed, workers)
    typer.echo(describe(folder, manifest))


def pathfinder_path(
    size: Annotated[int, typer.Option(help="Pixels of a side: 32, 64, 128 or 256.")] = 32,
    contour: Annotated[int, typer.Option(min=2, max=100, help="Dashes of a long path.")] = 14,
    distractors: Distractors = True,
    train: Count = 160_000,
    validation: Count = 20_000,
    test: Count = 20_000,
    seed: Seed = 0,
    workers: Workers = 2,
    out: Out = None,
) -> None:
    """Pathfinder with a label of each pixel: whether it is on the marked path; not a task of the Long Range Arena."""
    _check_size(size)
    folder = out or HERE / "pathfinder_path" / f"data-{size}"
    sizes = {"train": train, "validation": validation, "test": test}
    manifest = draw_path_pixels(folder, size, contour, distractors, sizes, seed, workers)
    typer.echo(describe(folder, manifest))


def _check_size(size: int) -> None:
    if size not in STYLES:
        raise UserError(f"--size: expected one of {', '.join(map(str, STYLES))}, found {size}")


def _check_source(
    context: typer.Context, release: Path | None, partial: bool, of_drawing: tuple[str, ...], examples: str
) -> None:
    """Refuse flags of drawing beside a release, and --partial without one."""
    if release is not None:
        refuse_given(context, of_drawing, f"--release: its {examples} are taken as they are")
    elif partial:
        raise UserError("--partial: expected --release with it; drawn data are always complete")


if __name__ == "__main__":
    logging.getLogger("nystromformer").setLevel(logging.INFO)
    cli.run_one_of(listops, text, retrieval, image, pathfinder, pathfinder_path)
