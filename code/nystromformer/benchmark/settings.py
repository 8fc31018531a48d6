# ruff: noqa: RUF009  # what is called in the place of a default gives a field
"""What each benchmark is asked: its settings, whose fields are its flags. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nystromformer.config.ranges import LEAST_RIDGE, MOST, MOST_LAYERS, MOST_PINV_ITERATIONS, MOST_RIDGE
from nystromformer.data.preprocessing.packing import MAX_LENGTH
from nystromformer.errors import UserError
from nystromformer.paths import experiment_folder
from nystromformer.resources import most_processes

HEAD_DIM = LANDMARKS = 64
"""Of the models whose steps are measured."""
SECTIONS = ("check", "ceilings", "kernels", "attention", "training")
"""Of `gpu`."""
_MOST_REPEATS = 10**6
_ATTENTIONS = (
    "An attention, its parameters behind commas, such as nystrom,num_landmarks=32; may be given several times. "
    "Default: all."
)
_REPEATS = "Measurements of each method at up to 2048 tokens; fewer above."
_THREADS = "CPU threads that PyTorch computes with."
_CHECKPOINT = "Which weights: last, or an epoch's number."
_BATCHES = "Steps of a measurement where batches differ in length."


def flag(
    default: Any, text: str, least: float | None = None, most: float | None = None, name: str = "", **more: Any
) -> Any:
    """A field that is a flag, for `with_flag_groups`.

    Args:
        text: its help.
        name: without its dashes; empty: the field's.
        more: for `typer.Option`.
    """

    def option(field_name: str) -> Any:
        return typer.Option(f"--{name or field_name}", min=least, max=most, help=text, **more)

    if isinstance(default, list):
        return field(default_factory=list, metadata={"option": option})
    return field(default=default, metadata={"option": option})


def numbers(
    default: Sequence[float], text: str, least: float = 1, most: float = MOST, name: str = "", kind: type = int
) -> Any:
    """A flag of numbers separated by commas: each once, in order."""

    def parse(given: Any) -> Any:
        if not isinstance(given, str):  # the default
            return given
        try:
            found = sorted({kind(part) for part in given.split(",")})
        except ValueError:
            raise typer.BadParameter(f"expected numbers separated by commas, found {given[:60]!r}") from None
        if wrong := [each for each in found if not least <= each <= most]:
            form = "," if kind is int else "g"
            raise typer.BadParameter(f"expected numbers from {least:{form}} to {most:{form}}, found {wrong}")
        return tuple(found)

    return flag(tuple(default), text, name=name, parser=parse, metavar="NUMBERS")


def names(allowed: Sequence[str], text: str) -> Any:
    """A flag of names separated by commas: each once, in the order of those that are allowed. Default: all."""

    def parse(given: Any) -> Any:
        if not isinstance(given, str):
            return given
        found = [part.strip() for part in given.split(",")]
        if wrong := [part for part in found if part not in allowed]:
            raise typer.BadParameter(f"expected some of {','.join(allowed)}, found {', '.join(map(repr, wrong))}")
        return tuple(each for each in allowed if each in found)

    return flag(tuple(allowed), text, parser=parse, metavar="NAMES")


def _parse_batches(given: Any) -> Any:
    """Tokens and rows of `--sizes`, such as 512x8,4096x1: sizes that transformers takes."""
    if not isinstance(given, str):
        return given
    pairs = [part.strip().partition("x")[::2] for part in given.split(",")]
    if all(tokens.isdecimal() and rows.isdecimal() for tokens, rows in pairs):
        sizes = tuple((int(tokens), int(rows)) for tokens, rows in pairs)
        if all(LANDMARKS < n <= MOST and n % LANDMARKS == 0 and 1 <= rows <= MOST for n, rows in sizes):
            return sizes
    raise typer.BadParameter(
        f"expected TOKENSxROWS separated by commas, such as 512x8,4096x1, with more tokens than the {LANDMARKS} "
        f"landmarks and a multiple of them (transformers accepts no others); found {given!r}"
    )


@dataclass(frozen=True)
class Results:
    """Where they go, of every benchmark."""

    out: Path = flag(
        Path("results/tmp"), "Folder for the results: figures as JSON, tables, and pictures if there are any."
    )


@dataclass(frozen=True)
class Efficiency:
    """`efficiency`: every attention over the length.

    Raises:
        UserError: heads that do not divide the encoder's width.
    """

    attentions: list[str] = flag([], _ATTENTIONS, name="attention")
    lengths: Sequence[int] = numbers(
        (512, 1024, 2048, 4096, 8192, 16384), "Sequence lengths in tokens, separated by commas."
    )
    batch: int = flag(1, "Sequences that are computed together.", 1, MOST)
    heads: int = flag(12, "Heads of the attention alone.", 1, MOST)
    head_dim: int = flag(64, "Width of each of these heads.", 1, MOST)
    repeats: int = flag(9, _REPEATS, 1, _MOST_REPEATS)
    threads: int = flag(2, _THREADS, 1, most_processes())
    parts: Sequence[str] = names(
        ("attention", "encoder"), "What to measure: attention, encoder or both, separated by commas."
    )
    encoder_lengths: Sequence[int] = numbers((1024, 2048, 3072, 4096), "Sequence lengths of the encoder.")
    encoder_batch: int = flag(8, "Rows of a step of the encoder.", 1, MOST)
    encoder_layers: int = flag(2, "Layers of the encoder.", 1, MOST_LAYERS)
    encoder_heads: int = flag(2, "Heads of the encoder.", 1, MOST)
    encoder_width: int = flag(64, "Width of the encoder, which its heads divide.", 1, MOST)
    budget: float = flag(1800.0, "Seconds that all may take; what they do not allow is left out, and named.", 0)

    def __post_init__(self) -> None:
        if self.encoder_width % self.encoder_heads:
            raise UserError(
                f"--encoder_width: expected a multiple of --encoder_heads = {self.encoder_heads}, found "
                f"{self.encoder_width}"
            )


Peers = Annotated[
    bool,
    typer.Option(
        "--peers", help="Measure one attention beside public implementations of it that are installed instead."
    ),
]
NOT_BESIDE_PEERS = (
    *("parts", "encoder_lengths", "encoder_batch", "encoder_layers", "encoder_heads", "encoder_width", "budget"),
)
"""Of `Efficiency`, what --peers takes no part of."""


@dataclass(frozen=True)
class Approximation:
    """`approximation`: attentions beside a checkpoint's softmax."""

    checkpoint: str = flag("last", _CHECKPOINT)
    attentions: list[str] = flag([], _ATTENTIONS, name="attention")
    parts: Sequence[str] = names(
        ("errors", "maps", "loss"), "What to look at: errors, maps, loss, separated by commas."
    )
    rows: int = flag(8, "Validation rows whose queries and keys are looked at.", 1, MOST)
    landmarks: Sequence[int] = numbers((8, 16, 32, 64, 128, 256), "Numbers of landmarks, separated by commas.")
    iterations: Sequence[int] = numbers(
        range(1, 13), "Numbers of iterations of eq. 14, beside the exact pseudo-inverse.", 1, MOST_PINV_ITERATIONS
    )
    ridges: Sequence[float] = numbers(
        (1e-2, 1e-3, 1e-4, 1e-5),
        "Ridges in the place of the iterations (pinv_ridge), separated by commas.",
        *(LEAST_RIDGE, MOST_RIDGE),
        kind=float,
    )
    score_rows: int = flag(256, "Validation rows that losses are means over.", 1, MOST)
    adapt: int = flag(200, "Steps of pretraining with each attention in softmax's place; 0: none.", 0, MOST)
    repeats: int = flag(9, _REPEATS, 1, _MOST_REPEATS)
    threads: int = flag(2, _THREADS, 1, most_processes())


