"""The questions of `run_benchmark.py`: settings and commands; `benchmark/NAME.py` measures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from nystromformer.benchmark.questions import (
    ATTENTIONS,
    REPEATS,
    Results,
    count,
    flag,
    names,
    numbers,
    question,
    threads,
)
from nystromformer.command_line.flags import DatasetFolder, DeviceName, ModelFolder, Overrides
from nystromformer.config.ranges import MOST_LAYERS
from nystromformer.errors import UserError
from nystromformer.files.paths import experiment_folder
from nystromformer.tables import show

HEAD_DIM = LANDMARKS = 64
"""Of the models whose steps are measured."""


@dataclass(frozen=True)
class Efficiency:
    """Every attention over the length."""

    attentions: list[str] = flag([], ATTENTIONS, name="attention")
    lengths: Sequence[int] = numbers(
        (512, 1024, 2048, 4096, 8192, 16384), "Sequence lengths in tokens, separated by commas."
    )
    batch: int = count(1, "Sequences that are computed together.")
    heads: int = count(12, "Heads of the attention.")
    head_dim: int = count(64, "Width of each head.")
    repeats: int = count(9, REPEATS)
    threads: int = threads()
    budget: float = flag(
        1800.0, "Time limit in seconds; what does not fit is left out and listed, the reference (SDPA) last.", 0
    )
    peers: bool = flag(False, "Also measure the installed public implementations of each attention, and padded rows.")


@question
def efficiency(settings: Efficiency, results: Results) -> str:
    """Time and memory of every attention over the length, beside softmax."""
    from nystromformer.benchmark.efficiency import measure_efficiency

    return measure_efficiency(settings, results.out)


@dataclass(frozen=True)
class Step:
    """The model, by default the paper's BERT-small with RoBERTa's vocabulary, and its batches.

    Raises:
        UserError: a width or a length that is no multiple of 64.
    """

    attentions: list[str] = flag(
        [], f"{ATTENTIONS} Default: Nyström with the convolution, and softmax.", name="attention"
    )
    lengths: Sequence[int] = numbers((512, 4096), "Tokens of a row in pretraining, separated by commas.", least=128)
    tokens: int = count(4096, "Tokens of a batch in pretraining, of as many rows as that gives.")
    batch: int = count(32, "Examples of a step of fine-tuning.")
    pad_to: int = count(512, "Tokens of a padded example.", least=128)
    repeats: int = count(7, "Measurements of each.")
    num_layers: int = count(4, "Layers of the model.", most=MOST_LAYERS, name="layers")
    width: int = count(512, f"Width of the model: {HEAD_DIM} for each attention head.", least=HEAD_DIM)
    vocab_size: int = count(50265, "Tokens of the vocabulary.", least=300)
    precision: Literal["float32", "bf16", "fp16"] = flag(
        "float32", "What models compute in: float32, or bf16 or fp16 under autocast."
    )
    compiled: bool = flag(False, "Also measure ours with compiled layers.", name="compile")
    threads: int = threads()

    def __post_init__(self) -> None:
        for name, values in (("width", [self.width]), ("lengths", self.lengths), ("pad_to", [self.pad_to])):
            if wrong := [value for value in values if value % LANDMARKS]:
                why = "the heads' width" if name == "width" else "its landmarks: transformers accepts no other lengths"
                raise UserError(f"--{name}: expected multiples of {LANDMARKS}, {why}; found {wrong}")


@question
def step(settings: Step, results: Results) -> str:
    """Time and memory of a step of pretraining and of fine-tuning, beside transformers' Nyströmformer."""
    from nystromformer.benchmark.step import measure_step

    return measure_step(settings, results.out)


@dataclass(frozen=True)
class Approximation:
    """Attentions beside softmax, of a checkpoint or of saved tensors."""

    tensors: list[Path] = flag(
        [],
        "Instead of a checkpoint: a safetensors file with q, k and v of (rows, heads, tokens, head dim), and mask of "
        "(rows, tokens) where some are masked; or several such sets, as NAME.q. May be given several times.",
    )
    attentions: list[str] = flag([], ATTENTIONS, name="attention")
    parts: Sequence[str] = names(("errors", "loss"), "What to look at: errors, loss, separated by commas.")
    rows: int = count(8, "Validation rows whose queries and keys are looked at.")
    score_rows: int = count(256, "Number of validation rows over which losses are averaged.")
    repeats: int = count(9, REPEATS)
    threads: int = threads()


