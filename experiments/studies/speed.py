"""The README's picture, and time of the attention inside transformers and of an ONNX file.

python experiments/studies/speed.py picture                # docs/attention-time.png, from results/attention-cpu
python experiments/studies/speed.py exports --model RUN    # results/home/speed.json; alone on a machine
"""

import copy
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import nystromformer
from nystromformer.benchmark.timing import repeats_at, time_side_by_side
from nystromformer.command_line import cli
from nystromformer.files.paths import PROJECT
from nystromformer.files.writing import write_figure, write_json
from nystromformer.interop.experiments.programs import Exported
from nystromformer.machine import machine_facts

RESULTS = PROJECT / "results"
LENGTHS, REPEATS = (512, 1024, 2048, 4096, 8192), 15
REPLACED = {"softmax (SDPA)": "sdpa", "nystrom, 64 strided": "strided-64", "nystrom, 64 segment means": "means-64"}
LINES = {
    # Method: name, colour, width, the side of its last point on which the name stands, and by how many points higher.
    "softmax, written out": ("softmax, written out", "#8c4a1f", 1.8, "right", 5),
    "softmax (SDPA)": ("softmax, PyTorch's fused (SDPA)", "#e0701b", 1.8, "right", 5),
    "nystrom-attention": ("nystrom-attention", "#8b6db3", 1.5, "left", 5),
    "transformers": ("transformers", "#5d9e57", 1.5, "left", 3),
    "authors' formulation": ("the authors' formulation", "#777777", 1.5, "left", -10),
    "nystrom": ("this project", "#1f5fa8", 3.0, "left", -5),
}


def picture(out: Annotated[Path, typer.Option(help="PNG file.")] = PROJECT / "docs" / "attention-time.png") -> None:
    """Draw forward and backward, ms over tokens: both softmaxes and each Nyström, without a mask."""
    from matplotlib.figure import Figure

    data = json.loads((RESULTS / "attention-cpu" / "attention.json").read_text())
    figure = Figure(figsize=(8.6, 4.6), layout="constrained")
    axis = figure.subplots()
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    for method, (name, colour, width, side, above) in LINES.items():
        rows = [row for row in data["records"] if row["method"] == method]
        lengths, times = [row["length"] for row in rows], [row["both"]["median"] for row in rows]
        axis.loglog(lengths, times, "o-", color=colour, linewidth=width, markersize=4)
        place = {"xytext": (7 if side == "left" else -8, above), "textcoords": "offset points", "va": "center"}
        weight = "bold" if method == "nystrom" else "normal"
        axis.annotate(name, (lengths[-1], times[-1]), ha=side, fontsize=10.5, fontweight=weight, color=colour, **place)
    lengths = sorted({row["length"] for row in data["records"]})
    axis.set_xlim(lengths[0] / 1.15, lengths[-1] * 3)
    axis.set_xticks(lengths, map(str, lengths))
    axis.minorticks_off()
    axis.set_yticks([10, 100, 1000], ["10 ms", "100 ms", "1 s"])
    axis.set_xlabel("tokens")
    facts = data["machine"]
    axis.set_title(
        "Attention alone, forward and backward, 12 heads of 64. Nyström: 64 landmarks, with the convolution.\n"
        f"{facts['processor']}, {facts['device'].upper()}, float32, torch {facts['torch'].split('+')[0]}, "
        f"{facts['date']}. No GPU was measured.",
        fontsize=10,
        loc="left",
    )
    write_figure(out, figure, dpi=180)


def exports(model: Annotated[Path, typer.Option(help="A pretrained experiment, such as runs/tiny.")]) -> None:
    """Time attention in softmax's place in a RoBERTa, and an exported file in onnxruntime."""
    figures = {"repeats": REPEATS, "replaced": time_replaced(), "onnx": time_exported(model)}
    write_json(RESULTS / "home" / "speed.json", {"machine": machine_facts(), **figures})


def time_replaced() -> list[dict[str, Any]]:
    """Forward, float32, one row without padding: the attention of a layer alone, and an encoder of two layers."""
    from transformers import RobertaConfig, RobertaModel
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from nystromformer.interop.drop_in import register

    register("nystrom", name="strided-64", num_landmarks=64, landmarks="strided")
    register("nystrom", name="means-64", num_landmarks=64, landmarks="segment_means")
    torch.manual_seed(0)
    config = RobertaConfig(num_hidden_layers=2, max_position_embeddings=max(LENGTHS) + 2)
    # A config each: a model asks its config which attention it runs.
    models = {
        name: RobertaModel._from_config(copy.deepcopy(config), attn_implementation=name).eval()
        for name in REPLACED.values()
    }
    rows = []
    for length in LENGTHS:
        tokens = torch.randint(5, config.vocab_size, (1, length))
        q, k, v = torch.randn(3, 1, 12, length, 64)
        works: dict[str, Callable[[], object]] = {}
        for title, name in REPLACED.items():
            layer = models[name].encoder.layer[0].attention.self
            function, scaling = ALL_ATTENTION_FUNCTIONS[name], layer.scaling
            works[f"attention: {title}"] = partial(function, layer, q, k, v, None, dropout=0.0, scaling=scaling)
            works[f"encoder: {title}"] = partial(models[name], tokens)
        with torch.no_grad():
            timings = time_side_by_side(works, repeats_at(length, REPEATS))
        rows += [{"what": what, "tokens": length, **timing} for what, timing in timings.items()]
    return rows


def time_exported(folder: Path) -> list[dict[str, Any]]:
    """Rows without padding, by the model in PyTorch and by its ONNX file in onnxruntime: equal threads."""
    import onnxruntime

    model, _ = nystromformer.from_pretrained(folder)
    whole, rows = Exported(model.eval()), []
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "onnx"
        words = ["code/run_export.py", "export", str(folder.resolve()), "--format", "onnx", "--out", str(out)]
        subprocess.run([sys.executable, *words], cwd=PROJECT, check=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(out / "model.onnx", options, providers=["CPUExecutionProvider"])
        for batch, length in ((1, 128), (1, 512), (8, 128), (8, 512)):
            tokens_BN = torch.randint(5, 8000, (batch, length))
            known = {"input_ids": tokens_BN, "attention_mask": torch.ones_like(tokens_BN)}
            known["token_type_ids"] = torch.zeros_like(tokens_BN)
            inputs = {each.name: known[each.name] for each in session.get_inputs()}
            arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
            works = {"PyTorch": partial(whole, **inputs), "onnxruntime": partial(session.run, None, arrays)}
            with torch.no_grad():
                timings = time_side_by_side(works, REPEATS)
            rows += [{"what": what, "batch": batch, "tokens": length, **one} for what, one in timings.items()]
    return rows


if __name__ == "__main__":
    cli.run_one_of(picture, exports)
