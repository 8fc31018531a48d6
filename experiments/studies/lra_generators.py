"""What is drawn here beside what is known of the Long Range Arena's own data.

`python experiments/studies/lra_generators.py run`, after the stage `prepared` of experiments/studies/lra.py, writes
generators.json and generators.md in results/lra; `collect` writes the page again.
"""

import random
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer import studies
from nystromformer.tables import markdown
from nystromformer.tasks.lra.listops import OPERATORS, TOKENS
from nystromformer.tasks.lra.pathfinder import Drawing, Style, draw, paint
from nystromformer.tasks.lra.store import SPLITS, open_stored

RESULTS = studies.RESULTS / "lra"
KNOWN = {"median length": "1,012", "10 % are shorter than": "586", "10 % are longer than": "1,667"}
"""What a reimplementation of others reported; of how many expressions, it does not say."""
KNOWN_LABELS = ("16.6", *["7 to 10"] * 8, "15.7")
REWRITTEN = 20_000
BRIGHTNESS = "mean brightness of those that are not connected, and of those that are"
PATHFINDERS = ("pathfinder", "pathfinder-6")
FIRST, END = TOKENS.index(OPERATORS[0]), TOKENS.index("]")


def rewritten_length(randomness: random.Random, depth: int = 1) -> int:
    """Tokens of an expression by the rules of the Long Range Arena's `generate_tree`, written out a second time."""
    if depth >= 10 or randomness.random() > 0.25:
        return 1
    return 2 + sum(rewritten_length(randomness, depth + 1) for _ in range(randomness.randint(2, 10)))


def draw_rewritten(count: int) -> dict[str, float]:
    """The lengths of so many expressions that are long enough and not too long."""
    randomness = random.Random(0)
    lengths: list[int] = []
    while len(lengths) < count:
        length = rewritten_length(randomness)
        if 500 < length < 2000:
            lengths.append(length)
    return dict(zip(KNOWN, np.quantile(lengths, [0.5, 0.1, 0.9]).tolist(), strict=True))


def depth_of(tokens: NDArray[np.uint8]) -> int:
    """Of the deepest operator, the outermost being 1."""
    is_operator = (tokens >= FIRST) & (tokens < FIRST + len(OPERATORS))
    return int(np.cumsum(is_operator.astype(np.int64) - (tokens == END)).max())


def describe_listops(folder: Path) -> dict[str, Any]:
    """Lengths, depths, operators and labels of the training expressions."""
    split = open_stored(folder, "listops").split("train")
    lengths = split.lengths[:, 0]
    depths, operators = np.zeros(20, dtype=np.int64), np.zeros(len(OPERATORS), dtype=np.int64)
    for number in range(len(split)):
        tokens = split.tokens(number)
        depths[depth_of(tokens)] += 1
        operators += np.bincount(tokens, minlength=32)[FIRST : FIRST + len(OPERATORS)]
    return {
        "expressions": len(split),
        "median length": float(np.median(lengths)),
        "10 % are shorter than": float(np.quantile(lengths, 0.1)),
        "10 % are longer than": float(np.quantile(lengths, 0.9)),
        "labels": (np.bincount(split.labels, minlength=10) / len(split)).tolist(),
        "operators": dict(zip(OPERATORS, (operators / operators.sum()).tolist(), strict=True)),
        "depths": {depth: int(count) for depth, count in enumerate(depths) if count},
    }


def describe_pathfinder(folder: Path) -> dict[str, Any]:
    """Balance of labels, and how bright pictures of both are."""
    split = open_stored(folder, "pathfinder").split("train")
    brightness = np.array([split.tokens(number).mean() for number in range(len(split))])
    return {
        "pictures": len(split),
        "connected": float(split.labels.mean()),
        BRIGHTNESS: [float(brightness[split.labels == label].mean()) for label in (0, 1)],
    }


