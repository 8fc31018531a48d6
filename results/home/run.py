"""What results/home tells of: softmax switched to Nyström attention in transformers, longer inputs by three ways, and
short rows before long ones.

Run it at the top of a clone, in its environment: `python results/home/run.py [STAGE ...]`. In the folder `tiny` beside
--out, by default runs/home, lies what results/tiny/run.py has made. Started again, it goes on where it was stopped.
Each process has one thread, and --jobs of them run at once.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nystromformer.files import write_json
from nystromformer.paths import EXPERIMENTS
from nystromformer.side_by_side import Job, Runner, job, run_stages

SOFTMAX = "softmax-128"
SWITCHED = ("softmax", "nystrom-64", "nystrom-64-segment_means", "nystrom-32", "nystrom-32-segment_means")
NYSTROM, LAST = "nystrom-tiny-conv", 2
SHORT, MIDDLE, LONG = 128, 512, 4096
LANDMARKS = SHORT // 8
"""A landmark for every 8 tokens, as the paper's 64 of 512 are."""
SOFTMAX_STEPS, SOFTMAX_EPOCHS = 500, 8
"""Of an epoch, and epochs, until the encoder that is switched attends: at first it goes by how often words occur, and
then it does not matter which attention spreads them."""
CURRICULUM = {128: 500, 512: 500, 2048: 500}
"""Steps at each length, of 8,192 tokens each."""
TOKENS = 8192
WAYS = ("repeat", "continue", "interpolate")
EXTENDED = 100
"""Steps after an extension."""


