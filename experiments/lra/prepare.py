"""Prepare the data of a task of the Long Range Arena: from its release, from the data it is made of, or drawn."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.errors import UserError
from nystromformer.tasks.lra.listops import LISTOPS, Expressions, draw_listops
from nystromformer.tasks.lra.pathfinder import PATH_PIXELS, PATHFINDER, STYLES, Style, draw_pathfinder, find_style
from nystromformer.tasks.lra.release import read_image, read_listops, read_pathfinder, read_retrieval, read_text
from nystromformer.tasks.lra.store import describe

HERE = Path(__file__).resolve().parent
Length = Annotated[int, typer.Option(min=1, max=1 << 20, help="Bytes to keep of each text.")]
Release = Annotated[Path | None, typer.Option(help="LRA's release, lra_release, or the task's folder in it.")]
Count = Annotated[int | None, typer.Option(min=1, max=10**8, help="Examples to draw. Default: the official number.")]


@dataclass(frozen=True)
class Common:
    """Flags of all tasks."""

    seed: Annotated[int, typer.Option(min=0, help="Random seed of the drawn examples and of the splits.")] = 0
    out: Annotated[
        Path | None, typer.Option(help="Folder for the prepared data. Default: data, beside the task's config.json.")
    ] = None

    def folder(self, task: str, name: str = "data") -> Path:
        return self.out or HERE / task / name


@dataclass(frozen=True)
class Drawing:
    """How many examples are drawn; each field is a flag."""

    train: Count = None
    validation: Count = None
    test: Count = None
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes; the result is the same for any number.")] = 2

    def sizes(self, official: Mapping[str, int]) -> dict[str, int]:
        return {split: getattr(self, split) or size for split, size in official.items()}


@dataclass(frozen=True)
class Pictures:
    """What drawn paths look like; each field is a flag."""

    size: Annotated[int, typer.Option(help="Pixels of a side: 32, 64, 128 (Path-X) or 256.")] = 32
    contour: Annotated[int, typer.Option(min=2, max=100, help="Dashes of a long path; the release has 6, 9, 14.")] = 14
    distractors: Annotated[
        bool, typer.Option("--distractors/--no_distractors", help="Whether to draw short paths beside the long ones.")
    ] = True

    @property
    def style(self) -> Style:
        if self.size not in STYLES:
            raise UserError(f"--size: expected one of {', '.join(map(str, STYLES))}, found {self.size}")
        return find_style(self.size, self.contour, self.distractors)


@with_flag_groups
def listops(release: Release = None, *, wanted: Expressions, drawing: Drawing, common: Common) -> None:
    """Nested lists of digits under operators: drawn with LRA's distribution, or from its release."""
    folder = common.folder("listops")
    _check_source(release, wanted == Expressions() and drawing == Drawing())
    if release is not None:
        typer.echo(describe(read_listops(folder, release, common.seed)))
    else:
        sizes = drawing.sizes(LISTOPS.official)
        typer.echo(describe(draw_listops(folder, wanted, sizes, common.seed, drawing.workers)))


@with_flag_groups
def text(
    imdb: Annotated[Path, typer.Option(help="Folder of the unpacked aclImdb_v1.tar.gz.")] = Path("imdb"),
    length: Length = 4000,
    *,
    common: Common,
) -> None:
    """IMDB's reviews as bytes: whether one is positive; a tenth of train is validation data."""
    folder = common.folder("text")
    typer.echo(describe(read_text(folder, imdb, length, common.seed)))


@with_flag_groups
def retrieval(release: Release = HERE / "lra_release", length: Length = 4000, *, common: Common) -> None:
    """Pairs of papers as bytes: whether one cites the other."""
    assert release is not None
    folder = common.folder("retrieval")
    typer.echo(describe(read_retrieval(folder, release, length, common.seed)))


@with_flag_groups
def image(
    cifar: Annotated[Path, typer.Option(help="Folder of CIFAR-10's files.")] = HERE,
    *,
    common: Common,
) -> None:
    """CIFAR-10 in grey, pixel by pixel; a tenth of train is validation data."""
    folder = common.folder("image")
    typer.echo(describe(read_image(folder, cifar, common.seed)))


@with_flag_groups
def pathfinder(release: Release = None, *, pictures: Pictures, drawing: Drawing, common: Common) -> None:
    """Dashed paths: whether both marks are on one; drawn with LRA's parameters, or LRA's own pictures."""
    folder, style = common.folder("pathfinder", f"data-{pictures.size}"), pictures.style
    _check_source(release, pictures.distractors and drawing == Drawing())
    if release is not None:
        typer.echo(describe(read_pathfinder(folder, release, style.size, style.contour, common.seed)))
    else:
        sizes = drawing.sizes(PATHFINDER.official)
        typer.echo(describe(draw_pathfinder(folder, style, sizes, common.seed, drawing.workers)))


@with_flag_groups
def pathfinder_path(*, pictures: Pictures, drawing: Drawing, common: Common) -> None:
    """Pathfinder with a label of each pixel: whether it is on the marked path; not a task of the Long Range Arena."""
    folder, sizes = common.folder("pathfinder_path", f"data-{pictures.size}"), drawing.sizes(PATHFINDER.official)
    typer.echo(describe(draw_pathfinder(folder, pictures.style, sizes, common.seed, drawing.workers, PATH_PIXELS)))


def _check_source(release: Path | None, is_usual: bool) -> None:
    """Refuse flags of drawing beside a release."""
    if release is not None and not is_usual:
        raise UserError("--release: its examples are taken as they are: expected no flag of drawing with it")


if __name__ == "__main__":
    logging.getLogger("nystromformer").setLevel(logging.INFO)
    cli.run_one_of(listops, text, retrieval, image, pathfinder, pathfinder_path)
