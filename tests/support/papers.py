"""Results of which the paper's page can be made."""

import json
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nystromformer.files import write_figure
from nystromformer.tables import markdown


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
    for name in ("efficiency", "approximation", "tiny"):
        (folder / name).mkdir(parents=True)
    (folder / "efficiency" / "efficiency.json").write_text(json.dumps(data))
    for picture in ("efficiency/efficiency-attention", "approximation/maps", "approximation/factors", "tiny/curves"):
        write_figure(folder / f"{picture}.png", _drawn(), dpi=60)
    (folder / "tiny" / "finetune.md").write_text(f"Text.\n\n{markdown(['a | b', 'c'], [['1', '2 <b>']])}\n\nMore.\n")
    row = {"kind": "nystrom-tiny-conv", "seed": 0, "mlm_loss": 5.0, "mlm_accuracy": 0.2, "sop_accuracy": 0.5}
    (folder / "tiny" / "pretraining.json").write_text(json.dumps({"rows": [row]}))
    losses = markdown(["attention in softmax's place", "loss, untrained"], [["softmax", "5.1"], ["nystrom 64", "5.2"]])
    (folder / "approximation" / "approximation.md").write_text(f"{markdown(['else'], [['x']])}\n\n{losses}\n")
    return folder


def _drawn() -> Figure:
    figure = Figure(figsize=(9, 4))
    FigureCanvasAgg(figure)
    figure.subplots().plot([1, 2, 3])
    return figure
