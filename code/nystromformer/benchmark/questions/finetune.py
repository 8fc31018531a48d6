"""Fine-tuning on short texts, in batches by length and in padded ones."""

from dataclasses import dataclass
from pathlib import Path

from nystromformer.benchmark.flags import BATCHES, LANDMARKS, MOST_REPEATS, BertSmall, Results, flag
from nystromformer.config.ranges import MOST
from nystromformer.errors import UserError


@dataclass(frozen=True)
class Finetuning(BertSmall):
    """Batches by length, and padded ones.

    Raises:
        UserError: settings that do not go together.
    """

    glue: Path | None = flag(None, "GLUE's folder, to train on texts of SST-2; default: made-up ones.")
    tokenizer: Path | None = flag(None, "Folder of RoBERTa's tokenizer; needed with --glue.")
    batch: int = flag(32, "Examples of a training step.", 1, MOST)
    pad_to: int = flag(512, f"Tokens of a padded row; a multiple of the {LANDMARKS} landmarks.", 128, MOST)
    batches: int = flag(16, BATCHES, 1, MOST_REPEATS)
    """By length; of padded ones one is measured."""
    repeats: int = flag(3, "Measurements of each way to train.", 1, MOST_REPEATS)

    def __post_init__(self) -> None:
        if (self.glue is None) != (self.tokenizer is None):
            raise UserError("--glue and --tokenizer: expected both or none")
        if self.pad_to % LANDMARKS:
            raise UserError(f"--pad_to: expected a multiple of the {LANDMARKS} landmarks, found {self.pad_to}")
        super().__post_init__()


def finetune(settings: Finetuning, results: Results) -> str:
    """Time and memory of fine-tuning on short texts: in batches by length, in padded ones, and by transformers."""
    from nystromformer.benchmark.finetune import measure_finetuning

    return measure_finetuning(settings, results.out)
