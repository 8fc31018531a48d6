"""What makes a small encoder attend soonest: the parts of encoders since BERT, in groups (docs/recipe.md).

DIR holds wiki and bookcorpus as they are downloaded. Each run has as many steps as its network made in 15 minutes on
one core (AMD EPYC, 2026-11-26), so that no other work changes a result. Some five core-hours.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attend import pretrain, text_stages
from outcomes import Record
from study import Line, Stage, main

Config = Mapping[str, Mapping[str, Any]]
ROWS, EPOCHS = 32, 5
"""Of a step; and validations of a run."""
BERT: Config = {
    "model": {"max_seq_len": 256, "activation": "gelu"},
    "pretraining_setting": {"objectives": ["mlm"], "learning_rate": 2e-3, "batch_size": ROWS, "warmup": 0.1},
}
SCHEDULE = {"schedule": "wsd", "decay": 0.3, "optimizer": "stable_adamw", "max_grad_norm": None, "adam_beta2": 0.98}
GROUPS: Mapping[str, Config] = {
    "positions": {"model": {"positions": "rotary"}},
    # Two thirds of 512, for as many weights.
    "glu": {"model": {"feed_forward": "glu", "transformer_hidden_dim": 344}},
    "norm": {"model": {"norm": "pre", "skip_first_prenorm": True, "bias": False}},
    "dropout": {"model": {"dropout_prob": 0.0, "depth_scaled_init": True}},
    "masking": {"pretraining_setting": {"mask_prob": 0.3, "validation_mask_prob": 0.15}},
    "schedule": {"pretraining_setting": {**SCHEDULE, "batch_size_start": ROWS // 4}},
}
STEPS: Mapping[str, tuple[int, int | None]] = {
    "bert": (221, None),
    "bert-with-positions": (214, None),
    "bert-with-glu": (208, None),
    "bert-with-norm": (217, None),
    "bert-with-dropout": (224, None),
    "bert-with-masking": (184, None),
    "bert-with-schedule": (276, 1_751_661),
    "all": (236, 1_498_829),
    "all-but-positions": (237, 1_502_900),
    "all-but-glu": (242, 1_535_887),
    "all-but-norm": (236, 1_501_272),
    "all-but-dropout": (229, 1_453_557),
    "all-but-masking": (272, 1_729_593),
    "all-but-schedule": (185, None),
}
"""Steps between two validations; and the tokens over which the batches grow, a fifth of the run's."""
BASELINES = "--rows 1562 --baselines"


def line(recipe: str, rate: float = 2e-3, seed: int = 0, name: str = "") -> Line:
    """A run of a recipe."""
    kind, _, group = recipe.partition("-")
    own = [group.removeprefix("with-")] if kind == "bert" else [each for each in GROUPS if group != f"but-{each}"]
    steps, growing = STEPS[recipe]
    setting = {
        "learning_rate": rate,
        "seed": seed,
        "epoch": EPOCHS,
        "batches_per_epoch": steps,
        "batches_per_report": 10,
    }
    setting |= {"validate_batches_per_epoch": 48} | ({"batch_growth_tokens": growing} if growing else {})
    config: dict[str, dict[str, Any]] = {
        "model": {},
        "pretraining_setting": {},
        "gpu_setting": {"inst_per_gpu": ROWS if growing is None else ROWS // 4},
    }
    for part in (BERT, *(GROUPS[each] for each in own if each), {"pretraining_setting": setting}):
        for section, keys in part.items():
            config[section] |= keys
    return Line(name or recipe, pretrain(256, BASELINES if recipe == "bert" else ""), "softmax-tiny-noconv", config)


def read_course(folder: Path) -> list[Record]:
    """Masked-token accuracy at each fifth of the steps, and that of the guessers beside it."""
    lines = map(json.loads, (folder / "model" / "log.jsonl").read_text().splitlines())
    course = [line["mlm_accuracy"] for line in lines if line["type"] == "validation"]
    guesses = [json.loads(path.read_text())["baselines"] for path in folder.glob("model/validation.json")]
    baselines = {name.replace("_", " "): {"5/5": one} for found in guesses for name, one in found.items()}
    metrics = {f"{number}/{EPOCHS}": value for number, value in enumerate(course, start=1)}
    return [Record(metrics, baselines=baselines)]


def seeds(recipe: str) -> list[Line]:
    """The same with three seeds."""
    return [line(recipe, seed=seed, name=f"{recipe}/{seed}") for seed in range(3)]


COURSE = [f"{number}/{EPOCHS}" for number in range(EPOCHS, 0, -1)]
RATES = {"bert": (5e-4, 1e-3), "all-but-norm": (1e-3, 4e-3)}
STAGES = {
    **text_stages(256),
    "recipes": Stage([line(recipe) for recipe in STEPS], COURSE, "bert", read=read_course),
    "rates": Stage(
        [line(recipe, rate, name=f"{recipe}-{rate:g}") for recipe, rates in RATES.items() for rate in rates],
        COURSE,
        read=read_course,
    ),
    "seeds": Stage(
        [each for recipe in ("bert", "bert-with-positions", "all-but-norm") for each in seeds(recipe)],
        COURSE,
        "bert",
        read=read_course,
    ),
}

if __name__ == "__main__":
    main(STAGES)
