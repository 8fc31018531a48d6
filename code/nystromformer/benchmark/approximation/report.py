"""Tables of errors and losses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import pandas as pd

from nystromformer.benchmark.approximation.candidates import RULES, label
from nystromformer.benchmark.approximation.errors import EXACT, Inverse, NystromError, OutputError
from nystromformer.benchmark.approximation.losses import Loss
from nystromformer.benchmark.checkpoints import RANDOM
from nystromformer.benchmark.timing import Timing
from nystromformer.tables import markdown
from nystromformer.wording import number_of

PAPERS_ITERATIONS = 6
Setting = tuple[str, int, Inverse]
"""A rule, landmarks and an inverse."""


@dataclass
class Findings:
    """What there is so far; as in `approximation.json`."""

    output_errors: list[OutputError] = field(default_factory=list)
    nystrom_errors: list[NystromError] = field(default_factory=list)
    forward_ms: Mapping[str, Timing] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Attentions that were not tried, and why."""


def mean_errors(outputs: Sequence[OutputError], is_random: bool) -> dict[tuple[str, int | None], float]:
    """By method and width: the mean over the layers, or on random input."""
    found: dict[tuple[str, int | None], list[float]] = {}
    for each in outputs:
        if (each.layer == RANDOM) == is_random:
            found.setdefault((each.method, each.width), []).append(each.output_error)
    return {key: fmean(values) for key, values in found.items()}


def mean_figures(errors: Sequence[NystromError], is_random: bool = False) -> dict[Setting, dict[str, float]]:
    """By rule, landmarks and inverse: the means over the layers of the checkpoint, or on random input."""
    chosen = [vars(each) for each in errors if (each.layer == RANDOM) == is_random]
    if not chosen:
        return {}
    table = pd.DataFrame(chosen).groupby(["rule", "landmarks", "inverse"], sort=False).mean(numeric_only=True)
    return dict(table.to_dict("index"))


def to_read(found: Findings, header: Sequence[str]) -> str:
    """Markdown.

    Args:
        header: paragraphs on what was measured, and on what.
    """
    blocks = list(header)
    if found.output_errors:
        blocks += ["## Each attention beside softmax", _methods_table(found)]
    if found.left_out:
        reasons: dict[str, list[str]] = {}
        for name, why in found.left_out.items():
            reasons.setdefault(why, []).append(f"`{name}`")
        blocks.append("Left out: " + "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items()) + ".")
    if found.nystrom_errors:
        blocks += ["## Nyström: landmarks", _landmarks_table(found.nystrom_errors)]
        blocks += ["## Nyström: iterations of eq. 14, and ridges", _inverses_table(found.nystrom_errors)]
    if found.losses:
        blocks += ["## What the error costs", losses_table(found.losses)]
    return "\n\n".join(blocks) + "\n"


def _methods_table(found: Findings) -> str:
    layers = list(dict.fromkeys(each.layer for each in found.output_errors))
    by_layer = {(each.method, each.width, each.layer): each.output_error for each in found.output_errors}
    means = mean_errors(found.output_errors, is_random=False)
    softmax = found.forward_ms.get("softmax")
    rows = []
    for key, mean in sorted(means.items(), key=lambda item: (item[0][0], item[0][1] or 0)):
        time = found.forward_ms.get(label(*key))
        shown = "" if time is None or softmax is None else f"{time} ({time.median / softmax.median:.2f})"
        rows.append([label(*key), shown, f"{mean:.3f}", *(f"{by_layer[(*key, layer)]:.3f}" for layer in layers)])
    note = "‖out − softmax's‖ / ‖softmax's‖; time of a forward pass over one layer's input, in brackets over softmax's."
    return f"{note}\n\n{markdown(['attention', 'ms', 'mean over layers', *layers], rows)}"


def _landmarks_table(errors: Sequence[NystromError]) -> str:
    names = {"matrix_error": "‖Ŝ−S‖/‖S‖", "output_error": "output's error"}
    header = ["landmarks", "rule", "inverse", *names.values(), "residual", "negative weight, %"]
    header += [f"{name}, random input" for name in names.values()]
    real, random = mean_figures(errors), mean_figures(errors, is_random=True)
    counts = [landmarks for _, landmarks, _ in real]
    rows = []
    for setting in sorted(real, key=lambda setting: (counts.index(setting[1]), RULES.index(setting[0]))):
        rule, landmarks, inverse = setting
        if inverse not in (PAPERS_ITERATIONS, EXACT):
            continue
        mine = real[setting]
        figures = [f"{mine[name]:.3f}" for name in names]
        figures += [f"{mine['residual']:.1e}", f"{100 * mine['negative']:.1f}"]
        figures += [f"{random[setting][name]:.3f}" if setting in random else "" for name in names]
        rows.append([str(landmarks), rule, inverse_label(inverse), *figures])
    return f"Means over the layers.\n\n{markdown(header, rows)}"


def inverse_label(inverse: Inverse) -> str:
    """Of an inverse, for people."""
    return number_of(inverse, "iteration") if isinstance(inverse, int) else inverse


def _inverses_table(errors: Sequence[NystromError]) -> str:
    means = mean_figures(errors)
    counts = list(dict.fromkeys(landmarks for _, landmarks, _ in means))
    inverses = dict.fromkeys(each.inverse for each in errors)
    rows = []
    for rule in RULES:
        for inverse in inverses:
            mine = [means[rule, count, inverse] for count in counts]
            cells = [f"{each['output_error']:.3f} ({each['residual']:.0e})" for each in mine]
            rows.append([rule, inverse_label(inverse), *cells])
    note = "The output's error, in brackets the residual ‖AZA−A‖/‖A‖; means over the layers."
    return f"{note}\n\n{markdown(['rule', 'inverse', *(f'{count} landmarks' for count in counts)], rows)}"


def losses_table(losses: Sequence[Loss]) -> str:
    """Of each attention the loss and the accuracy."""
    rows = [
        [label(each.method, each.width), f"{each.mlm_loss:.3f}", f"{100 * each.mlm_accuracy:.2f}"] for each in losses
    ]
    return markdown(["attention in softmax's place, untrained", "loss", "masked-token accuracy, %"], rows)
