"""Training for a metric beside training by cross-entropy whose threshold and epoch the metric chooses.

`python experiments/studies/objectives.py run --data DIR [STAGE ...]`, then `collect`. DIR holds glue and, as minilm/,
the files of all-MiniLM-L6-v2 (both for the stage `pairs`). Every method has the same seeds, batches and steps.
"""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean, median, stdev, variance
from typing import Any

import torch
from torch import Tensor, nn

from nystromformer import studies
from nystromformer.files.paths import EXPERIMENTS
from nystromformer.files.writing import write_figure, write_json, write_text
from nystromformer.objectives import (
    Auroc,
    AurocSquares,
    AveragePrecision,
    FBeta,
    Objective,
    PrecisionAtRecall,
    PrecisionAtRecallFraction,
    RecallAtPrecision,
    ascend,
)
from nystromformer.runs.figures import Difference
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
COLOURS = {"cross_entropy": "C0", "eban": "C1", "dual": "C2"}
BATCH, TIMED = 64, 2000
PICTURES = {"train": 1500, "validation": 200, "test": 400}
OF_DATA: Mapping[str, tuple[str, ...]] = {
    "rare": tuple(name for name in METHODS if name != "iou"),
    "pairs": OF_PAIRS,
    "pixels": ("iou",),
}
"""The objectives that each stage trains for."""


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
        flags = ("--data", data, f"--task rare --attention softmax --epoch 4 --lr 1e-3 --batch_size {BATCH} --stratify")
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
        """What a step computes beside the model: the loss of a batch, its gradients, and the ascent of multipliers."""
        torch.manual_seed(0)
        logits, labels = torch.randn(BATCH, requires_grad=True), torch.zeros(BATCH)
        labels[:2] = 1
        losses: dict[str, nn.Module] = {"cross_entropy": nn.BCEWithLogitsLoss(), **COSTS}
        found = {name: _seconds(loss, logits, labels, 20 if self.rehearse else TIMED) for name, loss in losses.items()}
        write_json(self.out / "cost.json", found)

    def _runs(self, use: str, source: Path, script: str, *flags: object) -> list[Job]:
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
                asked = f"--objective {name} --objective_method {method} {target} --seed {SEEDS} --discard_weights"
                fewer = f"--seed {SEEDS[:3]} --train_rows 64" if self.rehearse else ""
                place = ("--model", folder, *flags, asked, "--device cpu", fewer)
                jobs.append(job(f"{use}-{folder.name}", script, *place))
        return jobs


COSTS: Mapping[str, Objective] = {
    "f_beta, dual": FBeta(0.02),
    "auroc, eban": Auroc(0.02),
    "auroc, dual": AurocSquares(0.02),
    "average_precision, eban": AveragePrecision(0.02),
    "precision_at_recall, eban": PrecisionAtRecall(TARGET, 0.02),
    "precision_at_recall, dual": PrecisionAtRecallFraction(TARGET, 0.02),
    "recall_at_precision, eban": RecallAtPrecision(TARGET, 0.02),
}


def _seconds(loss: nn.Module, logits: Tensor, labels: Tensor, times: int) -> float:
    """The median of many steps."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        loss(logits, labels).backward()
        if isinstance(loss, Objective):
            ascend(loss.dual_parameters(), rate=0.01)
        taken.append(time.perf_counter() - begin)
    return median(taken)


def gathered(runs: Path, earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of all finished runs, by stage, objective and method; of an earlier call where there are none."""
    uses: dict[str, Any] = dict(earlier.get("uses", {}))
    for use, names in OF_DATA.items():
        for name in names:
            for method in METHODS[name]:
                found = find_runs(runs / use / f"{name}-{method}" / "model", *("transactions", "glue", "lra"))
                if len(found) == SEEDS.count(",") + 1:
                    uses.setdefault(use, {}).setdefault(name, {})[method] = [figures_of(run) for run in found]
    began = [stage for stage in studies.read_stages(runs) if stage not in earlier.get("began", [])]
    cost = studies.read_json(path) if (path := runs / "cost.json").exists() else earlier.get("cost", {})
    return {"began": [*earlier.get("began", []), *began], "uses": uses, "cost": cost}


def figures_of(run: Run) -> dict[str, Any]:
    """Of test rows, where they have labels, else of validation rows; and the course of the metric."""
    lines = read_log(run.folder / "log.jsonl")
    elapsed, before, trained = 0.0, None, []
    for line in lines:
        # Not the time between a run's being stopped and its going on.
        elapsed += 0 if before is None or line["type"] == "start" else line["time"] - before
        before = line["time"]
        trained.append(elapsed)
    metrics = run.test_metrics or run.best.metrics
    return {
        "seed": run.settings.seed,
        "metrics": {name: value for name, value in metrics.items() if name != "loss"},
        "kept": run.tested_epoch,
        "course": [
            [line["step"], line[run.main_metric], seconds]
            for line, seconds in zip(lines, trained, strict=True)
            if line["type"] == "validation"
        ],
        "seconds_per_step": studies.seconds_per_step(lines),
        "rows": {"test": run.tested_rows(run.main_metric)}
        if run.test_metrics
        else {"validation": run.rows["validation"]},
    }


def compared(ours: Iterable[Mapping[str, Any]], others: Iterable[Mapping[str, Any]], name: str) -> Difference:
    """The mean difference of runs with the same seeds."""
    by_seed = {run["seed"]: run["metrics"][name] for run in others}
    differences = [run["metrics"][name] - by_seed[run["seed"]] for run in ours if run["seed"] in by_seed]
    freedom = len(differences) - 1
    return Difference.of(fmean(differences), 0.0, variance(differences) / len(differences), freedom)


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
                    cells = [f"{100 * one.value:+.1f} ± {100 * one.half:.1f}", f"{100 * one.smallest:.1f}"]
                spread = f"{fmean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"
                kept = " ".join(str(1 + run["kept"]) for run in found)
                lines.append([f"`{name}`", method, spread, *cells, kept])
        if lines:
            rows = next(iter(next(iter(data["uses"][use].values())).values()))[0]["rows"]
            heading = ["objective", "method", "metric, %", "to cross_entropy, points", "would have been seen", "kept"]
            shown = ", ".join(f"{count:,} of {split}" for split, count in rows.items())
            parts += [f"## {title}", f"Scored on {shown}.", markdown(heading, lines)]
    if cost := data["cost"]:
        step = median(run["seconds_per_step"] for run in data["uses"]["rare"]["f_beta"]["cross_entropy"])
        usual = cost["cross_entropy"]
        lines = [[name, f"{1000 * took:.2f}", f"{1 + (took - usual) / step:.3f}"] for name, took in cost.items()]
        text = (
            f"Of a batch of {BATCH}: milliseconds for the loss, its gradients with respect to the logits and the "
            f"multipliers' ascent, and what a step of the runs on the clients ({1000 * step:.0f} ms by cross-entropy) "
            "takes with them, relative to cross-entropy."
        )
        parts += ["## Cost", text, markdown(["loss", "ms", "a step"], lines)]
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
                style = {"color": COLOURS[method], "label": method, "marker": "o", "markersize": 3}
                axis.plot([place / size for place in places], means, **style)
            axis.set(title=name, xlabel=unit, ylabel="on validation rows")
            axis.legend(fontsize=8)
        write_figure(RESULTS / f"curves-{use}{ending}.png", figure, dpi=100)


if __name__ == "__main__":
    studies.run_commands(studies.command_of(Objectives), collect)
