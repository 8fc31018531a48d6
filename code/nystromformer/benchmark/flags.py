"""The benchmarks' flags, and what each says for itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from nystromformer.config.ranges import MOST, MOST_LAYERS
from nystromformer.data.preprocessing.packing import MAX_LENGTH
from nystromformer.errors import UserError
from nystromformer.paths import experiment_folder
from nystromformer.resources import most_processes

T = TypeVar("T", int, float)

_MOST_REPEATS = 10**6
_MOST_WIDTH = 64 * 10**5


def _flag(name: str, text: str, least: float | None = None, most: float | None = None) -> Any:
    return typer.Option(name, min=least, max=most, help=text)


def numbers(text: str, flag: str) -> tuple[int, ...]:
    """Of a flag, such as 8,16: each once, in order.

    Raises:
        UserError: no numbers.
    """
    return _sorted(text, flag, int)


def fractions(text: str, flag: str) -> tuple[float, ...]:
    """As `numbers`, such as 0.01,1e-3.

    Raises:
        UserError: no numbers.
    """
    return _sorted(text, flag, float)


def _sorted(text: str, flag: str, kind: Callable[[str], T]) -> tuple[T, ...]:
    try:
        return tuple(sorted({kind(part) for part in text.split(",")}))
    except ValueError:
        raise UserError(f"{flag}: expected numbers separated by commas, found {text[:60]!r}") from None


OutFlag = Annotated[
    Path, _flag("--out", "Folder for the results: figures as JSON, tables, and pictures if there are any.")
]
ThreadsFlag = Annotated[int, _flag("--threads", "CPU threads that PyTorch computes with.", 1, most_processes())]

# Of the attention alone
LengthsFlag = Annotated[str, _flag("--lengths", "Sequence lengths in tokens, separated by commas.")]
SequencesFlag = Annotated[int, _flag("--batch", "Sequences that are computed together.", 1, MOST)]
AttentionsFlag = Annotated[
    list[str],
    _flag(
        "--attention",
        "An attention, its parameters behind commas, such as nystrom,num_landmarks=32; may be given several times. "
        "Default: all.",
    ),
]
PeersFlag = Annotated[
    bool, _flag("--peers", "Measure one attention beside public implementations of it that are installed instead.")
]
PartsFlag = Annotated[str, _flag("--parts", "What to measure: attention, encoder or both, separated by commas.")]
HeadsFlag = Annotated[int, _flag("--heads", "Heads of the attention alone.", 1, MOST)]
HeadDimFlag = Annotated[int, _flag("--head_dim", "Width of each of these heads.", 1, MOST)]
EncoderLengthsFlag = Annotated[str, _flag("--encoder_lengths", "Sequence lengths of the encoder.")]
EncoderBatchFlag = Annotated[int, _flag("--encoder_batch", "Rows of a step of the encoder.", 1, MOST)]
EncoderLayersFlag = Annotated[int, _flag("--encoder_layers", "Layers of the encoder.", 1, MOST_LAYERS)]
EncoderHeadsFlag = Annotated[int, _flag("--encoder_heads", "Heads of the encoder.", 1, MOST)]
EncoderWidthFlag = Annotated[int, _flag("--encoder_width", "Width of the encoder, which its heads divide.", 1, MOST)]
BudgetFlag = Annotated[
    float, _flag("--budget", "Seconds that all may take; what they do not allow is left out, and named.", 0)
]
AttentionRepeatsFlag = Annotated[
    int, _flag("--repeats", "Measurements of each method at up to 2048 tokens; fewer above.", 1, _MOST_REPEATS)
]
NOT_BESIDE_PEERS = (
    "parts",
    "encoder_lengths",
    "encoder_batch",
    "encoder_layers",
    "encoder_heads",
    "encoder_width",
    "budget",
)
"""Flags of `efficiency` that --peers takes no part of."""

# Of a checkpoint's attention
CheckpointFlag = Annotated[str, _flag("--checkpoint", "Which weights: last, or an epoch's number.")]
ApproximationPartsFlag = Annotated[str, _flag("--parts", "What to look at: errors, maps, loss, separated by commas.")]
RowsFlag = Annotated[int, _flag("--rows", "Validation rows whose queries and keys are looked at.", 1, MOST)]
LandmarkCountsFlag = Annotated[str, _flag("--landmarks", "Numbers of landmarks, separated by commas.")]
IterationCountsFlag = Annotated[
    str, _flag("--iterations", "Numbers of iterations of eq. 14, beside the exact pseudo-inverse.")
]
RidgesFlag = Annotated[
    str, _flag("--ridges", "Ridges in the place of the iterations (pinv_ridge), separated by commas.")
]
ScoreRowsFlag = Annotated[int, _flag("--score_rows", "Validation rows that losses are means over.", 1, MOST)]
AdaptFlag = Annotated[
    int, _flag("--adapt", "Steps of pretraining with each attention in softmax's place; 0: none.", 0, MOST)
]

# Of trained models
ModelsFlag = Annotated[
    list[Path],
    typer.Option(
        "--model",
        parser=experiment_folder,
        metavar="DIRECTORY",
        help="Folder of a pretrained experiment, looked at on --dataset; may be given several times.",
    ),
]
RunsFlag = Annotated[
    list[Path],
    _flag("--run", "Folder of a finished fine-tuning run, with result.json and weights; may be given several times."),
]
TaskGlueFlag = Annotated[Path | None, _flag("--glue", "GLUE's folder, for runs on its tasks.")]
TaskLraFlag = Annotated[Path | None, _flag("--lra", "Prepared data of a task of the Long Range Arena, for runs on it.")]
TaskImdbFlag = Annotated[Path | None, _flag("--imdb", "Folder or archive of IMDB reviews, for runs on them.")]
TaskWikihopFlag = Annotated[Path | None, _flag("--wikihop", "WikiHop's folder, for runs on it.")]
SpanRowsFlag = Annotated[int, _flag("--rows", "Rows of validation data, drawn once and for all.", 1, MOST)]

# Of training steps
SizesFlag = Annotated[str, _flag("--sizes", "Batches to measure, as TOKENSxROWS, separated by commas.")]
ListOpsFlag = Annotated[
    Path | None,
    _flag("--data", "Prepared ListOps, as experiments/lra/prepare.py writes it. Default: drawn for the measurement."),
]
StepRepeatsFlag = Annotated[int, _flag("--repeats", "Measured steps of each model.", 1, _MOST_REPEATS)]
LayersFlag = Annotated[int, _flag("--layers", "Layers of the model.", 1, MOST_LAYERS)]
WidthFlag = Annotated[int, _flag("--width", "Width of the model: 64 for each attention head.", 64, _MOST_WIDTH)]
VocabSizeFlag = Annotated[int, _flag("--vocab_size", "Tokens of the vocabulary.", 300, MOST)]
PrecisionFlag = Annotated[str, _flag("--precision", "What models compute in: float32, or bf16 or fp16 under autocast.")]
CompiledFlag = Annotated[bool, _flag("--compile", "Also measure layers that torch.compile has compiled.")]
GlueFlag = Annotated[Path | None, _flag("--glue", "GLUE's folder, to train on texts of SST-2; default: made-up ones.")]
RobertaTokenizerFlag = Annotated[
    Path | None, _flag("--tokenizer", "Folder of RoBERTa's tokenizer; needed with --glue.")
]
ExamplesFlag = Annotated[int, _flag("--batch", "Examples of a training step.", 1, MOST)]
PadToFlag = Annotated[int, _flag("--pad_to", "Tokens of a padded row; a multiple of the 64 landmarks.", 128, MOST)]
BatchesFlag = Annotated[
    int, _flag("--batches", "Steps of a measurement where batches differ in length.", 1, _MOST_REPEATS)
]
FinetuneRepeatsFlag = Annotated[int, _flag("--repeats", "Measurements of each way to train.", 1, _MOST_REPEATS)]

# Of preprocessing
CorpusFlag = Annotated[Path | None, _flag("--corpus", "A corpus' folder `unified`; default: made-up text.")]
TokenizerFlag = Annotated[Path | None, _flag("--tokenizer", "A tokenizer's folder; default: one trained on the text.")]
MegabytesFlag = Annotated[float, _flag("--megabytes", "How much text is tokenized.", 0.1, 10**6)]
RowLengthFlag = Annotated[int, _flag("--length", "Tokens of a training row.", 8, MAX_LENGTH)]
WorkersFlag = Annotated[
    int, _flag("--workers", "Processes that preprocess, and threads of the tokenizer alone.", 1, most_processes())
]
PreprocessRepeatsFlag = Annotated[
    int, _flag("--repeats", "Measurements of each: of preprocessing, and of the tokenizer alone.", 1, _MOST_REPEATS)
]

# Of a GPU
SectionsFlag = Annotated[str, _flag("--sections", "What to measure: all of the default or some, separated by commas.")]
MinutesFlag = Annotated[
    float, _flag("--minutes", "Time limit; what matters least is left out, and named in the report.")
]
SeedFlag = Annotated[int | None, _flag("--seed", "Of the inputs that results are compared on; default: a new one.", 0)]
DryRunFlag = Annotated[bool, _flag("--dry_run", "Try the command on a CPU, in tiny sizes: its figures mean nothing.")]

# Of small tasks
TasksFlag = Annotated[list[str], _flag("--task", "A task; may be given several times. Default: all.")]
AbilityAttentionsFlag = Annotated[
    list[str],
    _flag(
        "--attention",
        "An attention, its parameters behind commas and several values of one with slashes, such as "
        "nystrom,num_landmarks=8/16; may be given several times. Default: all, with about a quarter of the keys.",
    ),
]
TaskLengthsFlag = Annotated[str, _flag("--length", "Tokens of a row, several numbers separated by commas.")]
PairsFlag = Annotated[
    str,
    _flag(
        "--pairs",
        "Keys with values of lookup and recall, several numbers separated by commas. Default: for half and a quarter "
        "of the tokens.",
    ),
]
TapsFlag = Annotated[
    str, _flag("--conv_kernel_size", "Taps of the convolution, 0 for none, several numbers separated by commas.")
]
SeedsFlag = Annotated[int, _flag("--seeds", "Runs of each, with seeds from 0 on.", 1, MOST)]
SecondsFlag = Annotated[float, _flag("--seconds", "Time of one core after which a run that has not got there ends.", 1)]
LearnersFlag = Annotated[int, _flag("--workers", "Runs at once, a process and a core each.", 1, most_processes())]
