"""What makes a small encoder attend soonest: the parts of encoders since BERT, in groups, by masked-token accuracy.

`python experiments/studies/recipe.py run --data DIR [STAGE ...]`, then `collect`. DIR holds wiki and bookcorpus as they
are downloaded. Every run has the tokens that its network learns from in 15 minutes on one core of a machine that does
nothing but two such runs, which the stage `times` measures; so no other work, and no stop, changes a result. What an
earlier `collect` gathered stays until a run of the same name takes its place.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from nystromformer import studies
from nystromformer.errors import UserError
from nystromformer.files.writing import write_figure, write_json
from nystromformer.runs.figures import Spread
from nystromformer.studies import Job, Stages, job
from nystromformer.tables import markdown
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.pretraining.batches import BatchSizes
from nystromformer.tasks.pretraining.validation import read_validation
from nystromformer.training.log import read_log

RESULTS = studies.RESULTS / "recipe"
LENGTH, ROWS = 256, 32
"""Tokens of a row, rows of a step."""
MINUTES, EPOCHS = 15, 5
"""Of a run, and its validations."""
RATE = 2e-3
Keys = Mapping[str, Mapping[str, Any]]
BERT: Keys = {
    "model": {
        "attn_type": "softmax",
        "num_landmarks": None,
        "conv_kernel_size": None,
        "max_seq_len": LENGTH,
        "activation": "gelu",
    },
    "pretraining_setting": {"objectives": ["mlm"], "learning_rate": RATE, "batch_size": ROWS, "warmup": 0.1},
}
GROUPS: Mapping[str, Keys] = {
    "positions": {"model": {"positions": "rotary"}},
    "glu": {"model": {"feed_forward": "glu", "transformer_hidden_dim": 344}},
    "norm": {"model": {"norm": "pre", "skip_first_prenorm": True, "bias": False}},
    "dropout": {"model": {"dropout_prob": 0.0, "depth_scaled_init": True}},
    "masking": {"pretraining_setting": {"mask_prob": 0.3, "validation_mask_prob": 0.15}},
    "schedule": {
        "pretraining_setting": {
            "schedule": "wsd",
            "decay": 0.3,
            "optimizer": "stable_adamw",
            "max_grad_norm": None,
            "adam_beta2": 0.98,
            "batch_size_start": ROWS // 4,
        }
    },
}
"""What differs from BERT's recipe: the switches in groups. 344 is two thirds of 512, for as many weights."""
GROWING = 0.2
"""The share of a run's tokens over which its batches grow, where they do."""
NAMES = {
    "bert": (),
    **{f"bert-with-{group}": (group,) for group in GROUPS},
    "all": tuple(GROUPS),
    **{f"all-but-{group}": tuple(other for other in GROUPS if other != group) for group in GROUPS},
}
"""The recipes, and the groups that each has."""
ALONE = "bert-with-positions"
RATES_OF_BERT, RATES_OF_BEST = (5e-4, 1e-3), (1e-3, 4e-3)
RATES = tuple(dict.fromkeys((RATE, *RATES_OF_BERT, *RATES_OF_BEST)))
SEEDS = (1, 2)
"""Beside 0."""
TIMED_STEPS = 40
VALIDATED = 400_000
"""Tokens."""


def run_name(recipe: str, rate: float = RATE, seed: int = 0) -> str:
    """Of a run's folder."""
    return recipe + (f"-rate-{rate:g}" if rate != RATE else "") + (f"-seed-{seed}" if seed else "")


