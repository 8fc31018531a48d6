"""A self-contained page about a demo run."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nystromformer.files.writing import write_text
from nystromformer.report.document import box, document, picture, rows, table
from nystromformer.tasks.pretraining.guess import Guess


@dataclass(frozen=True)
class PageFigures:
    """Figures told in three ways."""

    table: Sequence[Sequence[str]]
    """Its first row is the header."""
    findings: Sequence[str]
    """Sentences on it."""
    picture: Path
    """A PNG on white, which the page embeds."""


def write_page(
    path: Path,
    learned: PageFigures,
    cost: PageFigures,
    what_costs: str,
    guesses: Mapping[str, Sequence[Guess]],
    facts: Mapping[str, str],
) -> None:
    """Write the page.

    Args:
        learned: how the encoders did.
        cost: time and memory over the length of the input.
        what_costs: a paragraph on what was measured there.
        guesses: for each masked sentence, the model's likeliest tokens.
        facts: lines of name and value.
    """
    body = [
        "<h1>A Nyströmformer on the docstrings of this machine</h1>",
        "<p>Four small encoders of the same size were trained for the same number of steps to fill in masked tokens of "
        "English docstrings: with softmax, near_far and Nyström attention, and with Nyström attention and a "
        "convolution over the values. They were scored on packages that are not in the training text.</p>",
        *_figures(learned, "training and validation curves"),
        "<h2>Time and memory of Nyström attention</h2>",
        f"<p>{html.escape(what_costs)}</p>",
        *_figures(cost, "time and peak memory over the number of tokens"),
        "<h2>What it guesses</h2>",
        *[_guesses(sentence, tokens) for sentence, tokens in guesses.items()],
        "<h2>How it was made</h2>",
        box(f'<table class="text"><tbody>{rows(list(facts.items()))}</tbody></table>'),
    ]
    write_text(path, document("Nyströmformer demo", body))


def _figures(figures: PageFigures, what: str) -> list[str]:
    header, *lines = figures.table
    return [
        table(header, lines),
        "<ul>" + "".join(f"<li>{html.escape(sentence)}</li>" for sentence in figures.findings) + "</ul>",
        picture(figures.picture, what),
    ]


def _guesses(sentence: str, guesses: Sequence[Guess]) -> str:
    text = html.escape(sentence).replace("&lt;mask&gt;", "<mark>mask</mark>")
    lines = "".join(
        f"<tr><td><code>{html.escape(guess.token)}</code></td><td>{100 * guess.probability:.1f} %</td>"
        f'<td style="text-align:left"><span class="bar" style="width:{12 * guess.probability:.2f}rem"></span></td></tr>'
        for guess in guesses
    )
    return f"<p>{text}</p>{box(f'<table>{lines}</table>')}"
