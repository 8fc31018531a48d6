"""What guessers without a network reach on the masked tokens, the scale that an accuracy is read against."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nystromformer.data.counter import permute
from nystromformer.data.dataset import Dataset, Rows
from nystromformer.data.masking import IGNORED_LABEL
from nystromformer.tasks.pretraining.batches import RowPreparation, ValidationBatches

_COUNTED_TOKENS = 16_000_000
"""Counting the pairs of more training tokens would take memory and change the guesses little."""
_SAMPLE_STREAM = 12


@dataclass(frozen=True)
class Guesses:
    """Learned from the training rows by counting; special tokens are never guessed."""

    most_frequent: int
    after_V: NDArray[np.int64]
    """For each token, the one that follows it most often; the most frequent one where nothing follows."""


def count_guesses(rows: Rows, vocab_size: int, special: tuple[int, ...]) -> Guesses:
    """Count single tokens and neighbouring pairs of the training rows; of many, of a sample of all of them.

    The rows of a mixture lie corpus after corpus: the first ones are of the first corpus alone.
    """
    count = min(len(rows), max(1, _COUNTED_TOKENS // rows.tokens.shape[1]))
    sample = np.sort(permute(np.arange(count), len(rows), _SAMPLE_STREAM))
    tokens = np.asarray(rows.tokens[sample]).astype(np.int64)
    counts = np.bincount(tokens.ravel(), minlength=vocab_size)
    counts[list(special)] = 0
    most_frequent = int(counts.argmax())
    pairs, frequency = np.unique(tokens[:, :-1] * vocab_size + tokens[:, 1:], return_counts=True)
    left, right = pairs // vocab_size, pairs % vocab_size
    ordinary = ~np.isin(right, special)
    left, right, frequency = left[ordinary], right[ordinary], frequency[ordinary]
    # Rarest first, so that the last write for each left token is its most frequent follower.
    order = np.argsort(frequency, kind="stable")
    after = np.full(vocab_size, most_frequent, dtype=np.int64)
    after[left[order]] = right[order]
    return Guesses(most_frequent, after)


def baseline_accuracies(dataset: Dataset, preparation: RowPreparation, num_rows: int | None = None) -> dict[str, float]:
    """Accuracy on the validation rows' masked tokens, the same that `Pretraining.score` asks for. The bigram table sees
    the true left neighbour, also where the model finds a mask there.
    """
    special = dataset.manifest.special
    ids = (special.bos, special.pad, special.eos, special.unk, special.mask)
    guesses = count_guesses(dataset.train, dataset.manifest.vocab_size, ids)
    total = frequent = bigram = 0
    for batch in ValidationBatches(dataset.validation, preparation, num_rows):
        tokens, positions, labels = (batch[name].numpy() for name in ("tokens_BN", "positions_BK", "labels_BK"))
        asked = labels != IGNORED_LABEL
        rows = np.broadcast_to(np.arange(len(tokens))[:, None], labels.shape)
        true = tokens.copy()
        true[rows[asked], positions[asked]] = labels[asked]
        left = true[rows[asked], positions[asked] - 1]
        total += int(asked.sum())
        frequent += int((labels[asked] == guesses.most_frequent).sum())
        bigram += int((labels[asked] == guesses.after_V[left]).sum())
    return {"most_frequent_token": frequent / total, "bigram_table": bigram / total}
