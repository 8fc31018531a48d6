"""Tables of errors and losses."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from nystromformer.benchmark.approximation.errors import EXACT, RULES, Inverse, NystromError, NystromTime, OutputError
from nystromformer.benchmark.approximation.inputs import RANDOM
from nystromformer.benchmark.approximation.losses import Loss
from nystromformer.benchmark.timing import Timing
from nystromformer.tables import markdown
from nystromformer.wording import number_of

PAPERS_ITERATIONS = 6


@dataclass
class Found:
    """What there is so far."""

    outputs: list[OutputError] = field(default_factory=list)
    nystrom: list[NystromError] = field(default_factory=list)
    nystrom_times: list[NystromTime] = field(default_factory=list)
    times: Mapping[str, Timing] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """Attentions that were not tried, and why."""

    def as_data(self) -> dict[str, Any]:
        return {
            "output_errors": [asdict(each) for each in self.outputs],
            "nystrom_errors": [asdict(each) for each in self.nystrom],
            "nystrom_ms": [asdict(each) for each in self.nystrom_times],
            "forward_ms": {name: asdict(time) for name, time in self.times.items()},
            "losses": [asdict(each) for each in self.losses],
            "left_out": self.missing,
        }


def label(method: str, width: int | None) -> str:
    """Of a candidate, as its own `label`."""
    return method if width is None else f"{method} {width}"


def mean_errors(outputs: Sequence[OutputError], is_random: bool) -> dict[tuple[str, int | None], float]:
    """By method and width: the mean over the layers, or on random input."""
    found: dict[tuple[str, int | None], list[float]] = {}
    for each in outputs:
        if (each.layer == RANDOM) == is_random:
            found.setdefault((each.method, each.width), []).append(each.output_error)
    return {key: fmean(values) for key, values in found.items()}


def to_read(found: Found, header: Sequence[str]) -> str:
    """Markdown.

    Args:
        header: paragraphs on what was measured, and on what.
    """
    blocks = list(header)
    if found.outputs:
        blocks += ["## Each attention beside softmax", _methods_table(found)]
    if found.missing:
        reasons: dict[str, list[str]] = {}
        for name, why in found.missing.items():
            reasons.setdefault(why, []).append(f"`{name}`")
        blocks.append("Left out: " + "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items()) + ".")
    if found.nystrom:
        blocks += ["## Nyström: landmarks", _landmarks_table(found.nystrom)]
        blocks += ["## Nyström: iterations of eq. 14, and ridges", _inverses_table(found.nystrom)]
    if found.nystrom_times:
        blocks += ["## Nyström: the most exact for their time", _frontier_table(found)]
    if found.losses:
        blocks += ["## What the error costs", _losses_table(found.losses)]
    return "\n\n".join(blocks) + "\n"


def _methods_table(found: Found) -> str:
    layers = list(dict.fromkeys(each.layer for each in found.outputs))
    by_layer = {(each.method, each.width, each.layer): each.output_error for each in found.outputs}
    means = mean_errors(found.outputs, is_random=False)
    softmax = found.times.get("softmax")
    rows = []
    for key, mean in sorted(means.items(), key=lambda item: (item[0][0], item[0][1] or 0)):
        time = found.times.get(label(*key))
        shown = "" if time is None or softmax is None else f"{time} ({time.median / softmax.median:.2f})"
        rows.append([label(*key), shown, f"{mean:.3f}", *(f"{by_layer[(*key, layer)]:.3f}" for layer in layers)])
    note = "‖out − softmax's‖ / ‖softmax's‖; time of a forward pass over one layer's input, in brackets over softmax's."
    return f"{note}\n\n{markdown(['attention', 'ms', 'mean over layers', *layers], rows)}"


def _landmarks_table(errors: Sequence[NystromError]) -> str:
    paper = [each for each in errors if each.inverse in (PAPERS_ITERATIONS, EXACT)]
    header = ["landmarks", "rule", "inverse", "‖Ŝ−S‖/‖S‖", "output's error", "residual", "negative weight, %"]
    header += [f"{name}, random input" for name in ("‖Ŝ−S‖/‖S‖", "output's error")]
    rows = []
    for count in dict.fromkeys(each.landmarks for each in paper):
        for rule in RULES:
            for inverse in dict.fromkeys(each.inverse for each in paper):
                mine = [e for e in paper if (e.landmarks, e.rule, e.inverse) == (count, rule, inverse)]
                real, random = ([e for e in mine if (e.layer == RANDOM) == is_random] for is_random in (False, True))
                if not real:
                    continue
                figures = [
                    *(f"{fmean(getattr(e, name) for e in real):.3f}" for name in ("matrix_error", "output_error")),
                    f"{fmean(e.residual for e in real):.1e}",
                    f"{100 * fmean(e.negative for e in real):.1f}",
                    *(f"{fmean(getattr(e, n) for e in random):.3f}" if random else "" for n in _ERRORS),
                ]
                rows.append([str(count), rule, inverse_label(inverse), *figures])
    return f"Means over the layers.\n\n{markdown(header, rows)}"


_ERRORS = ("matrix_error", "output_error")


def inverse_label(inverse: Inverse) -> str:
    """Of an inverse, for people."""
    return number_of(inverse, "iteration") if isinstance(inverse, int) else inverse


def mean_of_setting(errors: Sequence[NystromError]) -> dict[tuple[str, int, Inverse], float]:
    """The output's error by rule, landmarks and inverse: the mean over the layers of the checkpoint."""
    found: dict[tuple[str, int, Inverse], list[float]] = {}
    for each in errors:
        if each.layer != RANDOM:
            found.setdefault((each.rule, each.landmarks, each.inverse), []).append(each.output_error)
    return {key: fmean(values) for key, values in found.items()}


