"""The tokenizer of a model that comes from elsewhere."""

from pathlib import Path

from tokenizers import Tokenizer, normalizers, pre_tokenizers

from nystromformer.data.preprocessing.pretrained_tokenizer import read_tokenizer
from nystromformer.data.tokenizer import TOKENIZER_FILE, load_tokenizer, row_form, special_names
from nystromformer.errors import UserError

_OF_ROWS = (pre_tokenizers.ByteLevel, pre_tokenizers.BertPreTokenizer)


def import_tokenizer(
    beside: Path, given: str | None, vocab_size: int, lower_case: bool = False
) -> tuple[Tokenizer | None, list[str]]:
    """Read a model's tokenizer, in the form that datasets have it; None where the model comes without one; and what was
    done, a line each.

    Args:
        beside: where it is looked for.
        given: its folder instead, or "none".
        vocab_size: of the model.
        lower_case: whether texts are in lower case before it sees them; then it does so itself.

    Raises:
        UserError: it is not there, or has more tokens than the model, or no special tokens that are known.
    """
    if given == "none":
        return None, ["without a tokenizer: fine-tuning and validation, which compare tokenizers, refuse the model"]
    folder = beside if given is None else Path(given)
    if not (folder / TOKENIZER_FILE).is_file() and not (folder / "vocab.json").is_file():
        raise UserError(
            f"{folder}: no tokenizer there ({TOKENIZER_FILE}, or vocab.json and merges.txt): name its folder with "
            "--tokenizer, or give --tokenizer none for the weights alone. If it is in another format, "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(ANOTHER) writes tokenizer.json"
        )
    tokenizer, notes = _read(folder)
    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    if size > vocab_size:
        raise UserError(
            f"{folder}: a tokenizer that does not fit the vocabulary: its ids go up to {size - 1}, the model has "
            f"embeddings for {vocab_size} tokens"
        )
    if size < vocab_size:
        notes.append(f"the tokenizer has {size} tokens, the model room for {vocab_size}: the last ones are never met")
    if lower_case:
        own = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
    return tokenizer, notes


def _read(folder: Path) -> tuple[Tokenizer, list[str]]:
    try:
        return read_tokenizer(folder), []
    except UserError as error:
        if not (folder / TOKENIZER_FILE).is_file():
            raise
        reason = error
    tokenizer = load_tokenizer(folder)
    if isinstance(tokenizer.pre_tokenizer, _OF_ROWS):
        # Of a kind that preprocessing takes: something is wrong with this one.
        raise reason
    try:
        special_names(tokenizer)
    except UserError as error:
        raise UserError(f"{folder / TOKENIZER_FILE}: {error}") from None
    tokenizer.post_processor = row_form(tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, [f"no rows for pretraining can be made with this tokenizer: {reason}"]
