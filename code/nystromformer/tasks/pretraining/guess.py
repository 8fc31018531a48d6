"""What a pretrained model puts in the place of a mask."""

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from nystromformer.data.tokenizer import SPECIAL_TOKENS, SpecialTokens
from nystromformer.errors import UserError
from nystromformer.model import PretrainingModel


@dataclass(frozen=True)
class Guess:
    """A token and its probability."""

    token: str
    probability: float


@torch.no_grad()
def top_guesses(
    model: PretrainingModel, tokenizer: Tokenizer, special: SpecialTokens, text: str, count: int = 5
) -> list[Guess]:
    """The likeliest tokens in the place of the one `<mask>` of a text.

    Raises:
        UserError: the text has no mask, or several.
    """
    ids = [special.bos, *tokenizer.encode(text, add_special_tokens=False).ids, special.eos]
    if ids.count(special.mask) != 1:
        raise UserError(f"expected one {SPECIAL_TOKENS['mask']} in {text!r}, found {ids.count(special.mask)}")
    device = next(model.parameters()).device
    tokens_BN = torch.tensor([ids], device=device)
    positions_BK = torch.tensor([[ids.index(special.mask)]], device=device)
    probabilities = model.eval()(tokens_BN, positions_BK).mlm_BKV[0, 0].softmax(-1)
    values, indices = probabilities.topk(count)
    return [
        Guess(tokenizer.decode([int(i)]).strip() or repr(tokenizer.decode([int(i)])), float(p))
        for p, i in zip(values, indices, strict=True)
    ]
