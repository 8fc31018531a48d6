"""Results of which the paper's page can be made."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nystromformer.files.writing import write_figure, write_json


def made_up_results(folder: Path) -> Path:
    """Of everything a little."""
    cells = [
        {"part": "attention", "method": method, "length": length, "forward_memory": memory, "forward": {"median": time}}
        for method, memory, time in (("softmax, written out", 200.0, 10.0), ("nystrom", 50.0, 2.5))
        for length in (512, 1024)
    ]
    left_out = [{"part": "attention", "method": "softmax, written out", "length": 8192, "why": "memory: about 9 GiB"}]
    data = {
        "machine": {"processor": "a processor"},
        "settings": {"batch": 1, "heads": 12, "head_dim": 64},
        "cells": cells,
        "left_out": left_out,
    }
    row = {"kind": "nystrom-tiny-conv", "seed": 0, "mlm_loss": 5.0, "mlm_accuracy": 0.2, "sop_accuracy": 0.5}
    loss = {"method": "nystrom", "width": 64, "steps": 0, "mlm_loss": 5.2, "mlm_accuracy": 0.2}
    runs = {"column": "Text", "attention": "softmax", "seeds": [0], "best_steps": [20], "examples_per_second": None}
    runs |= {name: {"mean": 0.6, "deviation": None} for name in ("test", "validation", "hours")}
    runs |= {"memory_mib": 1.0, "parameters": {}, "commands": [], "device": "cpu", "warnings": [], "test_rows": 400}
    written = {
        "efficiency/efficiency": data,
        "tiny/finetune": {"table": {"header": ["a | b", "c"], "rows": [["1", "2 <b>"]]}},
        "tiny/pretraining": {"rows": [row]},
        "lra/table3": {"columns": {"Text": "text"}, "cells": [runs | {"baselines": {"bag of bytes": 0.61}}]},
        "approximation/approximation": {"losses": [loss]},
    }
    for name, content in written.items():
        write_json(folder / f"{name}.json", content)
    for picture in ("efficiency/efficiency-attention", "approximation/maps", "approximation/factors", "tiny/curves"):
        write_figure(folder / f"{picture}.png", _drawn(), dpi=60)
    return folder


def _drawn() -> Figure:
    figure = Figure(figsize=(9, 4))
    FigureCanvasAgg(figure)
    figure.subplots().plot([1, 2, 3])
    return figure
