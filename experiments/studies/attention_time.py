"""docs/attention-time.png, from what `run_benchmark.py efficiency --out results/attention-cpu` has measured:
`python experiments/studies/attention_time.py`.
"""

from pathlib import Path

from nystromformer import studies
from nystromformer.files.paths import PROJECT
from nystromformer.files.writing import write_figure

LINES = {
    # Method: name, colour, width, the side of its last point on which the name stands, and by how many points higher.
    "softmax, written out": ("softmax, written out", "#8c4a1f", 1.8, "right", 5),
    "softmax (SDPA)": ("softmax, PyTorch's fused (SDPA)", "#e0701b", 1.8, "right", 5),
    "nystrom-attention": ("nystrom-attention", "#8b6db3", 1.5, "left", 5),
    "transformers": ("transformers", "#5d9e57", 1.5, "left", 3),
    "authors' formulation": ("the authors' formulation", "#777777", 1.5, "left", -10),
    "nystrom": ("this project", "#1f5fa8", 3.0, "left", -5),
}


def collect(picture: Path = PROJECT / "docs" / "attention-time.png") -> None:
    """Draw forward and backward, ms over tokens: both softmaxes and each Nyström, without a mask."""
    data = studies.read_json(studies.RESULTS / "attention-cpu" / "attention.json")
    figure, (axis,) = studies.new_figure(1, 8.6, 4.6, grid=0.25)
    for method, (name, colour, width, side, above) in LINES.items():
        rows = [row for row in data["rows"] if row["method"] == method]
        lengths, times = [row["length"] for row in rows], [row["both"]["median"] for row in rows]
        axis.loglog(lengths, times, "o-", color=colour, linewidth=width, markersize=4)
        axis.annotate(
            name,
            (lengths[-1], times[-1]),
            xytext=(7 if side == "left" else -8, above),
            textcoords="offset points",
            va="center",
            ha=side,
            fontsize=10.5,
            fontweight="bold" if method == "nystrom" else "normal",
            color=colour,
        )
    lengths = sorted({row["length"] for row in data["rows"]})
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
    write_figure(picture, figure, dpi=180)


if __name__ == "__main__":
    studies.run_commands(collect)
