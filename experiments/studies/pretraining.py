"""Small encoders with each attention, pretrained by the recipe of modern-tiny on rows of 512 tokens.

`python experiments/studies/pretraining.py run --data DIR [STAGE ...]`, then `collect`. DIR holds wiki and bookcorpus as
they are downloaded. What an earlier `collect` gathered stays until a run of the same name takes its place.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from nystromformer import studies
from nystromformer.files.writing import write_json
from nystromformer.report.curves import draw_curves, read_curve
from nystromformer.runs.figures import Difference, Spread, pooled_variance, standard_error
from nystromformer.studies import Job, Stages, job
from nystromformer.tables import markdown
from nystromformer.tasks.pretraining.validation import read_validation

RESULTS = studies.RESULTS / "pretraining"
LENGTH, ROWS = 512, 16
"""Tokens of a row, rows of a step."""
STEPS, EPOCHS = 1000, 4
GROWING = 0.2
"""The share of a run's tokens over which its batches grow, as in modern-tiny's own run."""
VALIDATED = 800
"""Rows."""
ATTENTIONS: Mapping[str, Mapping[str, Any]] = {
    "softmax": {"attn_type": "softmax"},
    "near_far": {"attn_type": {"name": "near_far", "block_size": 32, "num_landmarks": 64, "num_selected": 16}},
    "local": {"attn_type": {"name": "local", "block_size": 32}},
    "nystrom": {"attn_type": "nystrom", "num_landmarks": LENGTH // 8},
    "linear": {"attn_type": "linear"},
}
CONV = 33
ENCODERS: Mapping[str, Mapping[str, Any]] = {
    **{f"{name}-noconv": keys for name, keys in ATTENTIONS.items()},
    **{f"{name}-conv": {**keys, "conv_kernel_size": CONV} for name, keys in ATTENTIONS.items()},
    # What the convolution does alone.
    "nystrom-1-conv": {"attn_type": "nystrom", "num_landmarks": 1, "conv_kernel_size": CONV},
}
ENDINGS = ("-noconv", "-conv")
SEVERAL = ("softmax-noconv", "nystrom-noconv", "near_far-noconv", "softmax-conv", "nystrom-conv", "near_far-conv")
"""Of three seeds."""
SEEDS = (1, 2)
"""Beside 0."""
SPANNED = ("softmax-noconv", "near_far-noconv", "nystrom-noconv", "softmax-conv", "nystrom-conv")
PUT_IN = (
    "near_far,block_size=32,num_landmarks=64",
    "near_far,block_size=32,num_landmarks=64,num_blocks=2",
    "mra",
    "local,block_size=32",
    "local,block_size=64",
    "nystrom,num_landmarks=64",
    "nystrom,num_landmarks=128",
    "linear",
)
"""In the place of the trained softmax: what windows, means and features of it cost."""


def run_name(encoder: str, seed: int) -> str:
    """Of a run's folder."""
    return f"{encoder}-seed-{seed}" if seed else encoder


