"""The demonstration: from the docstrings of this machine to four trained encoders, what they cost, and a page."""

import json
import logging
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from nystromformer.config import ExperimentConfig, load_config
from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.errors import UserError
from nystromformer.files.checked_json import write_checked
from nystromformer.files.paths import EXPERIMENTS, PROJECT
from nystromformer.files.writing import write_text
from nystromformer.machine import machine_facts
from nystromformer.report.cost import Cost, CostSettings, kept_or_measured
from nystromformer.report.cost_report import cost_findings, cost_table, draw_cost, what_is_measured
from nystromformer.report.curves import draw_curves, read_curve
from nystromformer.report.page import PageFigures, write_page
from nystromformer.runs.figures import Spread, power_note, smallest_difference
from nystromformer.tables import Column, aligned
from nystromformer.tasks.experiment.folder import open_experiment, read_experiment
from nystromformer.tasks.experiment.opening import OpenedScoring, open_scoring, run_device
from nystromformer.tasks.pretraining.guess import Guess, top_guesses
from nystromformer.tasks.pretraining.validation import RESULTS, Validation, load_checkpoint, read_validation
from nystromformer.training import Group

logger = logging.getLogger(__name__)

RESULTS_FILE = "results.json"
KINDS = ("nystrom-demo-conv", "near_far-demo-noconv", "softmax-demo-noconv", "nystrom-demo-noconv")
"""The shipped experiments that the demo runs: attentions without the convolution, and Nyström's with it. The first one
is shown at work."""
WHAT_DIFFERS = (
    "with softmax a token attends to every other token; with near_far to nearby and some selected tokens, and to "
    "means of the others; with nystrom to all tokens by means of segments. -conv adds a convolution over the values "
    "of neighbouring tokens."
)
SENTENCES = (
    "Return a new array with the same shape and <mask> as a given array.",
    "If True, the input is <mask> in place.",
    "Raises a ValueError if the <mask> is not valid.",
)
GOAL = 3.0
"""The demo's aim: this many times the accuracy of always guessing the most frequent token."""
COST = CostSettings()
QUICK_COST = CostSettings(lengths=(512, 1024, 2048), seconds=10, repeats=3)


@dataclass(frozen=True)
class DemoResult:
    """What the demo ends with."""

    summary: str
    pictures: tuple[Path, ...]
    page: Path


def run_demo(folder: Path, quick: bool = False) -> DemoResult:
    """Prepare text, train, validate, measure, draw; every part that is done already is kept.

    Args:
        quick: a few steps on little text: shows that everything runs, learns nothing.

    Raises:
        UserError: a part failed, or the folder holds a demo with other settings.
    """
    started = time.monotonic()
    dataset = folder / "dataset"
    runs = _write_configs(folder, quick)
    model = load_config(runs[0] / "config.json").model
    corpora = folder / "corpora"
    # More text than the steps will read would only cost time.
    limit = "1" if quick else "10"
    _command(
        "data-preprocessing/docstrings/preprocess.py", "--out", corpora / "docstrings/unified", "--limit_mb", limit
    )
    flags = ["--length", str(model.max_seq_len), "--vocab_size", str(model.vocab_size), "--validation", "0.08"]
    words: list[str | Path] = ["--corpora", corpora, "--corpus", "docstrings", "--tokenizer", "train", *flags]
    _command("data-preprocessing/preprocess_data_512.py", "--out", dataset, *words)
    for run in runs:
        _command("code/run_pretrain.py", "--model", run, "--dataset", dataset)
    for run in runs:
        _command("code/run_validation.py", "--model", run, "--dataset", dataset, "--rows", "500", "--baselines")
    first = open_experiment(runs[0])
    opened = open_scoring(first, dataset, run_device(first, "auto", Group()), "last")
    cost = kept_or_measured(folder / RESULTS_FILE, opened, QUICK_COST if quick else COST)
    return _report(folder, quick, runs, opened, cost, time.monotonic() - started)


