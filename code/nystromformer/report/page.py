"""A self-contained page about a demo run."""

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nystromformer.files import write_text
from nystromformer.tasks.pretraining.guess import Guess

# Pictures are drawn on white. In the dark they are turned: white becomes the page's background, black its text, and
# every color keeps its hue. Where a window is narrow they and the tables scroll in their own boxes.
_STYLE = """
:root { color-scheme: light dark; background: #ffffff; color: #1a1a1a; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; }
table { border-collapse: collapse; }
th, td { padding: .3rem .9rem; border-bottom: 1px solid #8884; text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td { white-space: nowrap; }
.text td { text-align: left; }
.text td:last-child { white-space: normal; }
.box { overflow-x: auto; margin: 1rem 0; }
.box img { display: block; width: 100%; min-width: 56rem; }
.bar { background: #4c78a8; height: .7rem; display: inline-block; border-radius: 2px; }
code { background: #8882; padding: .1rem .3rem; border-radius: 3px; }
mark { background: #f2c14e; color: #1a1a1a; padding: 0 .2rem; }
@media (prefers-color-scheme: dark) {
  :root { background: #1a1a1a; color: #e6e6e6; }
  img { filter: invert(.9) hue-rotate(180deg); }
}
"""


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
        "<p>Four small encoders of the same size and budget learned to fill in masked tokens of English docstrings: "
        "with Nyström and with softmax attention, each with a convolution over the values and without. They were "
        "scored on packages that they never saw.</p>",
        *_figures(learned, "training and validation curves"),
        "<h2>Why Nyström attention: time and memory</h2>",
        f"<p>{html.escape(what_costs)}</p>",
        *_figures(cost, "time and peak memory over the number of tokens"),
        "<h2>What it guesses</h2>",
        *[_guesses(sentence, tokens) for sentence, tokens in guesses.items()],
        "<h2>How it was made</h2>",
        _boxed(f'<table class="text"><tbody>{_rows(list(facts.items()))}</tbody></table>'),
    ]
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Nyströmformer demo</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n<body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )
    write_text(path, page)


def _figures(figures: PageFigures, what: str) -> list[str]:
    header, *lines = figures.table
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    image = base64.b64encode(figures.picture.read_bytes()).decode("ascii")
    return [
        _boxed(f"<table><thead><tr>{head}</tr></thead><tbody>{_rows(lines)}</tbody></table>"),
        "<ul>" + "".join(f"<li>{html.escape(sentence)}</li>" for sentence in figures.findings) + "</ul>",
        _boxed(f'<img alt="{what}" src="data:image/png;base64,{image}">'),
    ]


def _rows(lines: Sequence[Sequence[str]]) -> str:
    return "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)


def _boxed(content: str) -> str:
    return f'<div class="box">{content}</div>'


def _guesses(sentence: str, guesses: Sequence[Guess]) -> str:
    text = html.escape(sentence).replace("&lt;mask&gt;", "<mark>mask</mark>")
    rows = "".join(
        f"<tr><td><code>{html.escape(guess.token)}</code></td><td>{100 * guess.probability:.1f} %</td>"
        f'<td style="text-align:left"><span class="bar" style="width:{12 * guess.probability:.2f}rem"></span></td></tr>'
        for guess in guesses
    )
    return f"<p>{text}</p>{_boxed(f'<table>{rows}</table>')}"
