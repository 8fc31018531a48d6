"""Small encoders that attend: each attention with the convolution and without, rows of 512, 256 and 128 tokens; how far
they attend (docs/results/encoders.md).

DIR holds wiki and bookcorpus as they are downloaded. Some twelve core-hours in all.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outcomes import Record
from study import Line, Stage, main

Keys = Mapping[str, Any]
CONV = {"conv_kernel_size": 33}
SEVERAL = ("softmax", "nystrom", "near_far")
"""Of three seeds at 512 tokens."""


def attentions(block: int, landmarks: int) -> dict[str, Keys]:
    """What differs between the encoders. A single landmark shows what the convolution does alone."""
    near_far = {"name": "near_far", "block_size": block, "num_landmarks": landmarks, "num_selected": 16}
    found: dict[str, Keys] = {
        "softmax": {"attn_type": "softmax"},
        "near_far": {"attn_type": near_far},
        "local": {"attn_type": {"name": "local", "block_size": block}},
        "nystrom": {"attn_type": "nystrom", "num_landmarks": landmarks},
        "linear": {"attn_type": "linear"},
    }
    with_conv = {**found, "nystrom-1": {"attn_type": "nystrom", "num_landmarks": 1}}
    return {f"{name}-noconv": keys for name, keys in found.items()} | {
        f"{name}-conv": {**keys, **CONV} for name, keys in with_conv.items()
    }


def text_stages(*lengths: int) -> dict[str, Stage]:
    """All of Wikipedia and the books as documents, and rows with a tokenizer of 8,192 tokens in {out}/rows/LENGTH."""
    unify = [
        Line(
            name,
            f"data-preprocessing/{name}/preprocess.py --source {{data}}/{name} --out {{out}}/corpora/{name}/unified",
        )
        for name in ("wiki", "bookcorpus")
    ]
    corpora = "--corpora {out}/corpora --corpus wiki --corpus bookcorpus --validation 0.1"
    rows = f"data-preprocessing/preprocess_data_512.py {corpora} --tokenizer train --vocab_size 8192"
    lines = [Line(str(each), f"{rows} --length {each} --out {{out}}/rows/{each}") for each in lengths]
    return {"corpora": Stage(unify), "rows": Stage(lines)}


def pretrain(length: int, validated: str = "") -> str:
    """Train, and score the last weights where rows to score are named."""
    place = f"--model {{here}} --dataset {{out}}/rows/{length} --device cpu"
    train = f"code/run_pretrain.py {place}"
    return f"{train} && code/run_validation.py {place} {validated}" if validated else train


def read_validation(folder: Path) -> list[Record]:
    """What run_validation.py found for the last weights."""
    found = json.loads((folder / "model" / "validation.json").read_text())
    metrics = {name: found["scores"][-1]["metrics"][name] for name in ("mlm_accuracy", "loss")}
    baselines = {name.replace("_", " "): {"mlm_accuracy": one} for name, one in found["baselines"].items()}
    return [Record(metrics, rows=found["masked_tokens"], baselines=baselines)]


def encoder_512(name: str, keys: Keys, seed: int) -> Line:
    """By the recipe of modern-tiny: 1,000 steps of 16 rows, batches that grow over a fifth of the tokens."""
    setting = {"epoch": 4, "batches_per_epoch": 250, "batches_per_report": 25, "batch_growth_tokens": 1_638_400}
    model = {"max_seq_len": 512, **keys}
    config = {"model": model, "pretraining_setting": {**setting, "validate_batches_per_epoch": 12, "seed": seed}}
    guesses = "--rows 800 --baselines" if (name, seed) == ("softmax-noconv", 0) else "--rows 800"
    return Line(f"{name}/{seed}", pretrain(512, guesses), "modern-tiny", config)


def encoder_256(name: str, keys: Keys) -> Line:
    """Rotary positions, no dropout, 8,192 tokens a step, masked tokens and sentence order."""
    model = {"max_seq_len": 256, "dropout_prob": 0.0, "positions": "rotary", **keys}
    setting = {"batch_size": 32, "learning_rate": 2e-3, "epoch": 4, "batches_per_epoch": 250}
    more = {"batches_per_report": 25, "validate_batches_per_epoch": 24}
    config = {"model": model, "pretraining_setting": setting | more, "gpu_setting": {"inst_per_gpu": 32}}
    return Line(name, pretrain(256, "--rows 768"), "softmax-tiny-noconv", config)


def encoder_128(name: str, keys: Keys) -> Line:
    """4,000 steps of 64 rows, no dropout, learned positions, masked tokens: softmax attends after some 2,000."""
    model = {"max_seq_len": 128, "dropout_prob": 0.0, **keys}
    setting = {"objectives": ["mlm"], "batch_size": 64, "learning_rate": 2e-3, "epoch": 8, "batches_per_epoch": 500}
    config = {"model": model, "pretraining_setting": setting, "gpu_setting": {"inst_per_gpu": 64}}
    return Line(name, pretrain(128, "--rows 1536"), "softmax-tiny-noconv", config)


ENCODERS = attentions(block=32, landmarks=64)
SEEDS = {
    name: (0, 1, 2) if name.partition("-")[0] in SEVERAL and name != "nystrom-1-conv" else (0,) for name in ENCODERS
}


def stage_512(ending: str) -> Stage:
    """All encoders, with the convolution or without."""
    own = {name: keys for name, keys in ENCODERS.items() if name.endswith(ending)}
    lines = [encoder_512(name, keys, seed) for name, keys in own.items() for seed in SEEDS[name]]
    curves = " ".join(f"{{out}}/512{ending}/{name}/0" for name in own if name != "nystrom-1-conv")
    report = f"code/run_report.py pretraining {curves} --out {{results}}/512{ending}.png"
    return Stage(lines, base=f"softmax{ending}", reports=[report], **SCORED)


SOURCE = "512-noconv/softmax-noconv/0"
SPANNED = (
    *(SOURCE, "512-noconv/near_far-noconv/0", "512-noconv/nystrom-noconv/0"),
    *("512-conv/softmax-conv/0", "512-conv/nystrom-conv/0"),
)
MODELS = " ".join(f"--model {{out}}/{each}" for each in SPANNED)
ROWS = "--dataset {out}/rows/512 --out {results}"
SCORED: Mapping[str, Any] = {"metrics": ("mlm_accuracy", "loss"), "read": read_validation}
STAGES = {
    **text_stages(512, 256, 128),
    "512-noconv": stage_512("-noconv"),
    "512-conv": stage_512("-conv"),
    "512-attend": Stage([
        Line("span", f"code/run_benchmark.py span {MODELS} {ROWS}/span --rows 500"),
    ]),
    "256": Stage([encoder_256(*each) for each in attentions(16, 32).items()], base="softmax-noconv", **SCORED),
    "128": Stage(
        [encoder_128("softmax", {}), encoder_128("nystrom", {"attn_type": "nystrom", "num_landmarks": 16})],
        base="softmax",
        **SCORED,
    ),
}  # fmt: skip

if __name__ == "__main__":
    main(STAGES)
