"""Whether a tokenizer's two files belong together, told without the project's own check."""

import json
from collections import Counter
from pathlib import Path

TOKENIZER_FILES = ("vocab.json", "merges.txt")
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def is_consistent(folder: Path) -> bool:
    """Whether each entry of vocab.json is a special word, one byte's letter, or what one line of merges.txt makes."""
    try:
        vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
        pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
        made = Counter("".join(pair) for pair in pairs)
        ids = sorted(vocabulary.values())
        return (
            all(len(pair) == 2 and all(part in vocabulary for part in pair) for pair in pairs)
            and set(_SPECIAL) <= set(vocabulary)
            and made == Counter(word for word in vocabulary if len(word) > 1 and word not in _SPECIAL)
            and ids == list(range(len(ids)))
            and len(ids) == len(made) + 256 + len(_SPECIAL)
        )
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return False
