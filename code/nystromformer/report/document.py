"""Pages of HTML that need nothing beside them: tables that scroll in their own boxes, pictures embedded."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path

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
mark { background: #f2c14e; color: #1a1a1a; padding: 0 .2rem; }
@media (prefers-color-scheme: dark) {
  :root { background: #1a1a1a; color: #e6e6e6; }
  img { filter: invert(.9) hue-rotate(180deg); }
}
"""


def document(title: str, body: Sequence[str]) -> str:
    """A whole page."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n<body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def table(header: Sequence[str], lines: Sequence[Sequence[str]], is_text: bool = False) -> str:
    """A table in a box of its own.

    Args:
        is_text: whether its cells are sentences rather than figures.
    """
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    kind = ' class="text"' if is_text else ""
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return f'<div class="box"><table{kind}><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def picture(path: Path, what: str) -> str:
    """A PNG, embedded, in a box of its own.

    Args:
        what: it shows, for those who do not see it.
    """
    image = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<div class="box"><img alt="{html.escape(what)}" src="data:image/png;base64,{image}"></div>'
