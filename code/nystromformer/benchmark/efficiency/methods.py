"""What is compared: attentions by their settings, softmax written out, and a control."""

from collections.abc import Sequence
from dataclasses import dataclass

from nystromformer.config import ATTENTIONS, AttentionConfig, attention_config
from nystromformer.config.attention_text import parse_attention

SDPA, WRITTEN_OUT, CONTROL = "softmax (SDPA)", "softmax, written out", "elementwise control"
BASELINES = (SDPA, WRITTEN_OUT)
"""What times and memory are divided by."""
_PAPERS = {"nystrom": ("nystrom,num_landmarks=32",), "longformer": ("longformer,window=256",)}
"""Behind an attention with its defaults, others of the paper's Table 1."""


@dataclass(frozen=True)
class Method:
    """A row of the comparison."""

    name: str
    config: AttentionConfig | None
    """None: one that no config.json names."""

    def why_not(self, length: int) -> str | None:
        """Why it cannot be measured at a length; None where it can."""
        if self.config is None:
            return None
        if reason := self.config.why_not_length(length):
            return reason
        problems = [text for _, text in self.config.impossible_at(length)]
        return problems[0] if problems else None


def choose_methods(attentions: Sequence[str]) -> list[Method]:
    """The methods that `--attention` asks for, all where it does not, behind the two softmaxes.

    Raises:
        UserError: an unknown attention, or parameters that it does not take.
    """
    found = [Method(SDPA, attention_config("softmax")), Method(WRITTEN_OUT, None)]
    for text in attentions or [text for name in ATTENTIONS for text in (name, *_PAPERS.get(name, ()))]:
        method = parse_method(text)
        if method.config not in [other.config for other in found]:
            found.append(method)
    return found


def parse_method(text: str) -> Method:
    """An attention and its parameters, as `parse_attention` takes them.

    Raises:
        UserError: as `choose_methods`.
    """
    config, parameters = parse_attention(text)
    shown = ", ".join(f"{key} {value}" for key, value in parameters.items())
    return Method(f"{config.name} ({shown})" if shown else config.name, config)
