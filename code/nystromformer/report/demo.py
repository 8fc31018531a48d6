"""The demonstration: from the docstrings of this machine to four trained encoders, a picture and a page."""

import base64
import html
import json
import logging
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from nystromformer.config import load_config
from nystromformer.errors import UserError
from nystromformer.files.paths import EXPERIMENTS, PROJECT
from nystromformer.files.writing import write_json, write_text
from nystromformer.machine import machine_facts
from nystromformer.report.curves import draw_curves, read_curve
from nystromformer.runs.figures import Spread, power_note, smallest_difference
from nystromformer.tables import markdown
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.pretraining.validation import RESULTS, Validation, read_validation

logger = logging.getLogger(__name__)

KINDS = ("nystrom-demo-conv", "near_far-demo-noconv", "softmax-demo-noconv", "nystrom-demo-noconv")
"""The shipped experiments that the demo runs: attentions without the convolution, and Nyström's with it."""
# Where a window is narrow the pictures and the tables scroll in their own boxes.
_STYLE = """
:root { background: #ffffff; color: #1a1a1a; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; }
table { border-collapse: collapse; }
th, td { padding: .3rem .9rem; border-bottom: 1px solid #8884; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.box { overflow-x: auto; margin: 1rem 0; }
.box img { display: block; width: 100%; min-width: 56rem; }
"""


def run_demo(folder: Path, quick: bool = False) -> str:
    """Prepare text, train, validate, draw; every part that is done already is kept. Returns what to print.

    Args:
        quick: a few steps on little text: shows that everything runs, learns nothing.
    """
    started = time.monotonic()
    dataset, corpora = folder / "dataset", folder / "corpora"
    runs = _write_configs(folder, quick)
    model = load_config(runs[0] / "config.json").model
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
    return _report(folder, quick, runs, started)


def _write_configs(folder: Path, quick: bool) -> list[Path]:
    """The experiment folders, of the shipped configs."""
    folders = []
    for name in KINDS:
        config = json.loads((EXPERIMENTS / name / "config.json").read_text(encoding="utf-8"))
        config.pop("$schema", None)  # its relative path holds in its own folder only
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


def _command(*words: str | Path) -> None:
    """Run one of the project's own commands, as a user would."""
    script, *flags = map(str, words)
    logger.info("$ python %s", shlex.join([script, *flags]))
    # In a session of its own: Ctrl-C reaches it once, through this process, and it writes its checkpoint.
    process = subprocess.Popen([sys.executable, str(PROJECT / script), *flags], start_new_session=True)
    stops = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda sent, frame: process.send_signal(sent)) for number in stops}
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in stops:
        if status in (-number, 128 + number):
            sys.exit(128 + number)
    if status:
        raise UserError(
            f"{script} failed with status {status}; its output above states the reason. Run the same demo again to "
            "resume from there."
        )


def _report(folder: Path, quick: bool, runs: Sequence[Path], started: float) -> str:
    results = {run.name: read_validation(open_experiment(run).checkpoints / RESULTS) for run in runs}
    curves, page = folder / "curves.png", folder / "report.html"
    draw_curves([read_curve(run) for run in runs], curves, results[KINDS[0]].baselines)
    scores, power = _scores(results), say_power(results)
    facts = {"machine": machine_facts(), "seconds": round(time.monotonic() - started)}
    write_json(folder / "results.json", facts | {"runs": {name: asdict(each) for name, each in results.items()}})
    write_text(page, render_page(scores, power, curves))
    lines = [f"{markdown(list(scores), scores.to_numpy().tolist())}\n", f"{power}\n"]
    if quick:
        lines.append("A quick run: too few steps to learn from. `make demo` is the real one.\n")
    return "\n".join([*lines, f"- picture: {curves}", f"- report: {page}"])


def _scores(results: Mapping[str, Validation]) -> pd.DataFrame:
    """A row for each encoder and baseline."""
    baselines = results[KINDS[0]].baselines
    scored = {name: result.scores[-1].metrics for name, result in results.items()}
    figures = [(name, metrics["mlm_accuracy"], f"{metrics['loss']:.3f}") for name, metrics in scored.items()]
    figures += [(name.replace("_", " "), accuracy, "") for name, accuracy in baselines.items()]
    frequent = baselines["most_frequent_token"]
    rows = [[name, f"{100 * x:.2f} %", f"{x / frequent:.2f}", loss] for name, x, loss in figures]
    return pd.DataFrame(rows, columns=["", "masked-token accuracy", "relative to the most frequent token", "loss"])


def say_power(results: Mapping[str, Validation]) -> str:
    """The smallest difference that the demo could have shown."""
    reached = [(Spread(each.scores[-1].metrics["mlm_accuracy"], None), 1) for each in results.values()]
    tokens = results[KINDS[0]].masked_tokens
    return power_note({"": smallest_difference("mlm_accuracy", reached, tokens)}).replace("examples", "masked tokens")


def render_page(scores: pd.DataFrame, power: str, curves: Path) -> str:
    """The report, a page that needs nothing beside it."""
    picture = base64.b64encode(curves.read_bytes()).decode("ascii")
    table = scores.to_html(index=False, border=0)
    body = [
        "<h1>A Nyströmformer on the docstrings of this machine</h1>",
        "<p>Four small encoders of the same size were trained for the same number of steps to fill in masked tokens of "
        "English docstrings: with softmax, near_far and Nyström attention, and with Nyström attention and a "
        "convolution over the values. They were scored on packages that are not in the training text.</p>",
        f'<div class="box">{table}</div><p>{html.escape(power)}</p>',
        f'<div class="box"><img alt="training and validation curves" src="data:image/png;base64,{picture}"></div>',
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Nyströmformer demo</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n<body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )
