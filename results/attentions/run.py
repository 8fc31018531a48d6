"""Pretrains an encoder of the demo's size with every attention, with the convolution and without, and compares them.

Run it at the top of a clone, in its environment: `python results/attentions/run.py --data DIR`. DIR holds wiki and
bookcorpus as they are downloaded; --out, by default runs/attentions, takes the runs, and this folder the table, the
figures and the picture. Started again, it goes on where it was stopped. 600 steps of 8 rows of 256 tokens say which
attention learns fast at this size, and nothing of what it reaches in the end.
"""

import argparse
import json
import logging
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nystromformer.config import attention_config
from nystromformer.files import write_figure, write_json, write_text
from nystromformer.machine import machine_facts
from nystromformer.paths import EXPERIMENTS
from nystromformer.runs.figures import Spread
from nystromformer.side_by_side import Job, Runner, job
from nystromformer.tables import markdown
from nystromformer.training.log import read_log

HERE = Path(__file__).resolve().parent
EPOCHS, STEPS = 6, 100
SEEDS = (0, 1, 2)
TAPS = 33
SCORED = 2048
"""Validation rows: some 75,000 masked tokens."""
KINDS: dict[str, dict[str, Any]] = {
    "softmax": {"name": "softmax"},
    "nystrom": {"name": "nystrom", "num_landmarks": 32},
    "nystrom, strided": {"name": "nystrom", "num_landmarks": 32, "landmarks": "strided"},
    "nystrom, k-means": {"name": "nystrom", "num_landmarks": 32, "landmarks": "kmeans"},
    "linear": {"name": "linear"},
    "performer": {"name": "performer", "num_features": 32},
    "linformer": {"name": "linformer", "projected_length": 32},
    "conv_linformer": {"name": "conv_linformer", "stride": 8},
    "local": {"name": "local", "block_size": 32},
    "longformer": {"name": "longformer", "window": 32},
    "bigbird": {"name": "bigbird", "block_size": 8, "num_global_blocks": 1},
    "sparse, strided": {"name": "sparse", "stride": 16},
    "sparse, fixed": {"name": "sparse", "pattern": "fixed", "stride": 16},
    "reformer": {"name": "reformer", "chunk_length": 32},
    "sinkhorn": {"name": "sinkhorn", "block_size": 32},
    "synthesizer, dense": {"name": "synthesizer"},
    "synthesizer, random": {"name": "synthesizer", "kind": "random"},
}
"""What is compared: where a method has a width that may be chosen, 32 of the 256 tokens."""


@dataclass(frozen=True)
class Trained:
    """One encoder."""

    kind: str
    convolved: bool
    seed: int
    out: Path

    @property
    def name(self) -> str:
        kind = self.kind.replace(", ", "-").replace("-means", "means")
        return f"{kind}-{'conv' if self.convolved else 'noconv'}-{self.seed}"

    @property
    def folder(self) -> Path:
        return self.out / self.name

    @property
    def attention(self) -> dict[str, Any]:
        return KINDS[self.kind] | ({"conv_kernel_size": TAPS} if self.convolved else {})

    def training(self, rows: Path, steps: int) -> Job:
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(EXPERIMENTS / "softmax-demo-noconv" / "config.json", self.folder / "config.json")
        settings = {
            "pretraining_setting.epoch": EPOCHS,
            "pretraining_setting.batches_per_epoch": steps,
            "pretraining_setting.seed": self.seed,
        }
        return job(f"pretrain-{self.name}", "code/run_pretrain.py", *self._place(rows), *_set(settings))

    def scoring(self, rows: Path) -> Job:
        flags = ("--checkpoint", EPOCHS - 1, "--rows", SCORED, "--baselines")
        return job(f"validate-{self.name}", "code/run_validation.py", *self._place(rows), *flags)

    def _place(self, rows: Path) -> tuple[object, ...]:
        # config.json is softmax's: without the attention its weights would be read as softmax's, where they fit.
        return ("--model", self.folder, "--dataset", rows, *_set({"model.attn_type": json.dumps(self.attention)}))

    @property
    def score(self) -> dict[str, Any] | None:
        """On validation rows, with the guessers' baselines; None before it was scored."""
        path = self.folder / "model" / "validation.json"
        return json.loads(path.read_text()) if path.is_file() else None


def _set(settings: dict[str, Any]) -> list[str]:
    return [f"--set {shlex.quote(f'{key}={value}')}" for key, value in settings.items()]


def all_of(out: Path) -> Iterator[Trained]:
    """Seed after seed, so that what is there early compares everything."""
    for seed in SEEDS:
        for kind in KINDS:
            for convolved in (False, True):
                yield Trained(kind, convolved, seed, out)


