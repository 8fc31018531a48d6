"""How far a converted model is from its source.

Shapes: B rows, N tokens, E width.
"""

import time
from statistics import mean, median

import torch
from torch import Tensor

from nystromformer.attention import AttentionMask
from nystromformer.attention.near_far import PARTS, NearFarAttention
from nystromformer.exchange.convert.recording import recording
from nystromformer.exchange.convert.rows import TextRows, pad_rows
from nystromformer.interop.distance import valid_alone
from nystromformer.model import PretrainingModel
from nystromformer.training import Device
from nystromformer.training.trainable import Batch, to_device

_ATTENTION, _OUTPUT = "attention", "output"


class Comparison:
    """Relative errors of each layer, ‖found − wanted‖ / ‖wanted‖ over all valid tokens.

    Of its attention, given the input that the source's has; of near_far also with one kind of its keys alone; and of
    its output in the whole model, the last one's with the norm behind it.
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._squares: dict[str, Tensor] = {}
        """By what is compared: of each layer the sums of squares of the differences and of what was wanted."""
        self._times: list[float] = []
        """Of each batch: the seconds of the encoder over those of the source's, one after the other."""
        self._cosines: list[float] = []
        """Of each row: between the means of the last hidden vectors."""

    def add(self, model: PretrainingModel, source: PretrainingModel, batch: Batch) -> None:
        """Compare on a batch."""
        keep_BN = batch.get("mask_BN")
        mask = None if keep_BN is None else AttentionMask(keep_BN)
        begin = _now(batch)
        with recording(source) as wanted:
            wanted_BNE = source.encoder(batch["tokens_BN"], mask)
        between = _now(batch)
        with recording(model) as found:
            found_BNE = model.encoder(batch["tokens_BN"], mask)
        self._times.append((_now(batch) - between) / (between - begin))
        outputs = zip([*found.hidden[:-1], found_BNE], [*wanted.hidden[:-1], wanted_BNE], strict=True)
        for number, (one_BNE, other_BNE) in enumerate(outputs):
            self._add(_OUTPUT, number, one_BNE, other_BNE, keep_BN)
        # The sums over tokens point where the means do.
        of_found, of_wanted = (valid_alone(x, keep_BN).sum(1) for x in (found_BNE, wanted_BNE))
        self._cosines += torch.cosine_similarity(of_found, of_wanted).tolist()
        for number, (layer, attended) in enumerate(zip(model.encoder.layers, wanted.attended, strict=True)):
            attention, (arguments, output_BNE) = layer.get_submodule("attention"), attended
            self._add(_ATTENTION, number, attention(*arguments), output_BNE, keep_BN)
            core = attention.get_submodule("core")
            if isinstance(core, NearFarAttention):
                for part in PARTS:
                    with core.only(part):
                        self._add(part, number, attention(*arguments), output_BNE, keep_BN)

    def _add(self, what: str, layer: int, found: Tensor, wanted: Tensor, keep_BN: Tensor | None) -> None:
        found, wanted = (valid_alone(x, keep_BN).double() for x in (found, wanted))
        sums = self._squares.setdefault(what, torch.zeros(self._layers, 2, dtype=torch.float64))
        sums[layer] += torch.stack([(found - wanted).square().sum(), wanted.square().sum()]).cpu()

    def _errors(self, what: str) -> list[float]:
        differences, wanted = self._squares[what].unbind(1)
        errors: list[float] = (differences / wanted).sqrt().tolist()
        return errors

    def metrics(self) -> dict[str, float]:
        """What validation logs."""
        return {
            "loss": mean(self._errors(_ATTENTION)),
            "hidden_error": self._errors(_OUTPUT)[-1],
            "cosine": mean(self._cosines),
        }

    def as_data(self) -> dict[str, object]:
        """For a JSON file."""
        return {
            "attention_errors": self._errors(_ATTENTION),
            "part_errors": {part: self._errors(part) for part in PARTS if part in self._squares},
            "hidden_errors": self._errors(_OUTPUT),
            "time_ratio": median(self._times),
            "cosine": mean(self._cosines),
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
        given = pad_rows(rows.held_out[start : start + batch], rows.special.pad)
        with torch.autocast(device.device.type, enabled=False):
            comparison.add(model, source, to_device(given, device.device))
    return comparison


def _now(batch: Batch) -> float:
    """Seconds, once a GPU has computed what it was given."""
    if batch["tokens_BN"].is_cuda:
        torch.cuda.synchronize(batch["tokens_BN"].device)
    return time.perf_counter()
