"""The table of docs/library.md, which attention keeps what, made from what the modules declare."""

from dataclasses import fields

from nystromformer.attention import Holds, Needs, create_attention
from nystromformer.tables import markdown

VARIANTS: dict[str, dict[str, object]] = {
    "softmax": {"name": "softmax"},
    "softmax, ignore_mask": {"name": "softmax", "ignore_mask": True},
    "nystrom": {"name": "nystrom"},
    'nystrom, segments="padded"': {"name": "nystrom", "segments": "padded"},
    'nystrom, segments="padded_unmasked"': {"name": "nystrom", "segments": "padded_unmasked"},
    'nystrom, pinv_start="batch"': {"name": "nystrom", "pinv_start": "batch"},
    'nystrom, segments="padded", pinv_start="batch", ignore_mask': {
        "name": "nystrom",
        "segments": "padded",
        "pinv_start": "batch",
        "ignore_mask": True,
    },
}


def exceptions_table() -> str:
    """Markdown: a row per attention, a column per property of the contract, and what the method needs."""
    properties = [field.name for field in fields(Holds)]
    rows = []
    for label, parameters in VARIANTS.items():
        options = dict(parameters)
        module = create_attention(str(options.pop("name")), num_heads=1, head_dim=1, **options)
        kept = ["yes" if getattr(module.holds, name) else "no" for name in properties]
        needed = [field.name.replace("_", " ") for field in fields(Needs) if getattr(module.needs, field.name)]
        rows.append([f"`{label}`", *kept, ", ".join(needed) or "-"])
    return markdown(["attention", *(name.replace("_", " ") for name in properties), "needs"], rows)
