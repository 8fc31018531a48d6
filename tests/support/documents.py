"""The texts of the repository that people read: their links, headings, and the paths that they name."""

import re
from pathlib import Path
from typing import NamedTuple

from small import ROOT

_PATTERNS = (
    *(
        "*.md",
        "docs/*.md",
        "*/README.md",
        "data/*/README.md",
        "experiments/*/README.md",
        "data-preprocessing/*/README.md",
    ),
    *("results/*/*.md", ".github/*.md"),
)
_OWN = re.compile(r"demo|\.(?!github)")
"""Folders that commands and tools leave behind."""

PATHS = sorted(
    {path for pattern in _PATTERNS for path in ROOT.glob(pattern) if not _OWN.match(path.relative_to(ROOT).parts[0])}
)
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PATHS}
README = TEXTS["README.md"]


class Link(NamedTuple):
    """Where a link leads, relative to its file; an empty path is the file itself."""

    path: str
    anchor: str


def without_code(text: str) -> str:
    """The text without blocks of code, whose lines are no headings and hold no links."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)


def links(text: str) -> list[Link]:
    """Links and pictures within the repository; a text may go on in the next line."""
    plain = re.sub(r"`[^`\n]*`", "`", without_code(text))
    targets = [re.sub(r"\s+", "", target) for target in re.findall(r"\]\(([^)]*)\)", plain)]
    parts = [target.partition("#") for target in targets if not re.match(r"[a-z]+:", target)]
    return [Link(path, anchor) for path, _, anchor in parts]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives a text's headings: in small letters, without punctuation, "-" for a space."""
    seen: dict[str, int] = {}
    result = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", without_code(text), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        count = seen[anchor] = seen.get(anchor, -1) + 1
        result.add(f"{anchor}-{count}" if count else anchor)
    return result


def named_files(text: str) -> set[str]:
    """Files with code that a text names in `…` or in a command, without those that stand for several."""
    names = re.findall(r"(?<![\w/<*{}.$-])((?:[\w.-]+/)*[\w-]+\.(?:py|sh|json|toml|cff|yml))(?![\w*/])", text)
    return {name for name in names if not name.startswith((".", "-"))}


def new_files(text: str) -> set[str]:
    """Files that an example of the text makes, which its own test tries."""
    return set(re.findall(r"`([\w./-]+)`, a new file", text))


def named_modules(text: str) -> set[str]:
    """The project's modules that a text names, such as nystromformer.attention.reference; calls are none."""
    return set(re.findall(r"\bnystromformer(?:\.[a-z_]+)+\b(?!\()", text))


def exists(relative: Path) -> bool:
    """Whether there is such a file at the top, or as the end of a path within code/ or results/."""
    if (ROOT / relative).exists():
        return True
    candidates = (path for folder in ("code", "results") for path in (ROOT / folder).rglob(relative.name))
    return any(path.parts[-len(relative.parts) :] == relative.parts for path in candidates)
