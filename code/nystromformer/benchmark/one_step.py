"""A finished run to measure predictions with, where what it learned does not matter."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nystromformer.files.paths import EXPERIMENTS, PROJECT
from nystromformer.files.writing import write_json, write_text
from nystromformer.runs.record import find_runs

VOCABULARY = 4096


def run_of_one_step(folder: Path, length: int, texts: Sequence[str]) -> Path:
    """The folder of a run of BERT-small's size (4 layers, width 512: nystrom-small-conv) in float32, after one step.

    Args:
        folder: gets the experiment and a table.
        length: tokens that the model reads at most.
        texts: what its tokenizer is trained on.
    """
    experiment = folder / f"experiment-{length}"
    experiment.mkdir()
    config = json.loads((EXPERIMENTS / "nystrom-small-conv" / "config.json").read_text())
    config["model"] |= {"max_seq_len": length, "vocab_size": VOCABULARY, "mixed_precision": False}
    config["gpu_setting"]["inst_per_gpu"] = 1
    write_json(experiment / "config.json", config)
    table = folder / "table.jsonl"
    rows = [{"text": text, "label": "ab"[number % 2]} for number, text in enumerate(texts)]
    write_text(table, "".join(json.dumps(row) + "\n" for row in rows))
    words = f"code/run_classify.py --from_scratch --vocab_size {VOCABULARY} --text text --label label --epoch 1"
    words += f" --length {length} --lr 1e-4"
    flags = ["--train_rows", "2", "--batch_size", "2", "--train", str(table), "--model", str(experiment)]
    subprocess.run([sys.executable, *words.split(), *flags], cwd=PROJECT, check=True)
    (run,) = find_runs(experiment / "model", "classify")
    return run.folder
