"""Training for a metric beside training by cross-entropy whose threshold and epoch the metric chooses.

`python experiments/studies/objectives.py run --data DIR [STAGE ...]`, then `collect`. DIR holds glue and, as minilm/,
the files of all-MiniLM-L6-v2 (both for the stage `pairs`). Every method has the same seeds, batches and steps.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from nystromformer import studies
from nystromformer.files.paths import EXPERIMENTS
from nystromformer.files.writing import write_figure, write_json, write_text
from nystromformer.runs.objective import METHODS, WITH_TARGET
from nystromformer.runs.record import Run, find_runs
from nystromformer.studies import Job, Stages, job
from nystromformer.tables import markdown
from nystromformer.tasks.transactions.generator import World, draw_clients
from nystromformer.training.log import read_log

RESULTS = studies.RESULTS / "objectives"
SEEDS = "0,1,2,3,4"
CLIENTS, LENGTH, INTERCEPT = 20_000, 60, -7.2
"""Clients who are drawn, their events in the mean, and the constant of the log-odds by which 2 % default."""
TARGET = 0.5
OF_PAIRS = ("f_beta", "average_precision")
COST_STEPS = 100
PICTURES = {"train": 1500, "validation": 200, "test": 400}
OF_DATA: Mapping[str, tuple[str, ...]] = {
    "rare": tuple(name for name in METHODS if name != "iou"),
    "pairs": OF_PAIRS,
    "pixels": ("iou",),
    "cost": tuple(name for name in METHODS if name != "iou"),
}
"""The objectives that each stage trains for."""
QUANTILE, POWER = 2.776, 0.941
"""Of Student's t with four degrees of freedom, at 97.5 and at 80 %."""


class Objectives(Stages):
    """The runs."""

    study = "objectives"
    needs = "glue and minilm"

    def rare(self) -> None:
        """Clients of whom 2 % default: all objectives, an encoder with softmax attention."""
        tables, data = self.out / "tables", self.out / "clients"
        if not (tables / "clients.csv").exists():
            world = World(mean_length=LENGTH, most_events=4 * LENGTH, intercept=INTERCEPT)
            draw_clients(world, 2000 if self.rehearse else CLIENTS, 0, tables)
        named = "--client client --time time --target default --date date --truth truth"
        place = ("long --events", tables / "events", "--clients", tables / "clients.csv", named, "--out", data)
        self.run([job("prepare", "experiments/transactions/prepare.py", *place, result=data / "manifest.json")])
        flags = ("--data", data, "--task rare --attention softmax --epoch 4 --lr 1e-3 --batch_size 64 --stratify")
        lengths = "--set model.max_seq_len=128"
        source = EXPERIMENTS / "transactions" / "encoder"
        self.run(self._runs("rare", source, "code/run_transactions.py", *flags, lengths))

    def pairs(self) -> None:
        """MRPC, all-MiniLM-L6-v2, two objectives; two thirds of its pairs are positive."""
        model = self.out / "softmax"
        place = ("import", self.data / "minilm", model, "--attention softmax")
        self.run([job("import", "code/run_export.py", *place, result=model / "config.json")])
        flags = ("--glue", self.data / "glue", "--task MRPC --train_rows 1500 --epoch 2 --lr 5e-5 --batch_size 16")
        self.run(self._runs("pairs", model, "code/run_glue.py", *flags, "--stratify --set model.pooling=mean"))

    def pixels(self) -> None:
        """The pixels of the marked path: IoU."""
        data = self.out / "pixels"
        sizes = {split: 20 if self.rehearse else count for split, count in PICTURES.items()}
        counts = " ".join(f"--{split} {count}" for split, count in sizes.items())
        place = (f"pathfinder_path --contour 9 --no_distractors {counts} --out", data)
        self.run([job("pictures", "experiments/lra/prepare.py", *place, result=data / "manifest.json")])
        steps = "--steps 4 --every 2" if self.rehearse else "--steps 400 --every 100"
        flags = ("--task pathfinder_path --data", data, f"{steps} --batch_size 16 --lr 2e-3 --warmup 0.1")
        attention = "--attention near_far --conv 0 --set model.positions=rotary --set model.position_offset=2"
        source = EXPERIMENTS / "lra" / "pathfinder_path"
        self.run(self._runs("pixels", source, "code/run_lra.py", *flags, attention, "--baselines"))

    def cost(self) -> None:
        """A hundred steps of each method on the clients, one after another; nothing else should run beside it."""
        data, source = self.out / "clients", EXPERIMENTS / "transactions" / "encoder"
        flags = ("--data", data, "--task rare --attention softmax --epoch 1 --lr 1e-3 --batch_size 64 --stratify")
        fewer = f"--train_rows {64 if self.rehearse else 64 * COST_STEPS} --set model.max_seq_len=128"
        for each in self._runs("cost", source, "code/run_transactions.py", *flags, fewer, seeds="0"):
            self.run([each])

    def _runs(self, use: str, source: Path, script: str, *flags: object, seeds: str = SEEDS) -> list[Job]:
        """Every method of every objective, in a folder of its own."""
        jobs = []
        for name in OF_DATA[use]:
            for method in METHODS[name]:
                folder = self.out / use / f"{name}-{method}"
                if (source / "model").exists():
                    studies.copy_experiment(source, 0, folder)
                elif not folder.exists():
                    write_text(folder / "config.json", (source / "config.json").read_text(encoding="utf-8"))
                target = f"--target {TARGET}" if name in WITH_TARGET else ""
                asked = f"--objective {name} --objective_method {method} {target} --seed {seeds} --discard_weights"
                fewer = f"--seed {seeds[:3]} --train_rows 64" if self.rehearse else ""
                place = ("--model", folder, *flags, asked, "--device cpu", fewer)
                jobs.append(job(f"{use}-{folder.name}", script, *place))
        return jobs


