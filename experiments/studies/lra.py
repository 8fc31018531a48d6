"""The Long Range Arena on two cores.

`python experiments/studies/lra.py run --data DIR [STAGE ...]`, then `collect`. DIR holds imdb and some at least of
lra/cifar-10-batches-py and of lra/retrieval.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nystromformer import studies
from nystromformer.config.attention import ATTENTIONS
from nystromformer.files.checked_json import checked
from nystromformer.files.writing import write_figure, write_json
from nystromformer.report.finetuning import attention_text
from nystromformer.report.lra import LRA_TASKS, Arena, Cell, name_columns, write_arena
from nystromformer.report.lra import collect as collect_runs
from nystromformer.runs.record import Run, find_runs
from nystromformer.studies import Job, Stages, job

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESULTS = studies.RESULTS / "lra"
DRAWN = {"curves.png": ("listops", "listops-short"), "curves-curriculum.png": ("listops-curriculum",)}
"""By picture, of whose runs on the track `paper` the accuracy is drawn over the steps; of several seeds the first
one's. Where the runs of a picture are gone, it stays."""
SHORT: dict[str, Sequence[str]] = {
    "nystrom": ("num_landmarks=32",),
    "performer": ("num_features=32",),
    "linformer": ("projected_length=32",),
    "conv_linformer": ("stride=8",),
    "local": ("block_size=32",),
    "longformer": ("window=32",),
    "bigbird": ("block_size=8", "num_global_blocks=1"),
    "sparse": ("stride=16",),
    "reformer": ("chunk_length=32",),
    "sinkhorn": ("block_size=32",),
}
"""Of expressions of 50 to 250 tokens: a width of 32 where one may be chosen."""
TAPS = 35
SEEDS = "0,1,2"
STEPS, EVERY = 5000, 250
BOTH = ("nystrom", "softmax")


class Lra(Stages):
    """The runs."""

    study = "lra"
    needs = "imdb and lra"

    def prepared(self) -> None:
        """All tasks' data."""
        short = "--longer_than 50 --shorter_than 250 --seed 1"
        flags = {
            "listops": "",
            "listops-short": f"{short} --train 20000",
            "listops-curriculum": f"{short} --train 400000 --train_longer_than 3",
            "text": f"--imdb {self.data / 'imdb'} --length 1024 --partial",
            "retrieval": f"--release {self.data / 'lra' / 'retrieval'} --partial",
            "image": f"--cifar {self.data / 'lra'} --partial",
            "pathfinder": "--train 1600 --validation 200 --test 200",
            "pathfinder-6": "--train 100000 --validation 500 --test 500 --contour 6 --no_distractors",
        }
        for name, own in flags.items():
            out = self.out / "data" / name
            words = (name.split("-")[0], own, "--out", out)
            # One by one: each uses all cores itself.
            self.run([job(f"prepare-{name}", "experiments/lra/prepare.py", *words, result=out / "manifest.json")])

    def listops_others(self) -> None:
        """Softmax and linear on ListOps at the Long Range Arena's sizes for a fifth of the steps, beside nystrom for as
        many."""
        names = ("nystrom", "softmax", "linear")
        self.run(self._train("listops", name, "--steps 1000 --every 250") for name in names)

    def short(self) -> None:
        """Every attention on short expressions, with the convolution and without."""
        names = sorted(ATTENTIONS, key=lambda name: name not in BOTH)
        self.run(self._short(name, conv, "--seed 0", "paper") for conv in (0, TAPS) for name in names)

    def tracks(self) -> None:
        """The three tracks on them, at as many steps in all."""
        tracks = ("paper", "modern", "spt")
        self.run(self._short(name, 0, f"--seed {SEEDS}", track) for track in tracks for name in BOTH)

    def curriculum(self) -> None:
        """Whether more is learned of them than simple rules say: deeper, rotary positions, and training expressions of
        any length, so that few levels come with many: an hour a core each.
        """
        flags = (
            "--conv 0 --steps 10000 --every 500 --batch_size 128 --lr 1e-3 --warmup 0.02 "
            "--set model.max_seq_len=256 --set model.positions=rotary --set model.position_offset=2 "
            "--set model.num_layers=6 --set model.dropout_prob=0 "
            "--set pretraining_setting.validate_batches_per_epoch=16"
        )
        widths = {"softmax": "", "nystrom": "--set model.attn_type.num_landmarks=32"}
        self.run(self._train("listops-curriculum", name, f"{flags} {width}") for name, width in widths.items())

    def others(self) -> None:
        """Text at 1,024 bytes, a part of CIFAR, pairs of papers, and hard paths."""
        text = "--steps 1000 --every 250 --length 1024 --set pretraining_setting.validate_batches_per_epoch=20"
        image = "--steps 500 --every 100 --batch_size 64"
        self.run([
            *(self._train("text", name, text) for name in BOTH),
            *(self._train("image", name, image) for name in BOTH),
            self._train("retrieval", "nystrom", "--steps 60 --every 20 --batch_size 8"),
            self._train("pathfinder", "nystrom", "--steps 100 --every 50"),
        ])  # fmt: skip

    def listops(self) -> None:
        """ListOps at the Long Range Arena's sizes: the paper's recipe, validated every 250 steps."""
        self.run([self._train("listops", "nystrom", f"--steps {STEPS} --every 250")])

    def paths(self) -> None:
        """Paths of 6 dashes without distractors, ten passes over 100,000: some seven hours on a core."""
        flags = "--steps 31250 --every 1562 --batch_size 32 --lr 5e-4 --warmup 0.05"
        self.run([self._train("pathfinder-6", "nystrom", flags)])

    def _short(self, name: str, conv: int, seeds: str, track: str) -> Job:
        narrower = " ".join(f"--set model.attn_type.{each}" for each in SHORT.get(name, ()))
        flags = f"--conv {conv} --track {track} --steps {STEPS} --every {EVERY} --lr 1e-3 {seeds}"
        widths = f"--set model.max_seq_len=256 {narrower}"
        return self._train("listops-short", name, f"{flags} {widths}", f"-{track}-{conv}")

    def _train(self, data: str, name: str, flags: str, ending: str = "") -> Job:
        task = data.partition("-")[0]
        folder = studies.write_experiment(self.out / data, f"lra/{task}")
        if self.rehearse:
            flags = re.sub(r"--(steps|every) \d+", "", flags) + " --train_rows 64 --steps 4 --every 2"
        place = ("--task", task, "--model", folder, "--data", self.out / "data" / data, "--attention", name)
        # In float32 on every processor: models as narrow as these gain nothing from bfloat16 on one.
        precise = "--baselines --set model.mixed_precision=false"
        return job(f"{data}-{name}{ending}", "code/run_lra.py", *place, f"{flags} {precise}")


