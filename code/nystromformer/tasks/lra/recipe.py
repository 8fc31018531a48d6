"""How the Long Range Arena's encoder gets another attention than its config.json's.

The launcher imports this too, on machines that have neither torch nor numpy.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nystromformer.config import ExperimentConfig, peek_config
from nystromformer.config.attention import ATTENTIONS
from nystromformer.config.ranges import LEAST_RATE, MOST, MOST_RATE
from nystromformer.errors import UserError
from nystromformer.tasks.finetuning.settings import Sweep, numbers
from nystromformer.tasks.lra.tracks import Track

TASKS = ("listops", "text", "retrieval", "image", "pathfinder")

PUBLISHED: dict[str, dict[str, Any]] = {
    "linformer": {"projected_length": 256},
    "nystrom": {"num_landmarks": 64},
    "performer": {"num_features": 256},
    "reformer": {"num_hashes": 2},
}
"""Parameters of the paper's Table 3 where they are not this project's defaults."""
AS_PUBLISHED: dict[str, dict[str, Any]] = {
    "linformer": {"as_in_table3": True},
    "nystrom": {"segments": "padded", "pinv_start": "batch"},
    "performer": {"as_in_table3": True, "redraw_steps": None},
    "reformer": {"as_in_table3": True},
}
"""What the code of the paper's authors computes otherwise than the attention of that name, for `--as_published`."""


def overrides_for(
    config_file: Path,
    attention: str | None,
    taps: int | None,
    track: Track,
    given: Sequence[str],
    padded: int | None = None,
) -> list[str]:
    """What to write over a config.json so that its encoder has an attention.

    Args:
        attention: None: config.json's own.
        taps: of the convolution beside it; 0: none; None: as config.json has it with its own attention, else none.
        track: what it needs.
        given: further overrides, which come last, such as parameters of the attention, and in the place of the track's.
        padded: with --as_published, the tokens of every row: the longest that the model takes, because the authors'
            landmarks, chunks and projections, which each attention gets, are of the padded length. None without it.

    Raises:
        UserError: there is no such attention, or config.json has several and `taps` is given.
    """
    section = peek_config(config_file).get("model")
    own = section.get("attn_type") if isinstance(section, dict) else None
    chosen: Any = own
    if attention is not None:
        if attention not in ATTENTIONS:
            raise UserError(f"--attention {attention}: expected one of {', '.join(ATTENTIONS)}")
        if not (isinstance(own, dict) and own.get("name") == attention):
            chosen = {"name": attention} | PUBLISHED.get(attention, {})
    if taps is not None:
        if not isinstance(chosen, dict):
            raise UserError(
                f"--conv {taps}: expected --attention beside it, or an attn_type that is an object in {config_file}"
            )
        chosen = {key: value for key, value in chosen.items() if key != "conv_kernel_size"}
        chosen |= {"conv_kernel_size": taps} if taps else {}
    if padded is not None:
        if attention is None and (whole := [each for each in given if _key(each) == "model.attn_type"]):
            chosen, given = _value(whole[-1]), [each for each in given if each not in whole]
        chosen = [_as_published(each) for each in chosen] if isinstance(chosen, list) else _as_published(chosen)
        given = [*(each for each in given if _key(each) != "model.max_seq_len"), f"model.max_seq_len={padded}"]
    keys = set(map(_key, given))
    of_track = [f"{key}={value}" for key, value in track.overrides.items() if key not in keys]
    return [*of_track, *([] if chosen is own else [f"model.attn_type={json.dumps(chosen)}"]), *given]


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _value(override: str) -> Any:
    value = override.partition("=")[2].strip()
    try:
        return json.loads(value)
    except ValueError:
        return value


def _as_published(attention: Any) -> Any:
    """An `attn_type` of a config.json, by its name alone or with parameters, as the authors' code computes it."""
    given = {"name": attention} if isinstance(attention, str) else attention
    changes = AS_PUBLISHED.get(str(given.get("name"))) if isinstance(given, dict) else None
    return attention if changes is None else given | changes


def sweep_of(
    config: ExperimentConfig,
    flags: Sweep,
    *,
    steps: int | None,
    every: int | None,
    batch_size: str | None,
    lr: str | None,
    warmup: float | None,
) -> Sweep:
    """The runs of a command: as config.json's `pretraining_setting` says, but for the flags that are given.

    Args:
        flags: what else is set.
        steps, every: of training, and from one validation to the next.
        batch_size, lr: one value or several.

    Raises:
        UserError: a value that is none, or steps that no validation ends.
    """
    setting = config.pretraining_setting
    period = every or setting.batches_per_epoch
    count = setting.num_steps if steps is None else steps
    if count % period:
        raise UserError(f"--steps {count}: expected a multiple of --every {period}, so that the last step is validated")
    return replace(
        flags,
        batch_sizes=numbers("--batch_size", batch_size or str(setting.batch_size), int, 1, MOST),
        learning_rates=numbers("--lr", lr or repr(setting.learning_rate), float, LEAST_RATE, MOST_RATE),
        epochs=count // period,
        every=period,
        warmup=setting.warmup if warmup is None else warmup,
    )


def as_published_sweep(sweep: Sweep, longest: int) -> Sweep:
    """The same with every row padded as the authors of the paper did: to the power of two from its longest length on.

    Their mean over a row depends on what it is padded to, so that it may not be the longest row of a batch.
    """
    length = sweep.length or longest
    return sweep if sweep.pad_to is not None else replace(sweep, length=length, pad_to=1 << (length - 1).bit_length())


def check_task(name: str) -> None:
    """Refuse what is no task.

    Raises:
        UserError: lists those there are.
    """
    if name not in TASKS:
        raise UserError(f"--task {name}: expected one of {', '.join(TASKS)}")
