"""What results/attend shows: small encoders that attend, from initial weights, and attentions in softmax's place.

Run it at the top of a clone, in its environment: `python results/attend/run.py --data DIR [STAGE ...]`. DIR holds wiki
and bookcorpus as they are downloaded; --out, by default runs/attend, takes everything. Started again, it continues.
Each process has one thread, and --jobs of them run at once.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nystromformer.files import write_json
from nystromformer.paths import EXPERIMENTS
from nystromformer.side_by_side import ROOT, Job, Runner, job, run_stages

RECIPE = "nystrom-tiny-conv"
LENGTH, TOKENS = 256, 8192
"""Of a row, and of a step."""
STEPS, LONG_STEPS = 1000, 2000
NEAR_FAR = {"name": "near_far", "block_size": 16, "num_landmarks": 32, "num_selected": 16}
INITIAL: Mapping[str, Mapping[str, Any]] = {
    "softmax-noconv": {"attn_type": "softmax"},
    "nystrom-noconv": {"attn_type": "nystrom", "num_landmarks": LENGTH // 8},
    "near_far-noconv": {"attn_type": NEAR_FAR},
    "local-noconv": {"attn_type": {"name": "local", "block_size": 16}},
    "softmax-conv": {"attn_type": "softmax", "conv_kernel_size": 33},
    "nystrom-conv": {"attn_type": "nystrom", "num_landmarks": LENGTH // 8, "conv_kernel_size": 33},
    "nystrom-1-conv": {"attn_type": "nystrom", "num_landmarks": 1, "conv_kernel_size": 33},
    "near_far-conv": {"attn_type": NEAR_FAR, "conv_kernel_size": 33},
    "local-conv": {"attn_type": {"name": "local", "block_size": 16}, "conv_kernel_size": 33},
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


class Stages:
    """The stages, in their order."""

    def __init__(self, data: Path | None, out: Path, run: Runner, rehearse: bool) -> None:
        assert data is not None
        self.data, self.out, self.run, self.rehearse = data, out, run, rehearse
        self.rows = out / "rows"

    def prepared(self) -> None:
        """All of Wikipedia and the books, a tokenizer of 8,192 tokens, and rows of 256."""
        corpora = self.out / "corpora"
        self.run([
            job(name, f"data-preprocessing/{name}/preprocess.py", "--source", self.data / name,
                "--out", corpora / name / "unified")
            for name in ("wiki", "bookcorpus")
        ])  # fmt: skip
        self.run([
            job("rows", "data-preprocessing/preprocess_data_512.py", "--length", LENGTH, "--corpora", corpora,
                "--corpus wiki --corpus bookcorpus --tokenizer train --vocab_size 8192 --validation 0.1",
                "--out", self.rows)
        ])  # fmt: skip

    def put_in(self) -> None:
        """A softmax encoder of more steps, and other attentions in its place, untrained."""
        source = self._experiment("softmax-source", LONG_STEPS, INITIAL["softmax-noconv"])
        self.run([self._pretraining(source)])
        if not (self.out / "put-in" / "approximation.json").exists():
            attentions = " ".join(f"--attention {each}" for each in PUT_IN)
            rows = "--parts loss --score_rows 1024 --adapt 0 --landmarks 32 --repeats 1 --threads 1"
            self.run([
                job("put-in", "code/run_benchmark.py", "approximation", "--model", source, "--dataset", self.rows,
                    rows, attentions, "--out", self.out / "put-in")
            ])  # fmt: skip

    def initial(self) -> None:
        """Encoders that begin with initial weights."""
        folders = [self._experiment(name, STEPS, network) for name, network in INITIAL.items()]
        self.run([self._pretraining(folder) for folder in folders])

    def _experiment(self, name: str, steps: int, network: Mapping[str, Any]) -> Path:
        """A folder with the encoder: rotary positions, no dropout."""
        folder = self.out / name
        config = json.loads((EXPERIMENTS / RECIPE / "config.json").read_text())
        model = config["model"] | {"max_seq_len": LENGTH, "dropout_prob": 0.0, "positions": "rotary"}
        model = {key: value for key, value in model.items() if key not in ("num_landmarks", "conv_kernel_size")}
        config["model"] = model | dict(network)
        steps = 8 if self.rehearse else steps
        config["pretraining_setting"] |= {
            "batch_size": TOKENS // LENGTH,
            "learning_rate": 2e-3,
            "epoch": 4,
            "batches_per_epoch": steps // 4,
            "batches_per_report": max(1, steps // 40),
            "validate_batches_per_epoch": 200_000 // TOKENS,
        }
        config["gpu_setting"]["inst_per_gpu"] = TOKENS // LENGTH
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "config.json").exists():
            write_json(folder / "config.json", config)
        return folder

    def _pretraining(self, folder: Path) -> Job:
        return job(folder.name, "code/run_pretrain.py", "--model", folder, "--dataset", self.rows)


STAGES = ("prepared", "put_in", "initial")


if __name__ == "__main__":
    run_stages(__doc__ or "", STAGES, Stages, "the folder with wiki and bookcorpus", ROOT / "runs" / "attend")
