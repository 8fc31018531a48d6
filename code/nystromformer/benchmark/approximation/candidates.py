"""Which attentions can stand in softmax's place without training, and with which settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from nystromformer.attention import create_attention
from nystromformer.benchmark.efficiency.methods import parse_method
from nystromformer.config import ATTENTIONS, AttentionConfig, attention_config
from nystromformer.errors import UserError

RULES = ("segment_means", "strided", "kmeans")
"""How Nyström attention picks its landmarks, the paper's first."""
WIDTHS: Mapping[str, tuple[str, Sequence[int], dict[str, Any]]] = {
    "bigbird": ("block_size", (16, 32, 64), {"num_global_blocks": 1}),
    "local": ("block_size", (16, 32, 64, 128), {}),
    "longformer": ("window", (16, 32, 64, 128, 256), {}),
    "mra": ("num_blocks", (2, 4, 8), {}),
    "near_far": ("num_selected", (0, 16, 32, 64), {"num_landmarks": 16}),
    "performer": ("num_features", (32, 64, 128, 256), {}),
    "sinkhorn": ("block_size", (16, 32, 64, 128), {}),
    "sparse": ("stride", (8, 16, 32), {}),
}
"""By attention: the setting that trades time for exactness, its values, and others beside it. One that is not here is
tried with its defaults; Nyström's is `--landmarks`.
"""


def why_not(config: AttentionConfig) -> str | None:
    """Why an attention cannot take softmax's place without training; None where it can."""
    core = create_attention(config, num_heads=2, head_dim=8, max_length=64)
    if core.needs.shared_query_key:
        return "its queries and keys are tied"
    if core.needs.no_query or core.needs.no_key or any(True for _ in core.parameters()):
        return "it has learned parts of its own"
    return None


def choose_candidates(
    attentions: Sequence[str], landmarks: Sequence[int], length: int
) -> tuple[dict[str, AttentionConfig], dict[str, str]]:
    """All that can be tried at a length, by name, and of the attentions that cannot, why.

    Args:
        attentions: as `--attention` takes them; none: all.

    Raises:
        UserError: an unknown attention; one that is asked for and cannot be tried.
    """
    found: dict[str, AttentionConfig] = {}
    missing: dict[str, str] = {}
    for text in attentions or [name for name in ATTENTIONS if name != "softmax"]:
        method = parse_method(text)
        config = method.config
        assert config is not None
        if (reason := why_not(config)) is not None:
            if attentions:
                raise UserError(f"--attention {text}: it cannot replace softmax without training: {reason}")
            missing[config.name] = reason
            continue
        settings = {method.name: config} if text != config.name else _with_widths(config, landmarks)
        able = {
            name: each
            for name, each in settings.items()
            if each.why_not_length(length) is None and not each.impossible_at(length)
        }
        found |= able
        if not able:
            missing[config.name] = f"none of its settings fits {length} tokens"
    if not found:
        raise UserError(f"none of the attentions accepts rows of {length} tokens")
    return found, missing


def _with_widths(config: AttentionConfig, landmarks: Sequence[int]) -> dict[str, AttentionConfig]:
    name = config.name
    if name == "nystrom":
        return {
            f"{name if rule == RULES[0] else f'{name}, {rule}'} {count}": attention_config(
                name, num_landmarks=count, landmarks=rule
            )
            for rule in RULES
            for count in landmarks
        }
    if name not in WIDTHS:
        return {name: config}
    key, widths, others = WIDTHS[name]
    return {f"{name} {width}": attention_config(name, **{key: width}, **others) for width in widths}
