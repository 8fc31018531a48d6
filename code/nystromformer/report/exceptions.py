"""The table of docs/library.md, which attention keeps what, made from what the modules declare.

`python -m nystromformer.report.exceptions` prints it.
"""

import json
import sys
from dataclasses import fields

from nystromformer.attention import Holds, Needs, create_attention
from nystromformer.config import ATTENTIONS
from nystromformer.tables import markdown


def exceptions_table() -> str:
    """Markdown: a row per attention, and settings of one, that does not hold the whole contract or needs something."""
    rows = []
    for name, config in ATTENTIONS.items():
        for settings in ({}, *config.exceptional):
            module = create_attention(name, num_heads=1, head_dim=1, max_length=1, **settings)
            missing = [field.name for field in fields(Holds) if not getattr(module.holds, field.name)]
            needed = [field.name for field in fields(Needs) if getattr(module.needs, field.name)]
            if missing or needed:
                said = (key if value is True else f"{key}={json.dumps(value)}" for key, value in settings.items())
                lists = (", ".join(names).replace("_", " ") or "-" for names in (missing, needed))
                rows.append([f"`{', '.join([name, *said])}`", *lists])
    return markdown(["attention", "does not hold", "needs"], rows)


if __name__ == "__main__":
    sys.stdout.write(exceptions_table() + "\n")