@question
def approximation(
    settings: Approximation,
    results: Results,
    model: ModelFolder = Path("/model"),
    dataset: DatasetFolder = None,
    device: DeviceName = "auto",
    overrides: Overrides = None,
) -> str:
    """How far attentions are from softmax on a checkpoint's or a file's queries and keys, and what that costs the
    checkpoint's loss.
    """
    from nystromformer.benchmark.approximation import measure_checkpoint, measure_tensors

    if settings.tensors:
        return measure_tensors(settings, device, results.out)
    return measure_checkpoint(settings, model, overrides or [], dataset, device, results.out)


@dataclass(frozen=True)
class Span:
    """Pretrained models."""

    models: list[Path] = flag(
        [],
        "Folder of a pretrained experiment, looked at on --dataset; may be given several times.",
        name="model",
        parser=experiment_folder,
        metavar="DIRECTORY",
    )
    rows: int = count(1000, "Rows of validation data, drawn once and for all.")


@question
def span(settings: Span, results: Results, dataset: DatasetFolder = None, device: DeviceName = "auto") -> str:
    """How far pretrained models attend: the mean distance to attended tokens."""
    from nystromformer.benchmark.span import measure_spans

    return measure_spans(settings, dataset, device, results.out)


@dataclass(frozen=True)
class Abilities:
    """Every combination of tasks, lengths, pairs, attentions, convolutions and seeds."""

    tasks: list[str] = flag([], "A task; may be given several times. Default: all.", name="task")
    attentions: list[str] = flag([], f"{ATTENTIONS} With about a quarter of the keys unless told.", name="attention")
    lengths: Sequence[int] = numbers(
        (128,), "Tokens of a row, several numbers separated by commas.", least=16, name="length"
    )
    pairs: Sequence[int] = numbers(
        (),
        "Number of key-value pairs in lookup and recall, several separated by commas. Default: a half and a quarter "
        "of the tokens.",
    )
    taps: Sequence[int] = numbers(
        (0,),
        "Taps of the convolution, 0 for none, several numbers separated by commas.",
        least=0,
        name="conv_kernel_size",
    )
    seeds: int = count(1, "Runs of each, with seeds from 0 on.")
    seconds: float = flag(120.0, "Seconds on one core after which a run ends that has not learned its task.", 1)
    workers: int = count(2, "Runs at once, a process and a core each.")


@question
def abilities(settings: Abilities, results: Results) -> str:
    """Small tasks that softmax learns within minutes: which attention can look things up, shift, copy, find and count.

    It resumes when it is started again; another command with the same --out adds to its tables.
    """
    from nystromformer.benchmark.abilities import measure_abilities

    return measure_abilities(settings, results.out)


@dataclass(frozen=True)
class Gpu:
    """Sections and their time."""

    sections: Sequence[str] = names(
        ("check", "speed", "training"), "What to measure: all of the default or some, separated by commas."
    )
    minutes: float = flag(8.0, "Total minutes; what does not fit is left out and listed.", 0.001)
    seed: int | None = flag(None, "Random seed of the inputs on which results are compared. Default: a new one.", 0)
    dry_run: bool = flag(False, "Try the command on a CPU, in tiny sizes: its figures mean nothing.")


@question
def gpu(settings: Gpu, results: Results) -> str:
    """The kernels and attentions on a GPU: are they correct, how fast are they, and what do they gain in training.

    The exit status is 1 where a measurement failed, or the kernels' results differ too much from float64's.
    """
    from nystromformer.benchmark.gpu import measure_on_gpu

    text, went_well = measure_on_gpu(settings, results.out)
    if went_well:
        return text
    show(text)
    raise typer.Exit(1)


@question
def again(
    files: Annotated[
        list[Path], typer.Argument(help="Files that a benchmark wrote, such as results/efficiency/efficiency.json.")
    ],
) -> str:
    """Make tables and pictures again from the figures that were measured, beside the files; measures nothing."""
    from nystromformer.benchmark.findings import publish_again

    return "\n\n".join(map(publish_again, files))
