"""Trains what results/lra tells of: the Long Range Arena on two cores.

Run it at the top of a clone, in its environment: `python results/lra/run.py [STAGE ...] --data DIR`. DIR holds imdb and
some at least of lra/cifar-10-batches-py and of lra/retrieval; --out, by default runs/lra, takes everything.
Started again, it goes on where it was stopped. Each process has one thread, and --jobs of them run at once.
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from nystromformer.config.attention import ATTENTIONS
from nystromformer.side_by_side import ROOT, Job, Runner, job, run_stages

SHORT: dict[str, Sequence[str]] = {
    "nystrom": ("num_landmarks=32",),
    "performer": ("num_features=32",),
    "linformer": ("projected_length=32",),
    "conv_linformer": ("stride=8",),
    "local": ("block_size=32",),
    "longformer": ("window=32",),
    "bigbird": ("block_size=8", "num_global_blocks=1"),
    "sparse": ("stride=16",),
    "reformer": ("chunk_length=32",),
    "sinkhorn": ("block_size=32",),
}
"""Of expressions of 50 to 250 tokens: a width of 32 where one may be chosen."""
TAPS = 35
SEEDS = "0,1,2"
STEPS, EVERY = 5000, 250


class Stages:
    """The stages, in their order."""

    def __init__(self, data: Path, out: Path, run: Runner, rehearse: bool) -> None:
        self.data, self.out, self.run, self.rehearse = data, out, run, rehearse

    def prepared(self) -> None:
        """All tasks' data."""
        place = self.out / "data"
        short = "--longer_than 50 --shorter_than 250 --seed 1"
        wanted = {
            "listops": "",
            "listops-short": f"{short} --train 20000",
            "listops-curriculum": f"{short} --train 400000 --train_longer_than 3",
            "text": f"--imdb {self.data / 'imdb'} --length 1024 --partial",
            "retrieval": f"--release {self.data / 'lra' / 'retrieval'} --partial",
            "image": f"--cifar {self.data / 'lra'} --partial",
            "pathfinder": "--train 1600 --validation 200 --test 200",
            "pathfinder-6": "--train 100000 --validation 500 --test 500 --contour 6 --no_distractors",
        }
        jobs = [
            job(f"prepare-{name}", "experiments/lra/prepare.py", name.split("-")[0], flags, "--out", place / name)
            for name, flags in wanted.items()
            if not (place / name / "manifest.json").exists()
        ]
        for one in jobs:  # each uses all cores itself
            self.run([one])

    def listops(self) -> None:
        """ListOps at the Long Range Arena's sizes: the paper's recipe, validated every 250 steps."""
        self.run([self._train("listops", "listops", "nystrom", "--every 250 --baselines")])

    def listops_others(self) -> None:
        """Softmax and linear on it for a fifth of the steps, beside nystrom for as many."""
        self.run([
            self._train("listops", "listops", name, "--steps 1000 --every 250 --baselines")
            for name in ("nystrom", "softmax", "linear")
        ])  # fmt: skip

    def short(self) -> None:
        """Every attention on short expressions, with the convolution and without."""
        self.run([
            self._short(name, conv, "--seed 0", "paper")
            for conv in (0, TAPS)
            for name in sorted(ATTENTIONS, key=lambda name: name not in ("softmax", "nystrom"))
        ])  # fmt: skip

    def tracks(self) -> None:
        """The three tracks on them, at as many steps in all."""
        self.run([
            self._short(name, 0, f"--seed {SEEDS}", track)
            for track in ("paper", "modern", "spt")
            for name in ("nystrom", "softmax")
        ])  # fmt: skip

    def curriculum(self) -> None:
        """Whether more is learned of them than simple rules say: deeper, rotary positions, and training expressions of
        any length, so that few levels come with many: an hour a core each.
        """
        flags = (
            "--conv 0 --steps 10000 --every 500 --batch_size 128 --lr 1e-3 --warmup 0.02 --baselines "
            "--set model.max_seq_len=256 --set model.positions=rotary --set model.position_offset=2 "
            "--set model.num_layers=6 --set model.dropout_prob=0 "
            "--set pretraining_setting.validate_batches_per_epoch=16"
        )
        self.run([
            self._train("listops", "listops-curriculum", name, f"{flags} {widths}")
            for name, widths in (("softmax", ""), ("nystrom", "--set model.attn_type.num_landmarks=32"))
        ])  # fmt: skip

    def others(self) -> None:
        """Text at 1,024 bytes, a part of CIFAR, pairs of papers, and hard paths."""
        text = (
            "--steps 1000 --every 250 --length 1024 --set pretraining_setting.validate_batches_per_epoch=20 --baselines"
        )
        self.run([
            *(self._train("text", "text", name, text) for name in ("nystrom", "softmax")),
            *(
                self._train("image", "image", name, "--steps 500 --every 100 --batch_size 64 --baselines")
                for name in ("nystrom", "softmax")
            ),
            self._train("retrieval", "retrieval", "nystrom", "--steps 60 --every 20 --batch_size 8 --baselines"),
            self._train("pathfinder", "pathfinder", "nystrom", "--steps 100 --every 50 --baselines"),
        ])  # fmt: skip

    def paths(self) -> None:
        """Paths of 6 dashes without distractors, ten passes over 100,000: some seven hours on a core."""
        flags = "--steps 31250 --every 1562 --batch_size 32 --lr 5e-4 --warmup 0.05 --baselines"
        self.run([self._train("pathfinder", "pathfinder-6", "nystrom", flags)])

    def _short(self, name: str, conv: int, seeds: str, track: str) -> Job:
        narrower = " ".join(f"--set model.attn_type.{each}" for each in SHORT.get(name, ()))
        flags = f"--conv {conv} --track {track} --steps {STEPS} --every {EVERY} --lr 1e-3 --baselines {seeds}"
        widths = f"--set model.max_seq_len=256 {narrower}"
        return self._train("listops", "listops-short", name, f"{flags} {widths}", f"-{track}-{conv}")

    def _train(self, task: str, data: str, name: str, flags: str, more: str = "") -> Job:
        folder = self.out / data
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / "experiments" / "lra" / task / "config.json", folder / "config.json")
        if self.rehearse:
            flags = re.sub(r"--(steps|every) \d+", "", flags) + " --train_rows 64 --steps 4 --every 2"
        place = ("--task", task, "--model", folder, "--data", self.out / "data" / data)
        steps = "" if "--steps" in flags else f"--steps {STEPS}"
        # In float32 on every processor: models as narrow as these gain nothing from bfloat16 on one.
        precise = "--set model.mixed_precision=false"
        return job(f"{data}-{name}{more}", "code/run_lra.py", *place, "--attention", name, f"{steps} {flags} {precise}")


STAGES = ("prepared", "listops_others", "short", "tracks", "curriculum", "others", "listops", "paths")


if __name__ == "__main__":
    run_stages(__doc__, STAGES, Stages, "folder with imdb and lra", Path("runs/lra"))