def rows_of_text(data: Path, out: Path, run: Runner) -> Path:
    """Wikipedia and the books in rows of 256 tokens, of a vocabulary of 4,096."""
    corpora, rows = out / "corpora", out / "rows"
    run([
        job(name, f"data-preprocessing/{name}/preprocess.py", "--source", data / name,
            "--out", corpora / name / "unified")
        for name in ("wiki", "bookcorpus")
    ])  # fmt: skip
    run([
        job("rows", "data-preprocessing/preprocess_data_512.py", "--corpora", corpora, "--length 256",
            "--corpus wiki --corpus bookcorpus --tokenizer train --vocab_size 4096 --validation 0.1", "--out", rows)
    ])  # fmt: skip
    return rows


def collect(out: Path) -> None:
    """`attentions.json`, `attentions.md` and `curves.png` of what was scored."""
    found = [(one, one.score) for one in all_of(out)]
    rows = [
        {"kind": one.kind, "attention": attention_config(**one.attention).model_dump(), "conv": one.convolved}
        | {"seed": one.seed, **score["scores"][-1], "rows": score["rows"], "baselines": score["baselines"]}
        for one, score in found
        if score is not None
    ]
    if not rows:
        sys.exit(f"{out}: nothing was scored yet")
    write_json(HERE / "attentions.json", {"began": _began(out), "steps": EPOCHS * STEPS, "rows": rows})
    write_text(HERE / "attentions.md", _table(rows))
    _draw([one for one, score in found if score is not None], HERE / "curves.png")


def _table(rows: list[dict[str, Any]]) -> str:
    def cell(kind: str, convolved: bool, key: str, factor: float) -> str:
        values = [factor * row[key] for row in rows if (row["kind"], row["conv"]) == (kind, convolved)]
        if not values:
            return "not run"
        spread = Spread.of(values)
        return f"{spread.mean:.2f}" + ("" if spread.deviation is None else f" ± {spread.deviation:.2f}")

    def seeds(kind: str) -> str:
        counts = [sum((row["kind"], row["conv"]) == (kind, convolved) for row in rows) for convolved in (False, True)]
        return " and ".join(dict.fromkeys(map(str, counts)))

    header = ["attention", "loss", "loss, convolution", "masked tokens right, %", "right, convolution, %", "seeds"]
    columns = [(c, key, factor) for key, factor in (("loss", 1), ("mlm_accuracy", 100)) for c in (False, True)]
    lines = [[kind, *(cell(kind, *column) for column in columns), seeds(kind)] for kind in KINDS]
    baselines = ", ".join(f"{name} {100 * value:.2f} %" for name, value in rows[0]["baselines"].items())
    steps = f"{EPOCHS * STEPS} steps of 8 rows of 256 tokens, {SCORED:,} validation rows"
    note = f"{steps}; mean ± standard deviation where there are several seeds."
    return f"{markdown(header, lines)}\n\n{note} Without a network: {baselines}.\n"


def _draw(runs: list[Trained], path: Path) -> None:
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, convolved in zip(axes, (False, True), strict=True):
        for place, kind in enumerate(KINDS):
            own = [
                read_log(run.folder / "model" / "log.jsonl")
                for run in runs
                if (run.kind, run.convolved) == (kind, convolved)
            ]
            points: dict[int, list[float]] = {}
            for record in (record for log in own for record in log if record["type"] == "validation"):
                points.setdefault(record["step"], []).append(record["loss"])
            means = [sum(values) / len(values) for values in points.values()]
            look = {"color": f"C{place % 10}", "linestyle": "-" if place < 10 else "--", "linewidth": 1.2}
            axis.plot(list(points), means, marker="o", markersize=3, label=kind, **look)
        axis.set(xlabel="steps", title="with the convolution" if convolved else "without the convolution")
        axis.grid(alpha=0.2)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("loss on validation rows, mean over seeds")
    axes[1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8, frameon=False)
    write_figure(path, figure, dpi=120)


def _began(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "began.jsonl").read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, help="folder with wiki and bookcorpus; without it only what is there is told"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/attentions"), help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once; default: %(default)s")
    parser.add_argument("--steps", type=int, default=STEPS, help="of an epoch, to rehearse; default: %(default)s")
    flags = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    out = flags.out.resolve()
    if flags.data is None:
        collect(out)
        return
    out.mkdir(parents=True, exist_ok=True)
    with (out / "began.jsonl").open("a") as file:
        file.write(json.dumps(machine_facts()) + "\n")
    run = Runner(out, flags.jobs)
    rows = rows_of_text(flags.data.resolve(), out, run)
    for seed in SEEDS:
        runs = [one for one in all_of(out) if one.seed == seed]
        run([one.training(rows, flags.steps) for one in runs])
        run([one.scoring(rows) for one in runs])
        collect(out)


if __name__ == "__main__":
    main()