def frontier(found: Found) -> list[tuple[NystromTime, float]]:
    """Settings than which no other is both as fast and as exact, the fastest first, with the output's error."""
    errors = mean_of_setting(found.nystrom)
    best: list[tuple[NystromTime, float]] = []
    for one in sorted(found.nystrom_times, key=lambda one: one.ms.median):
        error = errors[one.rule, one.landmarks, one.inverse]
        if not best or error < best[-1][1]:
            best.append((one, error))
    return best


def _inverses_table(errors: Sequence[NystromError]) -> str:
    real = [each for each in errors if each.layer != RANDOM]
    counts = list(dict.fromkeys(each.landmarks for each in real))
    rows = []
    for rule in RULES:
        for inverse in dict.fromkeys(each.inverse for each in real):
            cells = []
            for count in counts:
                mine = [each for each in real if (each.rule, each.landmarks, each.inverse) == (rule, count, inverse)]
                cells.append(f"{fmean(e.output_error for e in mine):.3f} ({fmean(e.residual for e in mine):.0e})")
            rows.append([rule, inverse_label(inverse), *cells])
    note = "The output's error, in brackets the residual ‖AZA−A‖/‖A‖; means over the layers."
    return f"{note}\n\n{markdown(['rule', 'inverse', *(f'{count} landmarks' for count in counts)], rows)}"


def _frontier_table(found: Found) -> str:
    errors = mean_of_setting(found.nystrom)
    usual = [
        (one, errors[one.rule, one.landmarks, one.inverse])
        for one in found.nystrom_times
        if (one.rule, one.inverse) == (RULES[0], PAPERS_ITERATIONS)
    ]
    rows = [
        [kind, one.rule, str(one.landmarks), inverse_label(one.inverse), str(one.ms), f"{error:.3f}"]
        for kind, ones in (("frontier", frontier(found)), ("the paper's", usual))
        for one, error in ones
    ]
    header = ["", "rule", "landmarks", "inverse", "ms", "output's error"]
    note = (
        "Settings than which no other was both as fast and as exact, and the paper's. Times within their quartiles of "
        "one another decide nothing."
    )
    return f"{note}\n\n{markdown(header, rows)}"


def _losses_table(losses: Sequence[Loss]) -> str:
    steps = sorted({each.steps for each in losses})
    header = ["attention in softmax's place"]
    for count in steps:
        after = "untrained" if not count else f"after {count} steps"
        header += [f"loss, {after}", f"masked tokens right, {after}, %"]
    by_key = {(each.method, each.width, each.steps): each for each in losses}
    rows = []
    for method, width in dict.fromkeys((each.method, each.width) for each in losses):
        cells = []
        for count in steps:
            one = by_key.get((method, width, count))
            cells += ["", ""] if one is None else [f"{one.mlm_loss:.3f}", f"{100 * one.mlm_accuracy:.2f}"]
        rows.append([label(method, width), *cells])
    return markdown(header, rows)
