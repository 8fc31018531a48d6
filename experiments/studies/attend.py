"""Small encoders that attend, from initial weights, and attentions in the place of a trained softmax.

`python experiments/studies/attend.py run --data DIR [STAGE ...]`, then `collect`. DIR holds wiki and bookcorpus as they
are downloaded. What an earlier `collect` gathered stays until a run of the same name takes its place.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nystromformer import studies
from nystromformer.files.writing import write_json, write_text
from nystromformer.report.curves import Curve, draw_curves, read_curve
from nystromformer.studies import Job, Stages, job
from nystromformer.tables import markdown

RESULTS = studies.RESULTS / "attend"
LENGTH, TOKENS = 256, 8192
"""Of a row, and of a step."""
STEPS, LONG_STEPS = 1000, 2000
SOURCE = "softmax-source"
"""The softmax encoder that other attentions are put into; it is trained for more steps."""
CONV = {"conv_kernel_size": 33}
NYSTROM = {"attn_type": "nystrom", "num_landmarks": LENGTH // 8}
NEAR_FAR = {"attn_type": {"name": "near_far", "block_size": 16, "num_landmarks": 32, "num_selected": 16}}
LOCAL = {"attn_type": {"name": "local", "block_size": 16}}
INITIAL: Mapping[str, Mapping[str, Any]] = {
    "softmax-noconv": {"attn_type": "softmax"},
    "nystrom-noconv": NYSTROM,
    "near_far-noconv": NEAR_FAR,
    "local-noconv": LOCAL,
    "softmax-conv": {"attn_type": "softmax", **CONV},
    "nystrom-conv": NYSTROM | CONV,
    "nystrom-1-conv": {"attn_type": "nystrom", "num_landmarks": 1, **CONV},
    "near_far-conv": NEAR_FAR | CONV,
    "local-conv": LOCAL | CONV,
}
"""What differs between the encoders. A single landmark shows what the convolution does alone."""
PUT_IN = (
    "near_far,block_size=16,num_landmarks=32",
    "near_far,block_size=16,num_landmarks=32,num_selected=0",
    "near_far,block_size=16,num_landmarks=32,num_blocks=2",
    "nystrom,num_landmarks=32",
    "nystrom,num_landmarks=64",
    "local,block_size=16",
    "mra,block_size=16",
    "linear",
)
"""In the place of a trained softmax."""


class Attend(Stages):
    """The runs."""

    study = "attend"
    needs = "wiki and bookcorpus"

    def prepared(self) -> None:
        """All of Wikipedia and the books, a tokenizer of 8,192 tokens, and rows of 256."""
        studies.make_rows(self, LENGTH)

    def put_in(self) -> None:
        """A softmax encoder of more steps, and other attentions in its place, untrained."""
        self.run([self._pretraining(SOURCE, LONG_STEPS, INITIAL["softmax-noconv"])])
        out = self.out / "put-in"
        place = ("--model", self.out / SOURCE, "--dataset", self.out / "rows", "--out", out)
        flags = "--parts loss --score_rows 1024 --adapt 0 --landmarks 32 --repeats 1 --threads 1 "
        flags += " ".join(f"--attention {each}" for each in PUT_IN)
        result = out / "approximation.json"
        self.run([job("put-in", "code/run_benchmark.py", "approximation", *place, flags, result=result)])

    def initial(self) -> None:
        """Encoders that begin with initial weights."""
        self.run(self._pretraining(name, STEPS, network) for name, network in INITIAL.items())

    def _pretraining(self, name: str, steps: int, network: Mapping[str, Any]) -> Job:
        """Of an encoder with rotary positions and without dropout."""
        steps = 8 if self.rehearse else steps
        own = {"num_landmarks": None, "conv_kernel_size": None, **network}
        setting = {
            "batch_size": TOKENS // LENGTH,
            "learning_rate": 2e-3,
            "epoch": 4,
            "batches_per_epoch": steps // 4,
            "batches_per_report": max(1, steps // 40),
            "validate_batches_per_epoch": 200_000 // TOKENS,
        }
        folder = studies.write_experiment(
            self.out / name,
            "nystrom-tiny-conv",
            {"max_seq_len": LENGTH, "dropout_prob": 0.0, "positions": "rotary", **own},
            setting,
            gpu_setting={"inst_per_gpu": TOKENS // LENGTH},
        )
        return job(name, "code/run_pretrain.py", "--model", folder, "--dataset", self.out / "rows")


def validations(run: Curve) -> dict[str, dict[str, float]]:
    """By step: accuracy in percent, and loss."""
    steps, accuracies = run.series("validation", "mlm_accuracy")
    _, losses = run.series("validation", "loss")
    rows = zip(steps, accuracies, losses, strict=True)
    return {str(step): {"mlm_accuracy": accuracy, "loss": loss} for step, accuracy, loss in rows}


def collect(runs: Path = Path("runs/attend")) -> None:
    """Write attend.json, attend.md, curves.png, and the tables of the stage `put_in`."""
    data = studies.read_json(RESULTS / "attend.json")
    if found := [read_curve(log.parents[1]) for log in sorted(runs.glob("*/model/log.jsonl"))]:
        data["began"] += [stage for stage in studies.read_stages(runs) if stage not in data["began"]]
        data["encoders"] |= {run.name: validations(run) for run in found}
        draw_curves([run for run in found if run.name != SOURCE], RESULTS / "curves.png")
    write_json(RESULTS / "attend.json", data)
    encoders = data["encoders"]
    steps = sorted({int(step) for one in encoders.values() for step in one})
    lines = [
        [name, *(f"{one[str(step)]['mlm_accuracy']:.1f}" if str(step) in one else "" for step in steps)]
        for name, one in sorted(encoders.items())
    ]
    machines = studies.describe_machines(data["began"], ("date", "commit", "processor", "torch"))
    command = "`python experiments/studies/attend.py run --data DIR`, `python experiments/studies/attend.py collect`"
    studies.write_page(
        RESULTS / "attend.md",
        "# Small encoders that attend",
        "4 layers of width 128, 2 heads, rows of 256 tokens, rotary positions, no dropout, learning rate 2e-3, 8,192 "
        f"tokens a step, one seed. Masked-token accuracy on validation rows in % after so many steps. "
        f"{SOURCE}: softmax without the convolution, for 2,000 steps.",
        markdown(["encoder", *map(str, steps)], lines),
        f"{machines}. {command}",
    )
    for name in ("approximation.json", "approximation.md"):
        if (runs / "put-in" / name).exists():
            write_text(RESULTS / name, (runs / "put-in" / name).read_text(encoding="utf-8"))
            studies.shorten_paths(RESULTS / name, runs, "attend")


if __name__ == "__main__":
    studies.run_commands(studies.command_of(Attend), collect)
