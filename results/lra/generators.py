"""What is drawn here beside what is known of the Long Range Arena's own data: `generators.json` and `generators.md`.

Run it at the top of a clone, in its environment: `python results/lra/generators.py`, after the stage `prepared` of
results/lra/run.py.
"""

import argparse
import random
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.files import write_json, write_text
from nystromformer.machine import machine_facts
from nystromformer.tables import markdown
from nystromformer.tasks.lra.listops import OPERATORS, TOKENS
from nystromformer.tasks.lra.pathfinder import Drawing, Style, draw, paint
from nystromformer.tasks.lra.store import SPLITS, open_stored

HERE = Path(__file__).resolve().parent
KNOWN = {"median length": "1,012", "10 % are shorter than": "586", "10 % are longer than": "1,667"}
"""What a reimplementation of others reported; of how many expressions, it does not say."""
KNOWN_LABELS = ("16.6", *["7 to 10"] * 8, "15.7")
_REWRITTEN = 20_000
_BRIGHTNESS = "mean brightness of those that are not connected, and of those that are"
_FIRST, _END = TOKENS.index(OPERATORS[0]), TOKENS.index("]")


def rewritten_length(randomness: random.Random, depth: int = 1) -> int:
    """Tokens of an expression by the rules of the Long Range Arena's `generate_tree`, written out a second time."""
    if depth >= 10 or randomness.random() > 0.25:
        return 1
    return 2 + sum(rewritten_length(randomness, depth + 1) for _ in range(randomness.randint(2, 10)))


def rewritten(count: int) -> dict[str, float]:
    """The lengths of so many expressions that are kept."""
    randomness = random.Random(0)
    lengths: list[int] = []
    while len(lengths) < count:
        length = rewritten_length(randomness)
        if 500 < length < 2000:
            lengths.append(length)
    return dict(zip(KNOWN, np.quantile(lengths, [0.5, 0.1, 0.9]).tolist(), strict=True))


def depth_of(tokens: NDArray[np.uint8]) -> int:
    """Of the deepest operator, the outermost being 1."""
    is_operator = (tokens >= _FIRST) & (tokens < _FIRST + len(OPERATORS))
    return int(np.cumsum(is_operator.astype(np.int64) - (tokens == _END)).max())


def listops(folder: Path) -> dict[str, Any]:
    """Lengths, depths, operators and labels of the training expressions."""
    split = open_stored(folder, "listops").split("train")
    lengths = split.lengths[:, 0]
    depths, operators = np.zeros(20, dtype=np.int64), np.zeros(len(OPERATORS), dtype=np.int64)
    for number in range(len(split)):
        tokens = split.tokens(number)
        depths[depth_of(tokens)] += 1
        operators += np.bincount(tokens, minlength=32)[_FIRST : _FIRST + len(OPERATORS)]
    return {
        "expressions": len(split),
        "median length": float(np.median(lengths)),
        "10 % are shorter than": float(np.quantile(lengths, 0.1)),
        "10 % are longer than": float(np.quantile(lengths, 0.9)),
        "labels": (np.bincount(split.labels, minlength=10) / len(split)).tolist(),
        "operators": dict(zip(OPERATORS, (operators / operators.sum()).tolist(), strict=True)),
        "depths": {depth: int(count) for depth, count in enumerate(depths) if count},
    }


def pathfinder(folder: Path) -> dict[str, Any]:
    """Balance of labels, and how bright pictures of both are."""
    split = open_stored(folder, "pathfinder").split("train")
    brightness = np.array([split.tokens(number).mean() for number in range(len(split))])
    return {
        "pictures": len(split),
        "connected": float(split.labels.mean()),
        _BRIGHTNESS: [float(brightness[split.labels == label].mean()) for label in (0, 1)],
    }


def leads(drawing: Drawing) -> bool:
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


def followed(folder: Path) -> dict[str, int]:
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
            right += leads(drawing) == bool(label)
    return {"pictures": pictures, "right": right}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lra"), help="of run.py; default: %(default)s")
    data = parser.parse_args().out / "data"
    found = listops(data / "listops")
    paths = {name: pathfinder(data / name) for name in ("pathfinder", "pathfinder-6")}
    by_path = followed(data / "pathfinder")
    again = rewritten(_REWRITTEN)
    rows = [[name, f"{found[name]:,.0f}", f"{again[name]:,.0f}", known] for name, known in KNOWN.items()]
    rows += [
        [f"label {label}, %", f"{100 * share:.1f}", "", known]
        for label, (share, known) in enumerate(zip(found["labels"], KNOWN_LABELS, strict=True))
    ]
    rows += [[f"operator {name}, %", f"{100 * share:.1f}", "", "25.0"] for name, share in found["operators"].items()]
    depths = ", ".join(f"{depth}: {count:,}" for depth, count in found["depths"].items())
    text = f"{found['expressions']:,} expressions. Depth of the deepest operator and how many have it: {depths}."
    header = ["ListOps", "drawn here", f"its rules written out again, {_REWRITTEN:,}", "as others reported"]
    checked = (
        f"{by_path['right']:,} of {by_path['pictures']:,} pictures of pathfinder have the label that following their "
        "path gives."
    )
    machine = machine_facts()
    where = (
        f"{machine['processor']}, {machine['date']}, commit `{machine['commit']}`: `python results/lra/generators.py`"
    )
    text = f"{text}\n\n{markdown(header, rows)}\n\n{_of_paths(paths)}\n\n{checked}\n\n{where}\n"
    write_text(HERE / "generators.md", text)
    facts = {"machine": machine, "listops": found, "rewritten": again, **paths, "labels by path": by_path}
    write_json(HERE / "generators.json", facts)


def _of_paths(paths: dict[str, dict[str, Any]]) -> str:
    rows = [
        [name, f"{one['pictures']:,}", f"{100 * one['connected']:.1f}", *(f"{each:.2f}" for each in one[_BRIGHTNESS])]
        for name, one in paths.items()
    ]
    header = ["Pathfinder", "pictures", "connected, %", "mean brightness of those that are not", "of those that are"]
    return markdown(header, rows)


if __name__ == "__main__":
    main()