@dataclass(frozen=True)
class Span:
    """`span`: trained models, and the data of the tasks that they were fine-tuned on."""

    runs: list[Path] = flag(
        [],
        "Folder of a finished fine-tuning run, with result.json and weights; may be given several times.",
        name="run",
    )
    glue: Path | None = flag(None, "GLUE's folder, for runs on its tasks.")
    imdb: Path | None = flag(None, "Folder or archive of IMDB reviews, for runs on them.")
    wikihop: Path | None = flag(None, "WikiHop's folder, for runs on it.")
    lra: Path | None = flag(None, "Prepared data of a task of the Long Range Arena, for runs on it.")
    models: list[Path] = flag(
        [],
        "Folder of a pretrained experiment, looked at on --dataset; may be given several times.",
        name="model",
        parser=experiment_folder,
        metavar="DIRECTORY",
    )
    checkpoint: str = flag("last", _CHECKPOINT)
    rows: int = flag(1000, "Rows of validation data, drawn once and for all.", 1, MOST)


@dataclass(frozen=True)
class Abilities:
    """`abilities`: every combination of tasks, lengths, pairs, attentions, convolutions and seeds."""

    tasks: list[str] = flag([], "A task; may be given several times. Default: all.", name="task")
    attentions: list[str] = flag(
        [],
        "An attention, its parameters behind commas and several values of one with slashes, such as "
        "nystrom,num_landmarks=8/16; may be given several times. Default: all, with about a quarter of the keys.",
        name="attention",
    )
    lengths: Sequence[int] = numbers(
        (128,), "Tokens of a row, several numbers separated by commas.", least=16, name="length"
    )
    pairs: Sequence[int] = numbers(
        (),
        "Keys with values of lookup and recall, several numbers separated by commas. Default: for half and a quarter "
        "of the tokens.",
    )
    taps: Sequence[int] = numbers(
        (0,),
        "Taps of the convolution, 0 for none, several numbers separated by commas.",
        least=0,
        name="conv_kernel_size",
    )
    seeds: int = flag(1, "Runs of each, with seeds from 0 on.", 1, MOST)
    seconds: float = flag(120.0, "Time of one core after which a run that has not got there ends.", 1)
    workers: int = flag(2, "Runs at once, a process and a core each.", 1, most_processes())


