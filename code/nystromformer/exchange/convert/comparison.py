"""How far a converted model is from its source.

Shapes: B rows, N tokens, E width.
"""

import time
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

from nystromformer.attention import AttentionMask
from nystromformer.attention.near_far import PARTS, NearFarAttention
from nystromformer.exchange.convert.recording import Recorded
from nystromformer.exchange.convert.rows import TextRows, padded
from nystromformer.interop.distance import valid_alone
from nystromformer.model import PretrainingModel
from nystromformer.training import Device
from nystromformer.training.trainable import Batch, to_device


@dataclass
class _Sums:
    """Of squares, over all rows."""

    differences: float = 0.0
    wanted: float = 0.0

    def add(self, found: Tensor, wanted: Tensor, keep_BN: Tensor | None) -> None:
        found, wanted = (valid_alone(x, keep_BN).double() for x in (found, wanted))
        self.differences += float((found - wanted).square().sum())
        self.wanted += float(wanted.square().sum())

    @property
    def error(self) -> float:
        return float((self.differences / self.wanted) ** 0.5)


@dataclass
class Comparison:
    """Relative errors, ‖found − wanted‖ / ‖wanted‖ over all valid tokens, and the cosine of the rows' means."""

    layers: int
    attentions: list[_Sums] = field(default_factory=list)
    """Of each layer's attention, given the input that the source's has."""
    parts: dict[str, list[_Sums]] = field(default_factory=dict)
    """Of near_far: the same with one kind of its keys alone."""
    hidden: list[_Sums] = field(default_factory=list)
    """Of each layer's output, in the whole model; the last one's with the norm behind it."""
    times: list[float] = field(default_factory=list)
    """Of each batch: the seconds of the encoder over those of the source's, one after the other."""
    cosines: list[float] = field(default_factory=list)
    """Of each row: between the means of the last hidden vectors."""

    def __post_init__(self) -> None:
        self.attentions = [_Sums() for _ in range(self.layers)]
        self.hidden = [_Sums() for _ in range(self.layers)]

    def add(self, model: PretrainingModel, source: PretrainingModel, batch: Batch) -> None:
        """Compare on a batch."""
        keep_BN = batch.get("mask_BN")
        mask = None if keep_BN is None else AttentionMask(keep_BN)
        begin = time.perf_counter()
        with Recorded(source) as wanted:
            wanted_BNE = source.encoder(batch["tokens_BN"], mask)
        between = time.perf_counter()
        with Recorded(model) as found:
            found_BNE = model.encoder(batch["tokens_BN"], mask)
        self.times.append((time.perf_counter() - between) / (between - begin))
        outputs = [*found.hidden[:-1], found_BNE], [*wanted.hidden[:-1], wanted_BNE]
        for sums, one, other in zip(self.hidden, *outputs, strict=True):
            sums.add(one, other, keep_BN)
        # The sums over tokens point where the means do.
        of_found, of_wanted = (valid_alone(x, keep_BN).sum(1) for x in (found_BNE, wanted_BNE))
        self.cosines += torch.cosine_similarity(of_found, of_wanted).tolist()
        self._add_attentions(model, wanted, keep_BN)

    def _add_attentions(self, model: PretrainingModel, wanted: Recorded, keep_BN: Tensor | None) -> None:
        for number, (layer, attended) in enumerate(zip(model.encoder.layers, wanted.attended, strict=True)):
            attention = layer.get_submodule("attention")
            self.attentions[number].add(attention(*attended.arguments), attended.output_BNE, keep_BN)
            core = attention.get_submodule("core")
            if not isinstance(core, NearFarAttention):
                continue
            for part in PARTS:
                with core.only(part):
                    alone_BNE = attention(*attended.arguments)
                sums = self.parts.setdefault(part, [_Sums() for _ in range(self.layers)])
                sums[number].add(alone_BNE, attended.output_BNE, keep_BN)

    def metrics(self) -> dict[str, float]:
        """What validation logs."""
        attentions = [sums.error for sums in self.attentions]
        return {
            "loss": sum(attentions) / len(attentions),
            "hidden_error": self.hidden[-1].error,
            "cosine": sum(self.cosines) / len(self.cosines),
        }

    def as_data(self) -> dict[str, object]:
        """For a JSON file."""
        return {
            "attention_errors": [sums.error for sums in self.attentions],
            "part_errors": {part: [each.error for each in sums] for part, sums in self.parts.items()},
            "hidden_errors": [sums.error for sums in self.hidden],
            "time_ratio": median(self.times),
            "cosine": sum(self.cosines) / len(self.cosines),
        }


@torch.no_grad()
def compare(
    model: PretrainingModel, source: PretrainingModel, rows: TextRows, batch: int, device: Device
) -> Comparison:
    """The model beside its source on the rows that are held out, in float32 whatever the training computes in.

    Args:
        batch: rows at a time.
    """
    model.eval()
    comparison = Comparison(len(model.encoder.layers))
    for start in range(0, len(rows.held_out), batch):
        given = padded(rows.held_out[start : start + batch], rows.special.pad)
        comparison.add(model, source, to_device(given, device.device))
    return comparison
