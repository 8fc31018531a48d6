"""WikiHop's instances as rows for a model that scores candidates.

Shapes: I instances of a batch, B their rows, N tokens, C the most candidates of a row, A the most of an instance.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from nystromformer.errors import UserError
from nystromformer.tasks.finetuning.encoded import PIECE, literal
from nystromformer.tasks.finetuning.examples import Ints
from nystromformer.tasks.wikihop.chunks import InstanceTokens, Tokens, cut, markers, row_of
from nystromformer.tasks.wikihop.read import Instance


def tokenise(instances: Sequence[Instance], tokenizer: Tokenizer) -> list[InstanceTokens]:
    """The instances' tokens; special ones that a text spells are taken for text."""
    encoder = literal(tokenizer)
    encoder.no_truncation()
    encoder.no_padding()
    texts = [text for each in instances for text in (each.query, *each.candidates, *each.supports)]
    pieces: list[Tokens] = []
    for start in range(0, len(texts), PIECE):
        encodings = encoder.encode_batch_fast(texts[start : start + PIECE], add_special_tokens=False)
        pieces += [np.asarray(encoding.ids, dtype=np.int32) for encoding in encodings]
    left = iter(pieces)
    return [
        InstanceTokens(next(left), [next(left) for _ in each.candidates], [next(left) for _ in each.supports])
        for each in instances
    ]


class WikiHopExamples:
    """The instances of a split, cut into chunks of at most `length` tokens.

    Implements Examples: an example is an instance and takes a row for each of its chunks.

    Args:
        tokenizer: with WikiHop's special tokens added.
        most_global: tokens that a row's prefix may have, since the attention takes no more as global; None: any number.
    """

    def __init__(
        self,
        name: str,
        instances: Sequence[Instance],
        tokenizer: Tokenizer,
        length: int,
        most_global: int | None = None,
    ) -> None:
        self.name = name
        self.ids = [each.id for each in instances]
        self.candidates = [each.candidates for each in instances]
        right = [each.right for each in instances]
        self.labels = None if None in right else np.asarray(right, dtype=np.int64)
        self._tokens = tokenise(instances, tokenizer)
        self._length, self._markers = length, markers(tokenizer)
        digest = hashlib.sha256(json.dumps([length, *self._markers, right]).encode())
        counts = np.empty((len(instances), 3), dtype=np.int64)
        for number, tokens in enumerate(self._tokens):
            chunks = cut(self.ids[number], *tokens.sizes, length)
            sizes = [chunk.length for chunk in chunks]
            longest = max(chunk.prefix for chunk in chunks)
            if most_global is not None and longest > most_global:
                raise UserError(
                    f"{self.ids[number]}: its question and candidates are {longest} tokens, and the attention allows "
                    f"{most_global} global tokens: raise its global_capacity by {longest - most_global} or more"
                )
            counts[number] = max(sizes), len(sizes), sum(sizes)
            digest.update(json.dumps(tokens.sizes).encode())
            digest.update(np.concatenate([tokens.question, *tokens.candidates, *tokens.supports]).data)
        self.lengths, self.rows, self.tokens = np.ascontiguousarray(counts.T)
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, numbers: Ints, name: str) -> WikiHopExamples:
        """Some of the instances, in the given order, under another name."""
        part, chosen = copy.copy(self), numbers.tolist()
        part.name = name
        part.ids = [self.ids[number] for number in chosen]
        part.candidates = [self.candidates[number] for number in chosen]
        part._tokens = [self._tokens[number] for number in chosen]
        part.labels = None if self.labels is None else self.labels[numbers]
        part.lengths, part.rows, part.tokens = (array[numbers] for array in (self.lengths, self.rows, self.tokens))
        part.fingerprint = hashlib.sha256(f"{self.fingerprint} {chosen}".encode()).hexdigest()
        return part

    def answers(self, scores_IA: Tensor) -> dict[str, str]:
        """By each instance's id the text of its best candidate, as QAngaroo's evaluation reads it, of scores that are
        -inf where an instance has no such candidate.
        """
        best = scores_IA.argmax(-1).tolist()
        return {name: own[number] for name, own, number in zip(self.ids, self.candidates, best, strict=True)}

    def batch(self, numbers: Ints, pad_to: int | None = None) -> dict[str, Tensor]:
        """The chunks of these instances, one after the other.

        global_BN is True for the prefix; positions_BC is where the `<answer>` of each of the row's candidates is, and
        candidates_BC which of the instance's candidates it is, both -1 in the padding; instance_B the number of the
        row's instance within the batch; present_IA True for the candidates that an instance has.
        """
        rows, candidates, instances = [], [], []
        for index, number in enumerate(numbers.tolist()):
            tokens: InstanceTokens = self._tokens[number]
            for chunk in cut(self.ids[number], *tokens.sizes, self._length):
                rows.append(row_of(chunk, tokens, self._markers))
                candidates.append(chunk.candidates)
                instances.append(index)
        width = pad_to or max(len(row.tokens) for row in rows)
        tokens_BN = np.full((len(rows), width), self._markers.pad, dtype=np.int64)
        positions_BC = np.full((len(rows), max(map(len, candidates))), -1, dtype=np.int64)
        candidates_BC = positions_BC.copy()
        for at, row in enumerate(rows):
            tokens_BN[at, : len(row.tokens)] = row.tokens
            positions_BC[at, : len(row.positions)] = row.positions
            candidates_BC[at, : len(row.positions)] = candidates[at]
        place_N = np.arange(width)
        num_candidates = np.asarray([len(self.candidates[number]) for number in numbers.tolist()])
        arrays = {
            "tokens_BN": tokens_BN,
            "mask_BN": place_N < np.asarray([len(row.tokens) for row in rows])[:, None],
            "global_BN": place_N < np.asarray([row.prefix for row in rows])[:, None],
            "positions_BC": positions_BC,
            "candidates_BC": candidates_BC,
            "instance_B": np.asarray(instances, dtype=np.int64),
            "present_IA": np.arange(num_candidates.max()) < num_candidates[:, None],
        }
        if self.labels is not None:
            arrays["labels"] = self.labels[numbers]
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