def _write_configs(folder: Path, quick: bool) -> list[Path]:
    """The experiment folders, of the shipped configs."""
    folders = []
    for name in KINDS:
        config = _shipped_config(name)
        if quick:
            config["pretraining_setting"] |= {"epoch": 1, "batches_per_epoch": 20, "validate_batches_per_epoch": 1}
        path = folder / name / "config.json"
        content = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        if path.exists() and path.read_text(encoding="utf-8") != content:
            raise UserError(
                f"{path}: differs from what this demo would write, so it belongs to another demo or was edited. Remove "
                "it with `make clean`, or use another folder with --out."
            )
        write_text(path, content)
        folders.append(path.parent)
    return folders


def _shipped_config(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((EXPERIMENTS / name / "config.json").read_text(encoding="utf-8"))
    config.pop("$schema", None)  # its relative path holds in its own folder only
    return config


def _command(*words: str | Path) -> None:
    """Run one of the project's own commands, as a user would."""
    script, *flags = (str(word) for word in words)
    logger.info("$ python %s", shlex.join([script, *flags]))
    # In a session of its own: Ctrl-C reaches it once, through this process, and it writes its checkpoint.
    process = subprocess.Popen([sys.executable, str(PROJECT / script), *flags], start_new_session=True)
    status = _wait_and_forward_signals(process)
    if status in _TERMINATED:
        sys.exit(128 + signal.SIGTERM)
    if status in _INTERRUPTED:
        raise KeyboardInterrupt
    if status:
        raise UserError(
            f"{script} failed with status {status}; its output above states the reason. Run the same demo again to "
            "resume from there."
        )


def _wait_and_forward_signals(process: subprocess.Popen[bytes]) -> int:
    def forward(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TERMINATED = {128 + signal.SIGTERM, -signal.SIGTERM, 128 + signal.SIGHUP, -signal.SIGHUP}
_INTERRUPTED = {128 + signal.SIGINT, -signal.SIGINT}


def _report(
    folder: Path, quick: bool, runs: list[Path], opened: OpenedScoring, cost: Cost, seconds: float
) -> DemoResult:
    results = {run.name: read_validation(read_experiment(run).checkpoints / RESULTS) for run in runs}
    shown = results[KINDS[0]]
    pictures = curves, cost_curves = folder / "curves.png", folder / "cost.png"
    page = folder / "report.html"
    draw_curves([read_curve(run) for run in runs], curves, shown.baselines)
    draw_cost(cost, cost_curves)
    guesses = _guesses(opened)
    learned = PageFigures(_results(results, shown.baselines), _differences(results, shown.baselines), curves)
    costs = PageFigures(cost_table(cost), cost_findings(cost), cost_curves)
    write_checked(
        folder / RESULTS_FILE,
        {
            "machine": machine_facts(),
            "seconds": round(seconds),
            "runs": {name: asdict(r) for name, r in results.items()},
            "cost": asdict(cost),
        },
    )
    write_page(page, learned, costs, what_is_measured(cost), guesses, _facts(opened.config, shown, seconds))
    lines = [*_summary(learned, guesses, shown, quick), *_why(costs)]
    return DemoResult("\n".join(lines), pictures, page)


def _guesses(opened: OpenedScoring) -> dict[str, list[Guess]]:
    dataset = opened.dataset
    model, _ = load_checkpoint(opened.experiment, opened.checkpoints[-1], opened.device)
    tokenizer = load_tokenizer(dataset.tokenizer_folder)
    return {sentence: top_guesses(model, tokenizer, dataset.special, sentence) for sentence in SENTENCES}


def _results(results: dict[str, Validation], baselines: dict[str, float]) -> list[list[str]]:
    frequent = baselines["most_frequent_token"]
    rows = [["", "masked-token accuracy", "relative to the most frequent token", "loss"]]
    for name, result in results.items():
        metrics = result.scores[-1].metrics
        accuracy = metrics["mlm_accuracy"]
        rows.append([name, f"{100 * accuracy:.2f} %", f"{accuracy / frequent:.2f}", f"{metrics['loss']:.3f}"])
    for name, accuracy in baselines.items():
        rows.append([name.replace("_", " "), f"{100 * accuracy:.2f} %", f"{accuracy / frequent:.2f}", ""])
    return rows


def _differences(results: Mapping[str, Validation], baselines: Mapping[str, float]) -> list[str]:
    """Who rises above the bigram table, what differs, and by how much: pairs that differ in one thing."""
    accuracies = {name: result.scores[-1].metrics["mlm_accuracy"] for name, result in results.items()}

    def points(more: str, less: str) -> str:
        return f"{100 * (accuracies[more] - accuracies[less]):+.2f}"

    bigram = baselines["bigram_table"]
    above = [name for name in KINDS if accuracies[name] > bigram]
    conv, near_far, softmax, nystrom = KINDS
    reached = [(Spread(accuracy, None), 1) for accuracy in accuracies.values()]
    tokens = results[conv].masked_tokens
    return [
        f"Above the bigram table ({100 * bigram:.2f} %): {', '.join(above) or 'none'}.",
        f"What differs: {WHAT_DIFFERS}",
        f"Relative to softmax, without the convolution: near_far {points(near_far, softmax)} points of masked-token "
        f"accuracy, nystrom {points(nystrom, softmax)}.",
        f"The convolution adds {points(conv, nystrom)} points to nystrom.",
        power_note({"": smallest_difference("mlm_accuracy", reached, tokens)}).replace("examples", "masked tokens"),
    ]


def _facts(config: ExperimentConfig, result: Validation, seconds: float) -> dict[str, str]:
    model, setting = config.model, config.pretraining_setting
    return {
        "encoder": f"{model.num_layers} layers, width {model.transformer_dim}, {model.num_head} heads",
        "attention": f"Nyström with {model.num_landmarks} landmarks, with a convolution over {model.conv_kernel_size} "
        "tokens of the values and without it; near_far and softmax without it; rotary positions",
        "training": f"{setting.num_steps} steps of {setting.batch_size} rows of {model.max_seq_len} tokens",
        "validation": f"{result.rows} rows of packages that are not in the training text",
        "this command": f"{seconds:.0f} s (without parts that were already finished)",
    }


def _summary(
    learned: PageFigures, guesses: Mapping[str, Sequence[Guess]], result: Validation, quick: bool
) -> list[str]:
    """How the encoders did, in lines for a terminal."""
    lines = ["", *_columns(learned.table), "", *learned.findings, ""]
    for sentence, tokens in guesses.items():
        lines.append(f"{sentence}\n    " + ", ".join(f"{g.token} {100 * g.probability:.0f} %" for g in tokens))
    accuracy = result.scores[-1].metrics["mlm_accuracy"]
    times, bigram = accuracy / result.baselines["most_frequent_token"], result.baselines["bigram_table"]
    if quick:
        return [*lines, "", "A quick run: too few steps to learn from. `make demo` is the real one."]
    reached = "reached" if times >= GOAL and accuracy > bigram else "missed"
    return [
        *lines,
        "",
        f"Goal ({GOAL:.0f} times the accuracy of the most frequent token, and above the bigram table): {reached}, "
        f"with {times:.2f} times and {100 * accuracy:.2f} % against {100 * bigram:.2f} %.",
    ]


def _why(costs: PageFigures) -> list[str]:
    """What the method is for, in lines for a terminal."""
    return [
        "",
        "Time and peak memory of Nyström attention: a forward of the trained encoder (no gradients, one row), and of "
        "encoders with softmax and the same weights:",
        "",
        *_columns(costs.table),
        "",
        *costs.findings,
    ]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    first, *others = rows[0]
    return aligned([Column(first, is_text=True), *map(Column, others)], rows[1:])