@dataclass(frozen=True)
class BertSmall:
    """Sizes of the model whose steps are measured; by default the paper's BERT-small with RoBERTa's vocabulary.

    Raises:
        UserError: a width that heads do not divide.
    """

    threads: int = flag(2, _THREADS, 1, most_processes())
    num_layers: int = flag(4, "Layers of the model.", 1, MOST_LAYERS, name="layers")
    width: int = flag(512, f"Width of the model: {HEAD_DIM} for each attention head.", HEAD_DIM, HEAD_DIM * 10**5)
    vocab_size: int = flag(50265, "Tokens of the vocabulary.", 300, MOST)
    precision: Literal["float32", "bf16", "fp16"] = flag(
        "float32", "What models compute in: float32, or bf16 or fp16 under autocast."
    )

    def __post_init__(self) -> None:
        if self.width % HEAD_DIM:
            raise UserError(f"--width: expected a multiple of the heads' {HEAD_DIM}, found {self.width}")

    @property
    def mixed_precision(self) -> bool | str:
        """As of a config.json."""
        return False if self.precision == "float32" else self.precision


@dataclass(frozen=True)
class Pretraining(BertSmall):
    """`pretrain`. Of the peer, float32 is measured always, and `precision` too where it is another."""

    sizes: Sequence[tuple[int, int]] = flag(
        ((512, 8), (4096, 1)),
        "Batches to measure, as TOKENSxROWS, separated by commas.",
        parser=_parse_batches,
        metavar="SIZES",
        show_default="512x8,4096x1",
    )
    repeats: int = flag(7, "Measured steps of each model.", 1, _MOST_REPEATS)
    compile: bool = flag(False, "Also measure layers that torch.compile has compiled.")


@dataclass(frozen=True)
class Finetuning(BertSmall):
    """`finetune`.

    Raises:
        UserError: settings that do not go together.
    """

    glue: Path | None = flag(None, "GLUE's folder, to train on texts of SST-2; default: made-up ones.")
    tokenizer: Path | None = flag(None, "Folder of RoBERTa's tokenizer; needed with --glue.")
    batch: int = flag(32, "Examples of a training step.", 1, MOST)
    pad_to: int = flag(512, f"Tokens of a padded row; a multiple of the {LANDMARKS} landmarks.", 128, MOST)
    batches: int = flag(16, _BATCHES, 1, _MOST_REPEATS)
    """By length; of padded ones one is measured."""
    repeats: int = flag(3, "Measurements of each way to train.", 1, _MOST_REPEATS)

    def __post_init__(self) -> None:
        if (self.glue is None) != (self.tokenizer is None):
            raise UserError("--glue and --tokenizer: expected both or none")
        if self.pad_to % LANDMARKS:
            raise UserError(f"--pad_to: expected a multiple of the {LANDMARKS} landmarks, found {self.pad_to}")
        super().__post_init__()


@dataclass(frozen=True)
class ListOps:
    """`lra`."""

    data: Path | None = flag(
        None, "Prepared ListOps, as experiments/lra/prepare.py writes it. Default: drawn for the measurement."
    )
    batches: int = flag(8, _BATCHES, 1, _MOST_REPEATS)
    repeats: int = flag(5, "Measured steps of each model.", 1, _MOST_REPEATS)
    threads: int = flag(2, _THREADS, 1, most_processes())


@dataclass(frozen=True)
class Preprocessing:
    """`preprocess`."""

    corpus: Path | None = flag(None, "A corpus' folder `unified`; default: made-up text.")
    tokenizer: Path | None = flag(None, "A tokenizer's folder; default: one trained on the text.")
    megabytes: float = flag(64.0, "How much text is tokenized.", 0.1, 10**6)
    length: int = flag(512, "Tokens of a training row.", 8, MAX_LENGTH)
    workers: int = flag(2, "Processes that preprocess, and threads of the tokenizer alone.", 1, most_processes())
    repeats: int = flag(3, "Measurements of each: of preprocessing, and of the tokenizer alone.", 1, _MOST_REPEATS)


@dataclass(frozen=True)
class Gpu:
    """`gpu`."""

    sections: Sequence[str] = names(SECTIONS, "What to measure: all of the default or some, separated by commas.")
    minutes: float = flag(8.3, "Time limit; what matters least is left out, and named in the report.", 0.001)
    seed: int | None = flag(None, "Of the inputs that results are compared on; default: a new one.", 0)
    dry_run: bool = flag(False, "Try the command on a CPU, in tiny sizes: its figures mean nothing.")