def is_connected(drawing: Drawing) -> bool:
    """Whether gaps no wider than those within a path lead from one mark to the other, whatever the dashes were drawn
    as."""
    dashes_C22 = np.stack(drawing.dashes)
    ends_E2 = dashes_C22.reshape(-1, 2)
    gaps_CC = np.linalg.norm(ends_E2[:, None] - ends_E2, axis=-1).reshape(len(dashes_C22), 2, -1, 2).min((1, 3))
    begin, end = (int(np.linalg.norm(dashes_C22 - place, axis=-1).min(1).argmin()) for place in drawing.mark_places)
    reached, fresh = {begin}, [begin]
    while fresh:
        near = np.flatnonzero(gaps_CC[fresh.pop()] <= 2 * drawing.margin + 0.05)
        fresh += set(near.tolist()) - reached
        reached.update(near.tolist())
    return end in reached


def follow_paths(folder: Path) -> dict[str, int]:
    """How many of the drawn pictures of all splits have the label that following their path gives; each is drawn again,
    and must be the stored one."""
    stored = open_stored(folder, "pathfinder")
    settings = stored.manifest.settings
    listed = {each.name: settings[each.name] for each in fields(Style)}
    style = Style(**{name: tuple(value) if isinstance(value, list) else value for name, value in listed.items()})
    pictures = right = 0
    for name in SPLITS:
        split = stored.split(name)
        for number, label in enumerate(split.labels.tolist()):
            drawing = draw(random.Random(f"pathfinder {settings['seed']} {name} {number} 0"), style)
            if paint(drawing, style).tobytes() != split.tokens(number).tobytes():
                sys.exit(f"{folder}: {name} {number} is not what is drawn now: prepare it again")
            pictures += 1
            right += is_connected(drawing) == bool(label)
    return {"pictures": pictures, "right": right}


def run(runs: Path = Path("runs/lra")) -> None:
    """Write generators.json and generators.md."""
    data = runs / "data"
    facts = {
        "listops": describe_listops(data / "listops"),
        "rewritten": draw_rewritten(REWRITTEN),
        **{name: describe_pathfinder(data / name) for name in PATHFINDERS},
        "labels by path": follow_paths(data / "pathfinder"),
    }
    studies.write_figures(RESULTS / "generators.json", **facts)
    collect()


def collect() -> None:
    """Write generators.md."""
    data = studies.read_json(RESULTS / "generators.json")
    found, again, by_path, machine = (data[key] for key in ("listops", "rewritten", "labels by path", "machine"))
    rows = [[name, f"{found[name]:,.0f}", f"{again[name]:,.0f}", known] for name, known in KNOWN.items()]
    rows += [
        [f"label {label}, %", f"{100 * share:.1f}", "", known]
        for label, (share, known) in enumerate(zip(found["labels"], KNOWN_LABELS, strict=True))
    ]
    rows += [[f"operator {name}, %", f"{100 * share:.1f}", "", "25.0"] for name, share in found["operators"].items()]
    depths = ", ".join(f"{depth}: {count:,}" for depth, count in found["depths"].items())
    pictures = [
        [name, f"{data[name]['pictures']:,}", f"{100 * data[name]['connected']:.1f}"]
        + [f"{each:.2f}" for each in data[name][BRIGHTNESS]]
        for name in PATHFINDERS
    ]
    header = ["Pathfinder", "pictures", "connected, %", "mean brightness of those that are not", "of those that are"]
    studies.write_page(
        RESULTS / "generators.md",
        f"{found['expressions']:,} expressions. Depth of the deepest operator and how many have it: {depths}.",
        markdown(["ListOps", "drawn here", f"its rules written out again, {REWRITTEN:,}", "as others reported"], rows),
        markdown(header, pictures),
        f"{by_path['right']:,} of {by_path['pictures']:,} pictures of pathfinder have the label that following their "
        "path gives.",
        f"{machine['processor']}, {machine['date']}, commit `{machine['commit']}`: `python "
        "experiments/studies/lra_generators.py run`",
    )


if __name__ == "__main__":
    studies.run_commands(run, collect)
