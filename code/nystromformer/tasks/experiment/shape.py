"""The shape of a run's weights: given once, and from then on that of its checkpoints."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nystromformer.config.network import SHAPE_KEYS
from nystromformer.errors import UserError

logger = logging.getLogger(__name__)

SHAPE = {f"model.{name}": name for name in SHAPE_KEYS}
"""Dotted keys of config.json, and their names in the section "model"."""


@dataclass(frozen=True)
class RunShape:
    """What a run's newest checkpoint says of its shape."""

    source: Path
    model: Mapping[str, Any]
    """The section "model" that the run has."""
    set_by_flag: Mapping[str, Any]
    """The keys of it that `--set` gave, dotted, and their values."""


def run_shape(checkpoints: Path) -> RunShape | None:
    """The shape of the run in a folder; None where there is no checkpoint, or an earlier version's, that says it."""
    if not any(checkpoints.glob("cp-*")):
        return None
    # Only now: importing torch takes seconds.
    from nystromformer.training.checkpoint import newest_facts

    newest = newest_facts(checkpoints)
    if newest is None or "set_by_flag" not in newest[1]:
        return None
    source, facts = newest
    config, by_flag = facts.get("config"), facts["set_by_flag"]
    model = config.get("model") if isinstance(config, dict) else None
    if not isinstance(model, dict) or not set(SHAPE_KEYS) <= model.keys() or not isinstance(by_flag, dict):
        return None  # no run wrote it: what reads it says so
    return RunShape(source, model, by_flag)


def recall_shape(run: RunShape, path: Path, data: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What the run had by `--set` and is not given now; a line says where that is not config.json's value.

    Args:
        path: of config.json.
        data: what is in it, with the overrides, not checked yet.
        given: the overrides' dotted keys and values.

    Returns:
        Dotted keys and values.

    Raises:
        UserError: another shape than the run's; lists each key with both values.
    """
    recalled = {key: value for key, value in run.set_by_flag.items() if key in SHAPE and key not in given}
    section = data.get("model")
    written = section if isinstance(section, dict) else {}
    # What is missing or no number is for the checks of the whole.
    now = {key: written[name] for key, name in SHAPE.items() if type(written.get(name)) is int}
    differing = [key for key in now if key not in recalled and now[key] != run.model[SHAPE[key]]]
    if differing:
        lines = "".join(
            f"\n  {key}: {run.model[SHAPE[key]]} in the checkpoint, {now[key]} {'by --set' if key in given else 'now'}"
            for key in differing
        )
        raise UserError(
            f"{path}: of another shape than the run's newest checkpoint, {run.source}:{lines}\n"
            "Restore these, leave --set out, or begin in a new folder."
        )
    changed = [
        f"{key}={value} (config.json: {now.get(key, 'nothing')})"
        for key, value in recalled.items()
        if value != now.get(key)
    ]
    # Of several processes one speaks.
    if changed and os.environ.get("RANK", "0") == "0":
        logger.info("as in %s, by --set when the run began: %s", run.source.name, ", ".join(changed))
    return recalled
