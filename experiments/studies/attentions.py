"""Encoders of the demo's size, pretrained with every attention, with the convolution and without.

`python experiments/studies/attentions.py run --data DIR [STAGE ...]`, then `collect`. DIR holds wiki and bookcorpus as
they are downloaded. 600 steps of 8 rows of 256 tokens say which attention learns fast at this size, and nothing of what
it reaches in the end.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nystromformer import studies
from nystromformer.config import attention_config
from nystromformer.files.writing import write_figure, write_json
from nystromformer.report.curves import read_curve
from nystromformer.runs.figures import Spread
from nystromformer.studies import Job, Stages, job
from nystromformer.tables import markdown

RESULTS = studies.RESULTS / "attentions"
EPOCHS, STEPS = 6, 100
SEEDS = (0, 1, 2)
TAPS = 33
VALIDATED = 2048
"""Rows: some 75,000 masked tokens."""
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
class Encoder:
    """One of them."""

    kind: str
    convolved: bool
    seed: int

    @property
    def name(self) -> str:
        kind = self.kind.replace(", ", "-").replace("-means", "means")
        return f"{kind}-{'conv' if self.convolved else 'noconv'}-{self.seed}"

    @property
    def attention(self) -> dict[str, Any]:
        return KINDS[self.kind] | ({"conv_kernel_size": TAPS} if self.convolved else {})


def encoders(seed: int) -> list[Encoder]:
    """All with this seed."""
    return [Encoder(kind, convolved, seed) for kind in KINDS for convolved in (False, True)]


class Attentions(Stages):
    """The runs."""

    study = "attentions"
    needs = "wiki and bookcorpus"

    def rows(self) -> None:
        """Wikipedia and the books in rows of 256 tokens, of a vocabulary of 4,096."""
        studies.make_rows(self, 256, 4096)

    def pretrain(self) -> None:
        """Seed after seed, so that what is there early compares everything."""
        for seed in SEEDS:
            self.run(self._training(one) for one in encoders(seed))
            self.run(self._validation(one) for one in encoders(seed))

    def _training(self, one: Encoder) -> Job:
        studies.write_experiment(self.out / one.name, "softmax-demo-noconv", {"positions": None})
        settings = {"epoch": EPOCHS, "batches_per_epoch": 2 if self.rehearse else STEPS, "seed": one.seed}
        flags = " ".join(f"--set pretraining_setting.{key}={value}" for key, value in settings.items())
        return job(f"pretrain-{one.name}", "code/run_pretrain.py", *self._place(one), flags)

    def _validation(self, one: Encoder) -> Job:
        flags = f"--checkpoint {EPOCHS - 1} --rows {VALIDATED} --baselines"
        return job(f"validate-{one.name}", "code/run_validation.py", *self._place(one), flags)

    def _place(self, one: Encoder) -> tuple[object, ...]:
        # config.json is softmax's: without the attention its weights would be read as softmax's, where they fit.
        attention = shlex.quote(f"model.attn_type={json.dumps(one.attention)}")
        return ("--model", self.out / one.name, "--dataset", self.out / "rows", f"--set {attention}")


def collect(runs: Path = Path("runs/attentions")) -> None:
    """Write attentions.json, attentions.md and curves.png."""
    found = [
        one for seed in SEEDS for one in encoders(seed) if (runs / one.name / "model" / "validation.json").is_file()
    ]
    if found:
        rows = [_read(one, runs) for one in found]
        data = {"began": studies.read_stages(runs), "steps": EPOCHS * STEPS, "rows": rows}
        write_json(RESULTS / "attentions.json", data)
        _draw(found, runs, RESULTS / "curves.png")
    rows = studies.read_json(RESULTS / "attentions.json")["rows"]
    baselines = ", ".join(f"{name} {100 * value:.2f} %" for name, value in rows[0]["baselines"].items())
    steps = f"{EPOCHS * STEPS} steps of 8 rows of 256 tokens, {VALIDATED:,} validation rows"
    note = f"{steps}; mean ± standard deviation where there are several seeds. Without a network: {baselines}."
    studies.write_page(RESULTS / "attentions.md", _table(rows), note)


def _read(one: Encoder, runs: Path) -> dict[str, Any]:
    scores = studies.read_json(runs / one.name / "model" / "validation.json")
    attention = attention_config(**one.attention).model_dump()
    facts = {"kind": one.kind, "attention": attention, "conv": one.convolved, "seed": one.seed}
    return facts | scores["scores"][-1] | {"rows": scores["rows"], "baselines": scores["baselines"]}


def _table(rows: Sequence[dict[str, Any]]) -> str:
    groups: dict[tuple[str, bool], list[dict[str, Any]]] = {
        (kind, conv): [] for kind in KINDS for conv in (False, True)
    }
    for row in rows:
        groups[row["kind"], row["conv"]].append(row)

    def cell(kind: str, conv: bool, key: str, factor: float) -> str:
        if not groups[kind, conv]:
            return "not run"
        spread = Spread.of([factor * row[key] for row in groups[kind, conv]])
        return f"{spread.mean:.2f}" + ("" if spread.deviation is None else f" ± {spread.deviation:.2f}")

    header = ["attention", "loss", "loss, convolution", "masked tokens right, %", "right, convolution, %", "seeds"]
    columns = [(conv, key, factor) for key, factor in (("loss", 1), ("mlm_accuracy", 100)) for conv in (False, True)]
    lines = []
    for kind in KINDS:
        seeds = dict.fromkeys(str(len(groups[kind, conv])) for conv in (False, True))
        lines.append([kind, *(cell(kind, *column) for column in columns), " and ".join(seeds)])
    return markdown(header, lines)


def _draw(found: Sequence[Encoder], runs: Path, path: Path) -> None:
    figure, axes = studies.new_figure(2, 11, 4.6, sharey=True)
    for axis, convolved in zip(axes, (False, True), strict=True):
        for place, kind in enumerate(KINDS):
            own = [one for one in found if (one.kind, one.convolved) == (kind, convolved)]
            curves = [read_curve(runs / one.name).series("validation", "loss") for one in own]
            steps, means = (np.mean(values, axis=0) for values in zip(*curves, strict=True)) if curves else ([], [])
            look = {"color": f"C{place % 10}", "linestyle": "-" if place < 10 else "--", "linewidth": 1.2}
            axis.plot(steps, means, marker="o", markersize=3, label=kind, **look)
        axis.set(xlabel="steps", title="with the convolution" if convolved else "without the convolution")
    axes[0].set_ylabel("loss on validation rows, mean over seeds")
    axes[1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8, frameon=False)
    write_figure(path, figure, dpi=120)


if __name__ == "__main__":
    studies.run_commands(studies.command_of(Attentions), collect)