class Pretraining(Stages):
    """The runs."""

    study = "pretraining"
    needs = "wiki and bookcorpus"

    def rows(self) -> None:
        """All of Wikipedia and the books, a tokenizer of 8,192 tokens, and rows of 512."""
        studies.make_rows(self, LENGTH)

    def encoders(self) -> None:
        """All of them with one seed."""
        self.run(self._pretraining(encoder, 0) for encoder in ENCODERS)
        self.run(self._validation(encoder, 0) for encoder in ENCODERS)

    def seeds(self) -> None:
        """Two more seeds of those that claims are made of."""
        more = [(encoder, seed) for seed in SEEDS for encoder in SEVERAL]
        self.run(self._pretraining(*each) for each in more)
        self.run(self._validation(*each) for each in more)

    def attend(self) -> None:
        """How far the encoders attend, and what another attention costs in the place of the trained softmax."""
        rows = "--rows 8" if self.rehearse else "--rows 500"
        models = [word for name in SPANNED for word in ("--model", self.out / name)]
        span, put_in = self.out / "span", self.out / "put-in"
        place = ("--model", self.out / "softmax-noconv", "--dataset", self.out / "rows", "--out", put_in)
        flags = f"--parts loss --score_rows {8 if self.rehearse else VALIDATED} --adapt 0 --repeats 1 --threads 1 "
        flags += " ".join(f"--attention {each}" for each in PUT_IN)
        self.run([
            job("span", "code/run_benchmark.py", "span", *models, "--dataset", self.out / "rows", "--out", span, rows,
                result=span / "span.json"),
            job("put-in", "code/run_benchmark.py", "approximation", *place, flags,
                result=put_in / "approximation.json"),
        ])  # fmt: skip

    def _pretraining(self, encoder: str, seed: int) -> Job:
        steps = 8 if self.rehearse else STEPS
        name = run_name(encoder, seed)
        own = {"num_landmarks": None, "conv_kernel_size": None, "max_seq_len": LENGTH, **ENCODERS[encoder]}
        setting = {
            "batch_size": ROWS,
            "epoch": EPOCHS,
            "batches_per_epoch": steps // EPOCHS,
            "batches_per_report": max(1, steps // 40),
            "batch_growth_tokens": round(GROWING * steps * ROWS * LENGTH),
            "validate_batches_per_epoch": 1 if self.rehearse else 12,
            "seed": seed,
        }
        folder = studies.write_experiment(self.out / name, "modern-tiny", own, setting)
        return job(name, "code/run_pretrain.py", "--model", folder, "--dataset", self.out / "rows", "--device cpu")

    def _validation(self, encoder: str, seed: int) -> Job:
        folder = self.out / run_name(encoder, seed)
        flags = f"--rows {8 if self.rehearse else VALIDATED} --device cpu"
        flags += " --baselines" if run_name(encoder, seed) == "softmax-noconv" else ""
        place = ("--model", folder, "--dataset", self.out / "rows")
        result = folder / "model" / "validation.json"
        return job(f"validate-{folder.name}", "code/run_validation.py", *place, flags, result=result)


def gathered(runs: Path) -> dict[str, Any]:
    """All that is known of the encoders, here or in the data of an earlier call."""
    data: dict[str, Any] = {"began": [], "encoders": {}, "baselines": {}, "masked_tokens": 0, "span": [], "put_in": {}}
    if (RESULTS / "pretraining.json").exists():
        data = studies.read_json(RESULTS / "pretraining.json")
    for encoder in ENCODERS:
        for seed in (0, *SEEDS):
            folder = runs / run_name(encoder, seed)
            if not (folder / "model" / "validation.json").exists():
                continue
            found = read_validation(folder / "model" / "validation.json")
            data["encoders"].setdefault(encoder, {})[str(seed)] = found.scores[-1].metrics
            data["masked_tokens"] = found.masked_tokens
            data["baselines"] = found.baselines or data["baselines"]
    for name, kind in (("span", "span"), ("put-in", "approximation")):
        studies.keep_tables(runs / name / kind, RESULTS / kind, runs, "pretraining")
    data["began"] += [stage for stage in studies.read_stages(runs) if stage not in data["began"]]
    return data


def against_softmax(found: Mapping[str, Sequence[float]], ending: str, tokens: int) -> list[list[str]]:
    """What the encoders of an ending differ by from softmax; nothing where no spread over seeds is known.

    Args:
        found: masked-token accuracies of each seed.
        tokens: masked ones that each was scored on.
    """
    own = {encoder: values for encoder, values in found.items() if encoder.endswith(ending)}
    pooled, freedom = pooled_variance((Spread.of(values), len(values)) for values in own.values())
    base = own.get(f"softmax{ending}", ())
    if not freedom or not base:
        return []
    lines = []
    for encoder, values in own.items():
        if values is base:
            continue
        means = fmean(values), fmean(base)
        of_rows = sum(standard_error("mlm_accuracy", mean, tokens) ** 2 for mean in means)
        of_seeds = pooled * (1 / len(values) + 1 / len(base))
        pair = Difference.of(means[0] - means[1], of_rows, of_seeds, freedom)
        lines.append([f"`{encoder}` − `softmax{ending}`", str(pair), f"{100 * pair.smallest:.1f}"])
    return lines


def collect(runs: Path = Path("runs/pretraining")) -> None:
    """Write pretraining.json, pretraining.md and curves.png, and the tables of the stage `attend`."""
    data = gathered(runs)
    write_json(RESULTS / "pretraining.json", data)
    found = {
        encoder: [metrics["mlm_accuracy"] for metrics in data["encoders"][encoder].values()]
        for encoder in ENCODERS
        if encoder in data["encoders"]
    }
    lines = [[f"`{encoder}`", str(Spread.of(values)), str(len(values))] for encoder, values in found.items()]
    lines += [[name.replace("_", " "), f"{100 * value:.1f}", ""] for name, value in data["baselines"].items()]
    compared = [line for ending in ENDINGS for line in against_softmax(found, ending, data["masked_tokens"])]
    studies.write_page(
        RESULTS / "pretraining.md",
        "# Small encoders with each attention",
        f"The recipe of `modern-tiny` with another attention, rows of {LENGTH} tokens, {STEPS:,} steps of {ROWS} rows. "
        "Masked-token accuracy on the same validation rows in %.",
        markdown(["encoder", "masked-token accuracy, %", "seeds"], lines),
        markdown(["encoders", "difference, points (95 %)", "could have been shown"], compared),
        "The spread over seeds is pooled over the encoders of several seeds, once without the convolution and once "
        f"with it; {data['masked_tokens']:,} masked tokens, not paired; two-sided test at 5 %, power 80 %.",
        f"{studies.describe_machines(data['began'])}. `python experiments/studies/pretraining.py run --data DIR`, "
        "`python experiments/studies/pretraining.py collect`",
    )
    # As many as there are colours.
    drawn = [runs / name for name in ENCODERS if name != "nystrom-1-conv"]
    if curves := [read_curve(folder) for folder in drawn if (folder / "model" / "log.jsonl").exists()]:
        draw_curves(curves, RESULTS / "curves.png")


if __name__ == "__main__":
    studies.run_commands(studies.command_of(Pretraining), collect)
