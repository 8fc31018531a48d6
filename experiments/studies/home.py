"""Softmax switched to Nyström attention in transformers, longer inputs by three ways, and short rows before long ones.

`python experiments/studies/home.py run [STAGE ...]`, then `collect`. In the folder `tiny` beside --out lies what
experiments/studies/tiny.py has made.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nystromformer import studies
from nystromformer.files.writing import write_json
from nystromformer.report.curves import draw_curves, read_curve
from nystromformer.studies import Job, Stages, job
from nystromformer.tables import markdown
from nystromformer.training.log import read_log

RESULTS = studies.RESULTS / "home"
TOKENS = 8192
"""Of a step."""
ATTEND = ("softmax-128", "nystrom-128", "softmax-128-conv", "nystrom-128-conv", "nystrom-128-landmarks-64")
"""Runs whose curves are drawn, once they have ended."""
CURRICULA = ("curriculum", "long-only")
EVERY_SECONDS, SMOOTHED = 200, 50
Rows = list[dict[str, Any]]
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
WAYS = ("repeat", "continue", "interpolate")
EXTENDED = 100
"""Steps after an extension."""


class Home(Stages):
    """The runs."""

    study = "home"

    def rows(self) -> None:
        """The corpora of the study tiny in rows of other lengths."""
        corpora, tokenizer = self._tiny / "corpora", self._tiny / "rows" / "tokenizer"
        lengths = sorted({SHORT, LONG, *CURRICULUM} - {MIDDLE})
        self.run(studies.rows_of_text(f"rows-{each}", corpora, self._rows(each), each, tokenizer) for each in lengths)

    def switch(self) -> None:
        """A softmax encoder, and in transformers switched."""
        exported, source, rows = self.out / "exported", self.out / SOFTMAX, self._rows(SHORT)
        self.run([self._attending(SOFTMAX, {"attn_type": "softmax", "num_landmarks": None})])
        flags = ("--format hf --checkpoint last --code transformers --out", exported)
        self.run([job("export", "code/run_export.py", "export", source, *flags, result=exported)])
        steps = f"--trained {SOFTMAX_EPOCHS * SOFTMAX_STEPS} {'--steps 2' if self.rehearse else ''}"
        jobs = []
        for name in SWITCHED:
            out = self.out / f"switch-{name}.json"
            place = (exported, "--experiment", source, "--dataset", rows, "--attention", name, steps, "--out", out)
            jobs.append(job(f"switch-{name}", "experiments/studies/home_switch.py", *place, result=out))
        self.run(jobs)
        errors = self.out / "approximation"
        parts = "--parts errors --rows 32 --landmarks 8,16,32,64 --repeats 1 --threads 1"
        words = ("approximation", "--model", source, "--dataset", rows, "--out", errors, parts)
        self.run([job("approximation", "code/run_benchmark.py", *words, result=errors / "approximation.json")])

    def attend(self) -> None:
        """Whether Nyström attention learns to attend where softmax does, without a convolution's help."""
        self.run([self._attending("nystrom-128", {"num_landmarks": LANDMARKS})])

    def extension(self) -> None:
        """128 to 512 tokens, and 512 to 4096, each by three ways and from initial weights."""
        self.run([self._pretraining("start-128", SHORT, 1000)])
        sources = {
            MIDDLE: self.out / "start-128" / "model" / "cp-0000.model",
            LONG: self._tiny / "seed0" / NYSTROM / "model" / f"cp-{LAST:04d}.model",
        }
        jobs = []
        for length, source in sources.items():
            for way in WAYS:
                lossy = {"from_cp_resize": "lossy"} if way == "interpolate" else {}
                begin = {"from_cp": str(source), "from_cp_positions": way, **lossy}
                jobs.append(self._pretraining(f"{length}-{way}", length, EXTENDED, **begin))
            jobs.append(self._pretraining(f"{length}-scratch", length, EXTENDED))
        self.run(jobs)

    def curriculum(self) -> None:
        """Short rows before long ones, and long ones alone for as many tokens."""
        *before, (longest, steps) = CURRICULUM.items()
        stages = [
            self._steps_of(length, count)
            | {"max_seq_len": length, "data_folder": str(self._rows(length)), "inst_per_gpu": TOKENS // length}
            | ({"num_landmarks": 32} if length == SHORT else {})
            for length, count in before
        ]
        staged = self._pretraining("curriculum", longest, steps, setting={"stages": stages})
        self.run([staged, self._pretraining("long-only", longest, sum(CURRICULUM.values()))])

    def attend_conv(self) -> None:
        """Both with the convolution, which sees what is near; and Nyström attention without it, with more landmarks."""
        conv = {"conv_kernel_size": 33}
        kinds = {
            "nystrom-128-conv": {"num_landmarks": LANDMARKS, **conv},
            "softmax-128-conv": {"attn_type": "softmax", "num_landmarks": None, **conv},
            "nystrom-128-landmarks-64": {"num_landmarks": SHORT // 2},
        }
        self.run(self._attending(name, network) for name, network in kinds.items())

    @property
    def _tiny(self) -> Path:
        return self.out.parent / "tiny"

    def _rows(self, length: int) -> Path:
        return self._tiny / "rows" if length == MIDDLE else self.out / f"rows-{length}"

    def _attending(self, name: str, network: Mapping[str, Any]) -> Job:
        """Of an encoder without dropout that learns masked tokens of short rows for long; without the convolution, too,
        unless `network` has it."""
        learning = {"objectives": ["mlm"], "learning_rate": 2e-3, "epoch": SOFTMAX_EPOCHS, "batches_per_report": 50}
        own = {"conv_kernel_size": None, "dropout_prob": 0.0, **network}
        return self._pretraining(name, SHORT, SOFTMAX_STEPS, own, learning)

    def _pretraining(
        self,
        name: str,
        length: int,
        steps: int,
        network: Mapping[str, Any] = {},
        setting: Mapping[str, Any] = {},
        **more: Any,
    ) -> Job:
        """The tiny encoder at a length, with steps of equally many tokens, validated often.

        Args:
            network: keys of the section model that differ; None takes one away.
            setting: keys of pretraining_setting that differ.
            more: keys at the top of the config.
        """
        reports = {"batches_per_report": 1, "validate_batches_per_epoch": 200_000 // TOKENS}
        folder = studies.write_experiment(
            self.out / name,
            NYSTROM,
            {"max_seq_len": length, **network},
            self._steps_of(length, steps) | reports | dict(setting),
            gpu_setting={"inst_per_gpu": TOKENS // length},
            **more,
        )
        return job(name, "code/run_pretrain.py", "--model", folder, "--dataset", self._rows(length))

    def _steps_of(self, length: int, count: int) -> dict[str, Any]:
        return {"epoch": 1, "batches_per_epoch": 4 if self.rehearse else count, "batch_size": TOKENS // length}


def collect(runs: Path = Path("runs/home")) -> None:
    """Write home.json, home.md and attend.png; where there are no runs, the page of the earlier data."""
    if runs.is_dir():
        data = {
            "began": studies.read_stages(runs),
            "switched": switches(runs),
            "pretrained": pretrainings(runs),
            "approximation": errors(runs),
            "by_seconds": losses_by_seconds(runs),
        }
        write_json(RESULTS / "home.json", data)
    data = studies.read_json(RESULTS / "home.json")
    tables = [
        markdown(
            ["attention", "steps of training with it", "loss of masked tokens", "right, %"],
            [[row["attention"], str(row["steps"]), f"{row['mlm_loss']:.3f}", f"{100 * row['mlm_accuracy']:.1f}"]
             for row in data["switched"]],
        ),
        markdown(
            ["run", "steps", "first loss", "last loss", "validation loss", "right, %", "seconds of steps"],
            [[row["run"], str(row["steps"]), f"{row['first_loss']:.3f}", f"{row['last_loss']:.3f}",
              f"{row['validation']:.3f}", f"{100 * row['right']:.1f}", f"{row['training_seconds']:.0f}"]
             for row in data["pretrained"]],
        ),
        markdown(
            ["attention in the softmax encoder's place", "width", "error of its output"],
            [[row["attention"], str(row["width"] or ""), f"{row['error']:.3f}"]
             for row in data["approximation"].get("rows", [])],
        ),
    ]  # fmt: skip
    if rows := data["by_seconds"]:
        lines = [[f"{row['seconds']:.0f}", *(f"{row[name]:.3f}" for name in CURRICULA)] for row in rows]
        tables.append(markdown(["seconds of steps", *(f"{name}: training loss" for name in CURRICULA)], lines))
    ended = {row["run"]: row["validations"] for row in data["pretrained"] if row["steps"] == row["of_steps"]}
    if names := [name for name in ATTEND if name in ended]:
        # They have validations after the same steps.
        lines = [
            [f"{of_step[0]['step']}", *(f"{one['loss']:.3f}, {100 * one['right']:.1f} %" for one in of_step)]
            for of_step in zip(*(ended[name] for name in names), strict=True)
        ]
        tables.append(markdown(["steps", *(f"{name}: validation loss, right" for name in names)], lines))
        if runs.is_dir():
            draw_curves([read_curve(runs / name) for name in names], RESULTS / "attend.png")
    studies.write_page(RESULTS / "home.md", *tables)


def switches(runs: Path) -> Rows:
    """Validation loss of a softmax encoder with other attentions, and after training with them."""
    rows = [row for path in sorted(runs.glob("switch-*.json")) for row in studies.read_json(path)["rows"]]
    return sorted(rows, key=lambda row: row["attention"] != "softmax")


def pretrainings(runs: Path) -> Rows:
    """Of each pretraining here: the loss of its first step, before any update, of its last, and on validation rows."""
    rows = []
    for folder in sorted(path.parent for path in runs.glob("*/config.json")):
        log = folder / "model" / "log.jsonl"
        records = read_log(log) if log.is_file() else []
        steps = [one for one in records if one["type"] == "train"]
        scores = [one for one in records if one["type"] == "validation"]
        if scores:
            rows.append({
                "run": folder.name,
                "steps": scores[-1]["step"],
                "of_steps": records[0]["num_steps"],
                "first_loss": _loss(steps[0]),
                "last_loss": _loss(steps[-1]),
                "validation": _loss(scores[-1]),
                "right": scores[-1]["mlm_accuracy"],
                "training_seconds": losses_of(folder)[-1][0],
                "validations": [
                    {"step": one["step"], "loss": _loss(one), "right": one["mlm_accuracy"]} for one in scores
                ],
            })  # fmt: skip
    return rows


def _loss(record: dict[str, Any]) -> float:
    """Of masked tokens; of a run with one objective it is the whole loss."""
    return record.get("mlm_loss", record["loss"])


def losses_of(folder: Path) -> list[tuple[float, float]]:
    """Of each report on training: the seconds of all steps until then, by the speed that each report tells, and the
    loss of masked tokens. The phases of a curriculum, which have logs of their own, come one after another."""
    seconds, points = 0.0, []
    for path in (*sorted((folder / "model").glob("stage-*/log.jsonl")), folder / "model" / "log.jsonl"):
        step = 0
        for one in read_log(path):
            if one["type"] == "train":
                seconds += (one["step"] - step) * TOKENS / one["tokens_per_second"]
                step = one["step"]
                points.append((seconds, _loss(one)))
    return points


def losses_by_seconds(runs: Path) -> Rows:
    """Short rows before long ones, and long ones alone: the training loss of masked tokens, the mean of the last
    `SMOOTHED` steps, after equal times; the last one is when the first of the two has ended."""
    if not all((runs / name / "model" / "log.jsonl").is_file() for name in CURRICULA):
        return []
    curves = {name: losses_of(runs / name) for name in CURRICULA}
    end = min(points[-1][0] for points in curves.values())
    rows = []
    for at in (*range(EVERY_SECONDS, int(end), EVERY_SECONDS), end):
        losses = {name: [loss for seconds, loss in points if seconds <= at] for name, points in curves.items()}
        rows.append({"seconds": at} | {name: sum(found[-SMOOTHED:]) / SMOOTHED for name, found in losses.items()})
    return rows


def errors(runs: Path) -> dict[str, Any]:
    """How far each attention is from the encoder's own softmax, the mean over its layers; without times, as other work
    ran beside."""
    path = runs / "approximation" / "approximation.json"
    if not path.is_file():
        return {}
    data = studies.read_json(path)
    layers: dict[tuple[str, int | None], list[float]] = {}
    for one in data["output_errors"]:
        if one["layer"] != "random":
            layers.setdefault((one["method"], one["width"]), []).append(one["output_error"])
    rows = [
        {"attention": name, "width": width, "error": sum(each) / len(each)} for (name, width), each in layers.items()
    ]
    return {"machine": data["machine"], "validation_rows": data["settings"]["rows"], "rows": rows}


if __name__ == "__main__":
    studies.run_commands(studies.command_of(Home), collect)