def gathered(runs: Path, earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of all finished runs, by stage, objective and method; of an earlier call where there are none."""
    uses: dict[str, Any] = dict(earlier.get("uses", {}))
    for use, names in OF_DATA.items():
        for name in names:
            for method in METHODS[name]:
                found = find_runs(runs / use / f"{name}-{method}" / "model", *("transactions", "glue", "lra"))
                if len(found) == (1 if use == "cost" else SEEDS.count(",") + 1):
                    uses.setdefault(use, {}).setdefault(name, {})[method] = [figures_of(run) for run in found]
    began = [stage for stage in studies.read_stages(runs) if stage not in earlier.get("began", [])]
    return {"began": [*earlier.get("began", []), *began], "uses": uses}


def figures_of(run: Run) -> dict[str, Any]:
    """Of test rows, where they have labels, else of validation rows; and the course of the metric."""
    lines = read_log(run.folder / "log.jsonl")
    speeds = [line["tokens_per_second"] for line in lines if line["type"] == "train"]
    began = lines[0]["time"]
    metrics = run.test_metrics or run.best.metrics
    return {
        "seed": run.settings.seed,
        "metrics": {name: value for name, value in metrics.items() if name != "loss"},
        "kept": run.tested_epoch,
        "course": [
            [line["step"], line[run.main_metric], line["time"] - began]
            for line in lines
            if line["type"] == "validation"
        ],
        "tokens_per_second": median(speeds[1:] or speeds),
        "rows": dict(run.test_rows or run.rows),
    }


def compared(ours: Iterable[Mapping[str, Any]], others: Iterable[Mapping[str, Any]], name: str) -> dict[str, float]:
    """The mean difference of runs with the same seeds, half of its 95 % interval, and what would have been seen."""
    by_seed = {run["seed"]: run["metrics"][name] for run in others}
    differences = [run["metrics"][name] - by_seed[run["seed"]] for run in ours if run["seed"] in by_seed]
    error = stdev(differences) / len(differences) ** 0.5
    return {"difference": fmean(differences), "half": QUANTILE * error, "least": (QUANTILE + POWER) * error}


def collect(runs: Path = Path("runs/objectives")) -> None:
    """Write objectives.json, objectives.md and a picture of each stage."""
    path = RESULTS / "objectives.json"
    data = gathered(runs, studies.read_json(path) if path.exists() else {})
    write_json(path, data)
    parts: list[str] = []
    for use, title in (("rare", "2 % of clients default"), ("pairs", "MRPC"), ("pixels", "Pixels of a path")):
        lines = []
        for name, methods in data["uses"].get(use, {}).items():
            usual = methods.get("cross_entropy")
            for method, found in methods.items():
                values = [100 * run["metrics"][name] for run in found]
                cells = ["", ""]
                if usual is not None and method != "cross_entropy" and len(found) > 1:
                    one = compared(found, usual, name)
                    cells = [f"{100 * one['difference']:+.1f} ± {100 * one['half']:.1f}", f"{100 * one['least']:.1f}"]
                spread = f"{fmean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"
                kept = " ".join(str(1 + run["kept"]) for run in found)
                lines.append([f"`{name}`", method, spread, *cells, kept])
        if lines:
            rows = next(iter(next(iter(data["uses"][use].values())).values()))[0]["rows"]
            heading = ["objective", "method", "metric, %", "to cross_entropy, points", "would have been seen", "kept"]
            shown = ", ".join(f"{count:,} of {split}" for split, count in rows.items())
            parts += [f"## {title}", f"Scored on {shown}.", markdown(heading, lines)]
    if cost := data["uses"].get("cost"):
        pairs = [(name, method, found[0]) for name, methods in cost.items() for method, found in methods.items()]
        speeds = {(name, method): run["tokens_per_second"] for name, method, run in pairs}
        usual = median(speed for (_, method), speed in speeds.items() if method == "cross_entropy")
        lines = [[f"`{name}`", method, f"{usual / speed:.2f}"] for (name, method), speed in speeds.items()]
        text = f"Time of a step on the clients, to the median of {COST_STEPS} steps of the runs by cross-entropy."
        parts += ["## Cost", text, markdown(["objective", "method", "time"], lines)]
    studies.write_page(
        RESULTS / "objectives.md",
        "# Training for a metric",
        "Five seeds. `cross_entropy`: trained by it, the threshold and the epoch chosen by the metric on validation "
        "rows, as in all others. Differences are paired by seed, with their 95 % intervals; `would have been seen`: "
        "the smallest difference that such a table shows in four of five repetitions; `kept`: the validation whose "
        "weights are scored, of each seed: the best one on validation rows that keeps the constraint.",
        *parts,
        f"{studies.describe_machines(data['began'])}. `python experiments/studies/objectives.py run --data DIR`, "
        "`python experiments/studies/objectives.py collect`",
    )
    for use, names in data["uses"].items():
        if use != "cost":
            draw(use, names)


def draw(use: str, names: Mapping[str, Any]) -> None:
    """The validation metric over steps and over minutes, the mean over seeds, a panel for each objective."""
    for ending, unit, at, size in (("", "step", 0, 1), ("-time", "minutes", 2, 60)):
        figure, axes = studies.new_figure(len(names), 3.2 * len(names) + 1, 3.2)
        for axis, (name, methods) in zip(axes, names.items(), strict=True):
            for method, found in methods.items():
                points = [
                    [fmean(run["course"][number][column] for run in found) for column in (at, 1)]
                    for number in range(len(found[0]["course"]))
                ]
                places, means = zip(*points, strict=True)
                axis.plot([place / size for place in places], means, marker="o", markersize=3, label=method)
            axis.set(title=name, xlabel=unit, ylabel="on validation rows")
            axis.legend(fontsize=8)
        write_figure(RESULTS / f"curves-{use}{ending}.png", figure, dpi=100)


if __name__ == "__main__":
    studies.run_commands(studies.command_of(Objectives), collect)