class Stages:
    """The stages, in their order."""

    def __init__(self, data: Path | None, out: Path, run: Runner, rehearse: bool) -> None:
        self.out, self.run, self.rehearse = out, run, rehearse
        self.tiny = out.parent / "tiny"

    def switch(self) -> None:
        """A softmax encoder, and in transformers switched."""
        exported = self.out / "exported"
        experiment = self._attending(SOFTMAX, {"attn_type": "softmax", "num_landmarks": None})
        self.run([self._pretraining(experiment, SHORT)])
        if not exported.exists():
            self.run([
                job("export", "code/run_export.py", "export", experiment, "--format hf --checkpoint last",
                    "--code transformers --out", exported)
            ])  # fmt: skip
        place = ("--experiment", experiment, "--dataset", self._rows(SHORT))
        steps = f"--trained {SOFTMAX_EPOCHS * SOFTMAX_STEPS} {'--steps 2' if self.rehearse else ''}"
        self.run([
            job(f"switch-{name}", "results/home/switch.py", exported, *place, "--attention", name, steps,
                "--out", self.out / f"switch-{name}.json")
            for name in SWITCHED
        ])  # fmt: skip
        if not (self.out / "approximation" / "approximation.json").exists():
            self.run([
                job("approximation", "code/run_benchmark.py", "approximation", "--model", experiment,
                    "--dataset", self._rows(SHORT), "--parts errors --rows 32 --landmarks 8,16,32,64 --repeats 1",
                    "--threads 1 --out", self.out / "approximation")
            ])  # fmt: skip

    def attend(self) -> None:
        """Whether Nyström attention learns to attend where softmax does, without a convolution's help."""
        nystrom = self._attending("nystrom-128", {"num_landmarks": LANDMARKS})
        self.run([self._pretraining(nystrom, SHORT)])

    def attend_conv(self) -> None:
        """Both with the convolution, which sees what is near; and Nyström attention without it, with more landmarks."""
        conv = {"conv_kernel_size": 33}
        kinds = {
            "nystrom-128-conv": {"num_landmarks": LANDMARKS, **conv},
            "softmax-128-conv": {"attn_type": "softmax", "num_landmarks": None, **conv},
            "nystrom-128-landmarks-64": {"num_landmarks": SHORT // 2},
        }
        self.run([self._pretraining(self._attending(name, network), SHORT) for name, network in kinds.items()])

    def rows(self) -> None:
        """The corpora of results/tiny in rows of other lengths."""
        lengths = sorted({SHORT, LONG, *CURRICULUM} - {MIDDLE})
        self.run([
            job(f"rows-{length}", "data-preprocessing/preprocess_data_512.py", "--length", length,
                "--corpora", self.tiny / "corpora", "--corpus wiki --corpus bookcorpus --validation 0.1",
                "--tokenizer", self.tiny / "rows" / "tokenizer", "--out", self._rows(length))
            for length in lengths
        ])  # fmt: skip

    def extension(self) -> None:
        """128 to 512 tokens, and 512 to 4096, each by three ways and from initial weights."""
        start = self._experiment("start-128", SHORT, 1000, {})
        self.run([self._pretraining(start, SHORT)])
        sources = {
            MIDDLE: start / "model" / "cp-0000.model",
            LONG: self.tiny / "seed0" / NYSTROM / "model" / f"cp-{LAST:04d}.model",
        }
        jobs = []
        for length, source in sources.items():
            for way in WAYS:
                lossy = {"from_cp_resize": "lossy"} if way == "interpolate" else {}
                begin = {"from_cp": str(source), "from_cp_positions": way} | lossy
                jobs.append((self._experiment(f"{length}-{way}", length, EXTENDED, begin), length))
            jobs.append((self._experiment(f"{length}-scratch", length, EXTENDED, {}), length))
        self.run([self._pretraining(folder, length) for folder, length in jobs])

    def curriculum(self) -> None:
        """Short rows before long ones, and long ones alone for as many tokens."""
        longest = max(CURRICULUM)
        *before, steps = CURRICULUM.items()
        stages = [
            self._steps_of(length, count)
            | {"max_seq_len": length, "data_folder": str(self._rows(length)), "inst_per_gpu": TOKENS // length}
            | ({"num_landmarks": 32} if length == SHORT else {})
            for length, count in before
        ]
        staged = self._experiment("curriculum", longest, steps[1], {}, {"stages": stages})
        alone = self._experiment("long-only", longest, sum(CURRICULUM.values()), {})
        self.run([self._pretraining(staged, longest), self._pretraining(alone, longest)])

    def _attending(self, name: str, network: Mapping[str, Any]) -> Path:
        """A folder with an encoder without dropout that learns masked tokens of short rows for long; without the
        convolution, too, unless `network` has it."""
        learning = {"objectives": ["mlm"], "learning_rate": 2e-3, "epoch": SOFTMAX_EPOCHS, "batches_per_report": 50}
        plain = {"conv_kernel_size": None, "dropout_prob": 0.0}
        return self._experiment(name, SHORT, SOFTMAX_STEPS, {}, learning, plain | network)

    def _steps_of(self, length: int, count: int) -> dict[str, int]:
        steps = 4 if self.rehearse else count
        return {"epoch": 1, "batches_per_epoch": steps, "batch_size": TOKENS // length}

    def _rows(self, length: int) -> Path:
        return self.tiny / "rows" if length == MIDDLE else self.out / f"rows-{length}"

    def _experiment(
        self,
        name: str,
        length: int,
        steps: int,
        top: Mapping[str, Any],
        setting: Mapping[str, Any] = {},
        network: Mapping[str, Any] = {},
    ) -> Path:
        """A folder with the tiny encoder at a length, steps of equally many tokens, validated often.

        network: keys of the section model that differ; None takes one away.
        """
        folder = self.out / name
        config = json.loads((EXPERIMENTS / NYSTROM / "config.json").read_text())
        model = config["model"] | {"max_seq_len": length, **network}
        config["model"] = {key: value for key, value in model.items() if value is not None}
        told = {"batches_per_report": 1, "validate_batches_per_epoch": 200_000 // TOKENS}
        config["pretraining_setting"] |= self._steps_of(length, steps) | told | dict(setting)
        config["gpu_setting"]["inst_per_gpu"] = TOKENS // length
        config |= top
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "config.json").exists():
            write_json(folder / "config.json", config)
        return folder

    def _pretraining(self, folder: Path, length: int) -> Job:
        return job(folder.name, "code/run_pretrain.py", "--model", folder, "--dataset", self._rows(length))


STAGES = ("rows", "switch", "attend", "extension", "curriculum", "attend_conv")


if __name__ == "__main__":
    run_stages(__doc__, STAGES, Stages, None, Path("runs/home"))
