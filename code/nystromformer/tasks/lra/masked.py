"""Examples whose masked tokens are to be guessed, the same ones every time: to validate by."""

import hashlib

from torch import Tensor

from nystromformer.tasks.finetuning.examples import Examples, Ints, Labels
from nystromformer.tasks.lra.noise import mask_tokens

_SEED = 0


class MaskedExamples:
    """Other examples with tokens of each masked; implements Examples.

    Args:
        rate: of an example's tokens that are masked.
        mask_token: stands in their place.
    """

    def __init__(self, examples: Examples, rate: float, mask_token: int) -> None:
        self.name = examples.name
        self.lengths, self.rows, self.tokens = examples.lengths, examples.rows, examples.tokens
        self.labels: Labels | None = examples.labels
        self._examples, self._rate, self._mask_token = examples, rate, mask_token

    def __len__(self) -> int:
        return len(self._examples)

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self._examples.fingerprint} masked {self._rate}".encode()).hexdigest()

    def batch(self, numbers: Ints, pad_to: int | None = None) -> dict[str, Tensor]:
        batch = self._examples.batch(numbers, pad_to)
        return mask_tokens(batch, numbers, self._rate, 1.0, self._mask_token, _SEED, 0)
