"""The texts of the repository that people read: their links, headings, and the paths that they name."""

import re
from pathlib import Path

from small import ROOT

_PATTERNS = (
    *(
        "*.md",
        "docs/*.md",
        "docs/results/*.md",
        "*/README.md",
        "data/*/README.md",
        "experiments/*/README.md",
        "data-preprocessing/*/README.md",
    ),
    *("results/*.md", "results/*/*.md", ".github/*.md"),
)
_OWN = re.compile(r"demo|\.(?!github)")
"""Folders that commands and tools leave behind."""

PATHS = sorted(
    {path for pattern in _PATTERNS for path in ROOT.glob(pattern) if not _OWN.match(path.relative_to(ROOT).parts[0])}
)
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PATHS}
README = TEXTS["README.md"]


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