class Recipe(Stages):
    """The runs."""

    study = "recipe"
    needs = "wiki and bookcorpus"

    def rows(self) -> None:
        """All of Wikipedia and the books, a tokenizer of 8,192 tokens, and rows of 256."""
        studies.make_rows(self, LENGTH)

    def times(self) -> None:
        """How many tokens a second each recipe learns from; nothing else may run."""
        steps = 4 if self.rehearse else TIMED_STEPS
        setting = {"batches_per_report": max(1, steps // 8), "validate_batches_per_epoch": 1}
        fixed = {**setting, "epoch": 1, "batches_per_epoch": steps, "batch_size_start": None}
        self.run(self._job(f"time-{recipe}", recipe, fixed) for recipe in NAMES)

    def recipes(self) -> None:
        """BERT's recipe, each group alone in it, all, and all but each."""
        self.run(self._of_tokens(recipe) for recipe in NAMES)

    def guesses(self) -> None:
        """What the most frequent token and a table of neighbours guess on the same masked tokens."""
        place = ("--model", self.out / "bert", "--dataset", self.out / "rows")
        rows = f"--rows {8 if self.rehearse else VALIDATED // LENGTH}"
        result = self.out / "bert" / "model" / "validation.json"
        self.run([job("guesses", "code/run_validation.py", *place, rows, "--baselines --device cpu", result=result)])

    def rates(self) -> None:
        """Other learning rates for BERT's recipe and the best one."""
        chosen = (("bert", RATES_OF_BERT), (best_recipe(gathered(self.out)), RATES_OF_BEST))
        tried = dict.fromkeys((recipe, rate) for recipe, rates in chosen for rate in rates)
        self.run(self._of_tokens(recipe, rate) for recipe, rate in tried)

    def seeds(self) -> None:
        """Other seeds for BERT's recipe, rotary positions alone and the best one, each at its best rate."""
        data = gathered(self.out)
        chosen = dict.fromkeys(["bert", ALONE, best_recipe(data)])
        self.run(self._of_tokens(recipe, best_rate(data, recipe), seed) for seed in SEEDS for recipe in chosen)

    def _of_tokens(self, recipe: str, rate: float = RATE, seed: int = 0) -> Job:
        """A run of as many tokens as the recipe learns from in the time that all have."""
        speeds = gathered(self.out)["tokens_per_second"]
        if recipe not in speeds:
            raise UserError(f"{self.out}: the speed of {recipe} was not measured: run the stage `times` first")
        tokens = round(60 * MINUTES * speeds[recipe])
        growing = round(GROWING * tokens) if "schedule" in NAMES[recipe] else None
        steps = 10 if self.rehearse else steps_of(tokens, growing)
        validated = {"batches_per_report": 10, "validate_batches_per_epoch": VALIDATED // (ROWS * LENGTH)}
        setting = {
            **validated,
            "learning_rate": rate,
            "seed": seed,
            "epoch": EPOCHS,
            "batches_per_epoch": max(1, round(steps / EPOCHS)),
            "batch_growth_tokens": growing,
        }
        if self.rehearse:
            setting["validate_batches_per_epoch"] = 1
        return self._job(run_name(recipe, rate, seed), recipe, setting)

    def _job(self, name: str, recipe: str, setting: Mapping[str, Any]) -> Job:
        parts = [BERT, *(GROUPS[group] for group in NAMES[recipe]), {"pretraining_setting": setting}]
        sections: dict[str, dict[str, Any]] = {"model": {}, "pretraining_setting": {}}
        for part in parts:
            for section, keys in part.items():
                sections[section] |= keys
        folder = studies.write_experiment(
            self.out / name,
            "softmax-tiny-noconv",
            sections["model"],
            sections["pretraining_setting"],
            gpu_setting={"inst_per_gpu": ROWS // 4 if "schedule" in NAMES[recipe] else ROWS},
        )
        return job(name, "code/run_pretrain.py", "--model", folder, "--dataset", self.out / "rows", "--device cpu")


def tokens_per_second(runs: Path, recipe: str) -> float | None:
    """As the stage `times` has measured it: the median of its reports, without the first. None where it has not."""
    log = runs / f"time-{recipe}" / "model" / "log.jsonl"
    speeds = [line["tokens_per_second"] for line in read_log(log) if line["type"] == "train"] if log.exists() else []
    return float(median(speeds[1:] or speeds)) if speeds else None


def steps_of(tokens: int, growing: int | None) -> int:
    """Steps that see so many tokens, in batches that grow over `growing` of them or not."""
    first = ROWS if growing is None else ROWS // 4
    sizes = BatchSizes(first, ROWS, growing or 0, LENGTH)
    return sizes.first_steps[-1] + round((tokens / LENGTH - sizes.first_rows[-1]) / ROWS)


def accuracies(runs: Path, name: str) -> dict[float, float]:
    """Masked tokens right in percent on validation rows, by the share of the run's tokens."""
    setting = open_experiment(runs / name).config.pretraining_setting
    sizes = BatchSizes.of(setting, LENGTH)
    last, _ = sizes.of_step(setting.num_steps)
    lines = [line for line in read_log(runs / name / "model" / "log.jsonl") if line["type"] == "validation"]
    return {sizes.of_step(line["step"])[0] / last: 100 * line["mlm_accuracy"] for line in lines}


def final_accuracy(runs: Path, name: str) -> float | None:
    """At the end of a run; None where it has not ended."""
    if not (runs / name / "model" / "log.jsonl").exists():
        return None
    return accuracies(runs, name).get(1.0)


def best_recipe(data: Mapping[str, Any]) -> str:
    """The one whose run of the usual rate and seed ended best."""
    ended = {run["recipe"]: run["right"][-1][1] for run in data["runs"] if run["rate"] == RATE and not run["seed"]}
    if missing := [recipe for recipe in NAMES if recipe not in ended]:
        raise UserError(f"not finished: {', '.join(missing)}: run the stage `recipes` first")
    return max(NAMES, key=ended.__getitem__)


def best_rate(data: Mapping[str, Any], recipe: str) -> float:
    """The learning rate whose run of a recipe ended best, among those that were tried with the usual seed."""
    ended = {run["rate"]: run["right"][-1][1] for run in data["runs"] if run["recipe"] == recipe and not run["seed"]}
    return max(ended, key=lambda rate: ended[rate])


def collect(runs: Path = Path("runs/recipe")) -> None:
    """Write recipe.json, recipe.md and curves.png."""
    data = gathered(runs)
    write_json(RESULTS / "recipe.json", data)
    usual = {run["recipe"]: run for run in data["runs"] if run["rate"] == RATE and not run["seed"]}
    bigram = 100 * data["baselines"].get("bigram_table", float("inf"))
    lines = []
    for recipe in (recipe for recipe in NAMES if recipe in usual):
        right = usual[recipe]["right"]
        passed = minutes_to_pass(right, bigram)
        cells = [f"{data['tokens_per_second'][recipe]:,.0f}", "" if passed is None else f"{passed:.1f}"]
        lines.append([recipe, *cells, f"{right[-1][1]:.1f}"])
    rates: dict[tuple[str, float], list[float]] = {}
    for run in data["runs"]:
        rates.setdefault((run["recipe"], run["rate"]), []).append(run["right"][-1][1] / 100)
    several = {key: Spread.of(values) for key, values in rates.items()}
    others = [
        [recipe, f"{rate:g}", str(spread), str(len(rates[recipe, rate]))]
        for (recipe, rate), spread in several.items()
        if rate != RATE or spread.deviation is not None
    ]
    deviations = [spread.deviation for spread in several.values() if spread.deviation is not None]
    least = "The spread over seeds was not measured, so that no difference can be told from chance."
    if deviations:
        # Two-sided at 5 %, at 80 % power: 1.96 + 0.84 standard errors of a difference of two runs.
        points = 2.8 * 2**0.5 * 100 * max(deviations)
        least = f"Two single runs that differ by less than {points:.1f} points may do so by chance (80 % power, 5 %)."
    missing = [recipe for recipe in NAMES if recipe not in usual]
    guesses = ", ".join(f"{name.replace('_', ' ')} {100 * value:.1f}" for name, value in data["baselines"].items())
    studies.write_page(
        RESULTS / "recipe.md",
        "# What makes a small encoder attend soonest",
        f"4 layers of width 128, 2 heads, rows of {LENGTH} tokens, softmax, {ROWS * LENGTH:,} tokens a step, learning "
        f"rate {RATE:g}, seed 0. Masked-token accuracy in % on the same validation rows with the same masks, after as "
        f"many tokens as the recipe learns from in {MINUTES} minutes on one core; and after how many minutes it passed "
        f"the bigram table, between two of {EPOCHS} validations. Baselines: {guesses or 'not measured'}.",
        markdown(["recipe", "tokens a second", "minutes to pass the bigram table", f"{MINUTES} minutes"], lines),
        f"Not measured yet: {', '.join(missing)}." if missing else "",
        least,
        markdown(["recipe", "learning rate", f"{MINUTES} min", "seeds"], others) if others else "",
        f"{studies.describe_machines(data['began'])}. `python experiments/studies/recipe.py run --data DIR`, "
        "`python experiments/studies/recipe.py collect`",
    )
    draw({recipe: usual[recipe]["right"] for recipe in NAMES if recipe in usual})


def minutes_to_pass(right: Iterable[tuple[float, float]], accuracy: float) -> float | None:
    """When a run reached an accuracy, by straight lines between its validations; None where it never did."""
    before = (0.0, 0.0)
    for share, value in right:
        if value >= accuracy:
            return MINUTES * (before[0] + (share - before[0]) * (accuracy - before[1]) / (value - before[1]))
        before = (share, value)
    return None


def gathered(runs: Path) -> dict[str, Any]:
    """All that is known of the runs that have ended, here or in the data of an earlier call."""
    earlier: dict[str, Any] = {"began": [], "tokens_per_second": {}, "baselines": {}, "runs": []}
    if (RESULTS / "recipe.json").exists():
        earlier = studies.read_json(RESULTS / "recipe.json")
    found = {run_name(run["recipe"], run["rate"], run["seed"]): run for run in earlier["runs"]}
    for recipe in NAMES:
        for rate in RATES:
            for seed in (0, *SEEDS):
                name = run_name(recipe, rate, seed)
                if final_accuracy(runs, name) is None:
                    continue
                config = open_experiment(runs / name).config.model_dump(mode="json", by_alias=True)
                sections = {key: config[key] for key in ("model", "pretraining_setting")}
                right = list(accuracies(runs, name).items())
                found[name] = {"recipe": recipe, "rate": rate, "seed": seed, "right": right, **sections}
    speeds = {recipe: speed for recipe in NAMES if (speed := tokens_per_second(runs, recipe)) is not None}
    validation = runs / "bert" / "model" / "validation.json"
    began = [stage for stage in studies.read_stages(runs) if stage not in earlier["began"]]
    return {
        "began": earlier["began"] + began,
        "tokens_per_second": earlier["tokens_per_second"] | speeds,
        "baselines": read_validation(validation).baselines if validation.exists() else earlier["baselines"],
        "runs": list(found.values()),
    }


def draw(curves: Mapping[str, Iterable[tuple[float, float]]]) -> None:
    """Accuracies over minutes: each group alone in BERT's recipe, and each taken from all."""
    figure, axes = studies.new_figure(2, 12, 4.2, sharey=True)
    titles = ("BERT's recipe with one group", "all groups but one")
    for axis, title, prefix in zip(axes, titles, ("bert", "all"), strict=True):
        for recipe, points in curves.items():
            if not recipe.startswith(prefix) and recipe not in ("bert", "all"):
                continue
            minutes, right = zip(*((MINUTES * share, value) for share, value in points), strict=True)
            (line,) = axis.plot(minutes, right, marker="o", markersize=3, label=recipe)
            if recipe in ("bert", "all"):
                line.set(color="black", linestyle="-" if recipe == "all" else "--")
        axis.set(title=title, xlabel="minutes on one core", ylabel="masked-token accuracy, %")
        axis.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8, frameon=False)
    write_figure(RESULTS / "curves.png", figure, dpi=110)


if __name__ == "__main__":
    studies.run_commands(studies.command_of(Recipe), collect)
