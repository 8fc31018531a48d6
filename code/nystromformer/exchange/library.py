"""A model of this project as a library has it."""

from pathlib import Path

from tokenizers import Tokenizer

from nystromformer.exchange.open_model import open_model
from nystromformer.model import ClassificationModel, PretrainingModel


def from_pretrained(
    folder: str | Path, checkpoint: str | int | None = None
) -> tuple[PretrainingModel | ClassificationModel, Tokenizer | None]:
    """The model in a folder, with its weights and in evaluation, and its tokenizer.

    Args:
        folder: an experiment's, or a fine-tuning run's below its checkpoints.
        checkpoint: "last", an epoch's number, or "best" of a finished run; None: "best" of a finished run, else "last".

    Returns:
        PretrainingModel or ClassificationModel; None in the tokenizer's place where the model came without one.

    Raises:
        UserError: as of `open_model`.
    """
    opened = open_model(Path(folder), None if checkpoint is None else str(checkpoint))
    return opened.build(), opened.tokenizer
