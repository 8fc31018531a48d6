"""A self-contained page about a demo run."""

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from nystromformer.tasks.pretraining.guess import Guess

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .3rem .9rem; border-bottom: 1px solid #8884; text-align: right; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; background: white; border-radius: 6px; }
.bar { background: #4c78a8; height: .7rem; display: inline-block; border-radius: 2px; }
code { background: #8882; padding: .1rem .3rem; border-radius: 3px; }
mark { background: #f2c14e; padding: 0 .2rem; }
"""


def write_page(
    path: Path,
    picture: Path,
    results: Sequence[Sequence[str]],
    findings: Sequence[str],
    facts: Mapping[str, str],
    guesses: Mapping[str, Sequence[Guess]],
) -> None:
    """Write the page.

    Args:
        picture: a PNG, embedded.
        results: a table; its first row is the header.
        findings: sentences below the table.
        facts: lines of name and value.
        guesses: for each masked sentence, the model's likeliest tokens.
    """
    image = base64.b64encode(picture.read_bytes()).decode("ascii")
    body = [
        "<h1>A Nyströmformer on the docstrings of this machine</h1>",
        "<p>Four small encoders of the same size and budget learned to fill in masked tokens of English docstrings: "
        "with Nyström and with softmax attention, each with a convolution over the values and without. They were "
        "scored on packages that they never saw.</p>",
        _table(results),
        "<ul>" + "".join(f"<li>{html.escape(sentence)}</li>" for sentence in findings) + "</ul>",
        f'<img alt="training and validation curves" src="data:image/png;base64,{image}">',
        "<h2>What it guesses</h2>",
        *[_guesses(sentence, found) for sentence, found in guesses.items()],
        "<h2>How it was made</h2>",
        _table([["", ""], *([name, value] for name, value in facts.items())]),
    ]
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Nyströmformer demo</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n<body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )
    path.write_text(page, encoding="utf-8")


def _table(rows: Sequence[Sequence[str]]) -> str:
    header, *lines = rows
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _guesses(sentence: str, found: Sequence[Guess]) -> str:
    text = html.escape(sentence).replace("&lt;mask&gt;", "<mark>mask</mark>")
    rows = "".join(
        f"<tr><td><code>{html.escape(guess.token)}</code></td><td>{100 * guess.probability:.1f} %</td>"
        f'<td style="text-align:left"><span class="bar" style="width:{12 * guess.probability:.2f}rem"></span></td></tr>'
        for guess in found
    )
    return f"<p>{text}</p><table>{rows}</table>"