def collect(
    runs: Path = Path("runs/lra"),
    span: Annotated[
        list[Path], typer.Option(help="Folder written by `run_benchmark.py span` for some of these runs.")
    ] = [RESULTS],  # noqa: B006
) -> None:
    """Write table3.md, its figures and pictures, and curves*.png. What table3.json has of runs that are not there any
    more stays.
    """
    page, data = RESULTS / "table3.md", RESULTS / "table3.json"
    earlier = studies.read_json(data)
    began = earlier.pop("began")
    began += [stage for stage in studies.read_stages(runs) if stage not in began]
    folders = [path.parent for path in sorted(runs.glob("*/config.json")) if classification_runs(path.parent)]
    found = collect_runs(folders) if folders else Arena({}, [], [])
    write_arena(join(checked(Arena, {**earlier, "unfinished": []}), found), page, span)
    write_json(data, {"began": began, **studies.read_json(data)})
    for path in (page, data):
        studies.shorten_paths(path, runs, "lra")
    for picture in DRAWN:
        draw(runs, picture)


def classification_runs(folder: Path) -> list[Run]:
    """Of classes: what self-pretraining began with has no accuracy."""
    return [run for run in find_runs(folder / "model", "lra") if "accuracy" in run.best.metrics]


def join(earlier: Arena, found: Arena) -> Arena:
    """Newly finished runs beside earlier ones: columns of one description are one, and a cell that was collected again
    replaces the earlier one.
    """
    order = [task.lower() for task in LRA_TASKS]
    tasks = {text: text.partition(":")[0] for text in (*earlier.columns.values(), *found.columns.values())}
    tasks = dict(sorted(tasks.items(), key=lambda item: order.index(item[1].partition("-")[0])))
    names = name_columns(tasks)
    cells: dict[tuple[str, str], Cell] = {}
    for arena in (earlier, found):
        for cell in arena.cells:
            name = names[arena.columns[cell.column]]
            cells[name, cell.attention] = replace(cell, column=name)
    ordered = sorted(cells.values(), key=lambda cell: list(names.values()).index(cell.column))
    return Arena({names[text]: text for text in tasks}, ordered, found.unfinished)


def draw(runs: Path, picture: str) -> None:
    """A panel for each folder."""
    panels = {
        name: [run for run in classification_runs(runs / name) if run.task == "lra/listops" and not run.settings.seed]
        for name in DRAWN[picture]
    }
    panels = {name: found for name, found in panels.items() if found}
    if panels:
        figure, axes = studies.new_figure(len(panels), 6.6 * len(panels), 5.2, grid=0.25)
        for axis, (name, found) in zip(axes, panels.items(), strict=True):
            draw_runs(axis, found)
            axis.set(title=name, xlabel="step", ylabel="validation accuracy, %")
        write_figure(RESULTS / picture, figure, dpi=110)


def draw_runs(axis: "Axes", runs: Sequence[Run]) -> None:
    """A line for each run, dashed with the convolution."""
    best_first = sorted(runs, key=lambda run: -run.best.metrics["accuracy"])
    kinds = list(dict.fromkeys(run.attention[0]["name"] for run in best_first))
    for run in best_first:
        steps = [(epoch.epoch + 1) * (run.settings.every or 1) for epoch in run.epochs]
        accuracy = [100 * epoch.metrics["accuracy"] for epoch in run.epochs]
        style = "--" if run.attention[0].get("conv_kernel_size") else "-"
        place = kinds.index(run.attention[0]["name"])
        look = {"color": f"C{place % 10}", "marker": "" if place < 10 else ".", "linewidth": 1.2}
        axis.plot(steps, accuracy, style, label=f"{attention_text(run.attention)}, {steps[-1]:,} steps", **look)
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=6, frameon=False)


if __name__ == "__main__":
    studies.run_commands(studies.command_of(Lra), collect)
