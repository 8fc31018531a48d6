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
    """Markdown: a row per attention and settings that change what it keeps, a column per property of the contract, and
    what the method needs.
    """
    properties = [field.name for field in fields(Holds)]
    rows = []
    for name, config in ATTENTIONS.items():
        for settings in ({}, *config.exceptional):
            module = create_attention(name, num_heads=1, head_dim=1, max_length=1, **settings)
            kept = ["yes" if getattr(module.holds, each) else "no" for each in properties]
            needed = [field.name.replace("_", " ") for field in fields(Needs) if getattr(module.needs, field.name)]
            said = (key if value is True else f"{key}={json.dumps(value)}" for key, value in settings.items())
            rows.append([f"`{', '.join([name, *said])}`", *kept, ", ".join(needed) or "-"])
    return markdown(["attention", *(name.replace("_", " ") for name in properties), "needs"], rows)


if __name__ == "__main__":
    sys.stdout.write(exceptions_table() + "\n")
