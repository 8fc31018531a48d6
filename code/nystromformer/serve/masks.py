"""A pretrained model that fills masked tokens in.

Shapes: B rows, N tokens, K masked positions, P some of all rows', C choices, V vocabulary, E width.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from nystromformer.data.tokenizer import special_tokens
from nystromformer.files.writing import sha256_of
from nystromformer.model import PretrainingModel
from nystromformer.serve.answers import Answer, Choice, Source
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.tokenizer import find_tokenizer
from nystromformer.tasks.finetuning.encoded import literal
from nystromformer.tasks.prediction.batches import has_rows_apart
from nystromformer.tasks.pretraining.validation import load_checkpoint
from nystromformer.training import Device
from nystromformer.training.archive import read_checkpoint
from nystromformer.training.checkpoint import choose_weights

MASK = "<mask>"
_MOST_MASKS = 64
"""In a text: each has five answers, and a small request would have a large one."""
_SHOWN = 5
"""Choices for each masked token."""
_LOGITS = 1 << 24
"""Held at a time."""


class FillMask:
    """What stands at `<mask>` in a text; implements Model.

    Args:
        experiment: a pretrained one.
        wanted: "last", or an epoch's number.
        tokenizer: a folder; None: the one beside the checkpoints.

    Raises:
        UserError: no such checkpoint, or its tokenizer is not there.
    """

    does = f"It guesses what stands at {MASK} in a text."
    example = f"The capital of France is {MASK}."

    def __init__(self, experiment: Experiment, wanted: str, tokenizer: Path | None, device: Device) -> None:
        path = choose_weights(experiment.checkpoints, wanted)[0]
        content = read_checkpoint(path, mmap=True)
        self.name = f"{experiment.name}, {path.name}"
        self.longest = experiment.config.model.max_seq_len
        self._length = experiment.config.model.fixed_length
        self.window: tuple[int, int] | None = None
        self._tokenizer: Tokenizer = literal(find_tokenizer(experiment, tokenizer, content["tokenizer"]))
        self._special = special_tokens(self._tokenizer)
        model, _ = load_checkpoint(experiment, path, device)
        self._model: PretrainingModel = model.eval()
        self._one_by_one = not has_rows_apart(model)
        self._device = device
        self.source = Source(
            experiment=experiment.name,
            task=None,
            folder=experiment.folder.resolve().name,
            # An imported model was trained elsewhere.
            seed=None if "imported" in content else content["config"]["pretraining_setting"]["seed"],
            checkpoint=path.name,
            checkpoint_sha256=sha256_of(path),
            tokenizer_sha256=content["tokenizer"],
        )

    def answer(self, texts: Sequence[str]) -> list[Answer]:
        if self._one_by_one and len(texts) > 1:
            return [answer for text in texts for answer in self.answer([text])]
        rows = [self._encoded(text) for text in texts]
        width = self._length or max(len(tokens) for tokens, _, _ in rows)
        most = max(len(places) for _, places, _ in rows)
        tokens_BN = torch.full((len(rows), width), self._special.pad)
        positions_BK = torch.zeros(len(rows), most, dtype=torch.int64)
        for row, (tokens, places, _) in enumerate(rows):
            tokens_BN[row, : len(tokens)] = torch.tensor(tokens)
            positions_BK[row, : len(places)] = torch.tensor(places)
        mask_BN = tokens_BN != self._special.pad
        device = self._device.device
        chances_BKC, chosen_BKC = self._likeliest(tokens_BN.to(device), positions_BK.to(device), mask_BN.to(device))
        return [
            Answer(
                [
                    Choice(self._named(token, place, len(places)), chance)
                    for place in range(len(places))
                    for token, chance in zip(
                        chosen_BKC[row, place].tolist(), chances_BKC[row, place].tolist(), strict=True
                    )
                ],
                len(tokens),
                cut,
            )
            for row, (tokens, places, cut) in enumerate(rows)
        ]

    def explain(self, text: str) -> str | None:
        return None

    @torch.no_grad()
    def _likeliest(self, tokens_BN: Tensor, positions_BK: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Of the likeliest tokens at each position the probability and the number, (B, K, C) each."""
        encoder, parts = self._model.encoder, []
        word_VE = encoder.embeddings.word.weight
        with self._device.autocast():
            hidden_PE = encoder(tokens_BN, mask_BN, None, positions_BK).flatten(0, 1)
            # A few at a time: a long text of masks alone would have logits of gigabytes.
            for part_PE in hidden_PE.split(max(1, _LOGITS // len(word_VE))):
                chances_PV = self._model.mlm(part_PE, word_VE).float().softmax(-1)
                parts.append(chances_PV.topk(min(_SHOWN, len(word_VE))))
        shape = (*positions_BK.shape, -1)
        chances, numbers = (torch.cat(each) for each in zip(*parts, strict=True))
        return chances.view(shape), numbers.view(shape)

    def _named(self, token: int, place: int, places: int) -> str:
        text = self._tokenizer.decode([token], skip_special_tokens=False).strip()
        text = text or self._tokenizer.id_to_token(token) or str(token)
        return text if places == 1 else f"{place + 1}: {text}"

    def _encoded(self, text: str) -> tuple[list[int], list[int], bool]:
        """Tokens of a row, where masks are, and whether the text was cut."""
        tokens = [self._special.bos]
        parts = text.split(MASK)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            # A masked word brings the blank before it.
            tokens += self._tokenizer.encode(part if last else part.rstrip(" "), add_special_tokens=False).ids
            tokens += [] if last else [self._special.mask]
        cut = len(tokens) >= self.longest
        tokens = [*tokens[: self.longest - 1], self._special.eos]
        places = [place for place, token in enumerate(tokens) if token == self._special.mask]
        if len(places) > _MOST_MASKS:
            raise ValueError(f"expected at most {_MOST_MASKS} {MASK} in a text, found {len(places):,}")
        if not places:
            where = f" among the first {self.longest:,} tokens" if cut and len(parts) > 1 else ""
            raise ValueError(f"expected {MASK} in the text{where}")
        return tokens, places, cut
