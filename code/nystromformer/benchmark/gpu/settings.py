"""What `run_benchmark.py gpu` measures, in full and as a dry run."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from nystromformer.attention.kernels import IS_INSTALLED, interprets
from nystromformer.attention.kernels.plan import HEAD_DIMS, LANDMARKS
from nystromformer.benchmark.gpu.clock import Repeats, times_in_turn
from nystromformer.benchmark.questions.gpu import SECTIONS, Gpu
from nystromformer.benchmark.timing import Timing, Work
from nystromformer.errors import UserError
from nystromformer.training.device import Device


@dataclass(frozen=True)
class CheckSizes:
    """Sizes of the comparisons with float64."""

    dtypes: tuple[str, ...] = ("bfloat16", "float16", "float32")
    landmarks: int = 64
    head_dim: int = 64
    """Of the comparisons that come first, at every length."""
    lengths: tuple[tuple[int, int], ...] = ((1000, 24), (4096, 2), (333, 24), (4097, 2))
    """Lengths and the heads of a row: work of few heads is cut otherwise than that of many."""
    others: tuple[tuple[int, int], ...] = tuple((M, D) for M in LANDMARKS for D in HEAD_DIMS if (M, D) != (64, 64))
    """Landmarks and head dims of the other comparisons, each at one of the lengths."""
    large: tuple[tuple[int, int, int], ...] = ((32, 12, 4096), (1, 12, 131072), (1, 1, (1 << 20) + 3))
    """Rows, heads and lengths of single comparisons in the dtype that is timed."""
    poison_bytes: int = 1 << 30
    """Memory that is filled with NaN before the kernels run; 0 where the allocator cannot be reached."""


@dataclass(frozen=True)
class TrainingSize:
    """A batch, and the experiment folder whose model takes it."""

    length: int
    rows: int
    experiment: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sizes:
    """All sizes, and how often things are repeated."""

    check: CheckSizes = CheckSizes()
    dtype: str = "bfloat16"
    """Of everything but the comparisons."""
    num_heads: int = 12
    head_dim: int = 64
    num_landmarks: int = 64
    conv_kernel_size: int = 33
    tokens: int = 131072
    """Of a batch, whatever its length: the rows are as many as that gives."""
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
    batches: tuple[tuple[int, int], ...] = ((1, 512), (32, 512), (1, 4096), (8, 4096), (128, 4096), (1, 32768))
    """Rows and lengths of other batches."""
    kernel_lengths: tuple[int, ...] = (4096, 32768, 512)
    launch_lengths: tuple[int, ...] = (512, 4096)
    """Of single rows, where launching takes longer than computing."""
    longest: int = 1 << 20
    """Tokens of the one sequence that our attention is measured on alone."""
    copy_bytes: int = 1 << 32
    matmul: int = 8192
    training: tuple[TrainingSize, ...] = (
        TrainingSize(512, 64, "nystrom-512"),
        TrainingSize(4096, 8, "nystrom-4096"),
        TrainingSize(16384, 2, "nystrom-4096", ("model.max_seq_len=16384",)),
    )
    compiles: bool = True
    """Whether compiled layers are trained too."""
    repeats: Repeats = field(default=Repeats(seconds=1.5, least=4, most=50))
    """Of a group of methods that are measured in turn."""

    def rows(self, length: int) -> int:
        """Of a batch of this length."""
        return max(1, self.tokens // length)


FULL = Sizes()
_TINY = (
    *("model.embedding_dim=32", "model.transformer_dim=32", "model.transformer_hidden_dim=64", "model.num_head=1"),
    *("model.head_dim=32", "model.num_layers=1", "model.vocab_size=300", "model.num_landmarks=32"),
    "model.conv_kernel_size=5",
)
TINY = Sizes(
    check=CheckSizes(("float32",), 32, 32, ((40, 1),), (), ((1, 1, 50),), poison_bytes=0),
    # In Triton's interpreter bfloat16 has no arithmetic, and on most CPUs it is slow.
    dtype="float32",
    num_heads=1,
    head_dim=32,
    num_landmarks=32,
    conv_kernel_size=5,
    tokens=64,
    lengths=(64, 96),
    batches=((2, 64),),
    kernel_lengths=(64,),
    launch_lengths=(64,),
    longest=100,
    copy_bytes=1 << 20,
    matmul=64,
    training=(
        TrainingSize(64, 1, "nystrom-512", (*_TINY, "model.max_seq_len=64")),
        TrainingSize(40, 1, "nystrom-4096", (*_TINY, "model.max_seq_len=40")),
    ),
    compiles=False,
    repeats=Repeats(seconds=0.0, least=1, most=1),
)


@dataclass(frozen=True)
class GpuBenchmark:
    """One run of the command."""

    sections: tuple[str, ...] = SECTIONS
    minutes: float = 8.3
    seed: int = 0
    """Of the random inputs of the comparisons."""
    dry_run: bool = False
    implementation: str = "triton"
    """What computes "ours": in a dry run without the interpreter, "torch" stands in."""
    sizes: Sizes = FULL

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.dry_run else "cuda")

    @property
    def dtype(self) -> torch.dtype:
        return dtype_of(self.sizes.dtype)

    def time_in_turn(self, works: Mapping[str, Work]) -> dict[str, Timing]:
        """All in turn on the device, as often as `sizes` says."""
        return times_in_turn(works, self.device, self.sizes.repeats)

    @property
    def precision(self) -> Device:
        """The device with the autocast of what is timed."""
        return Device(self.device, None if self.dtype == torch.float32 else self.dtype)


def choose_settings(flags: Gpu) -> GpuBenchmark:
    """Settings of the command's flags.

    Raises:
        UserError: a machine that cannot run this.
    """
    seed = secrets.randbits(31) if flags.seed is None else flags.seed
    settings = GpuBenchmark(tuple(flags.sections), flags.minutes, seed, flags.dry_run)
    if flags.dry_run:
        return replace(settings, implementation="triton" if IS_INSTALLED and interprets() else "torch", sizes=TINY)
    if not torch.cuda.is_available():
        raise UserError("found no CUDA device; --dry_run goes through everything on the CPU, in sizes that say nothing")
    if not IS_INSTALLED:
        raise UserError("the kernels need triton (pip install triton)")
    if interprets():
        raise UserError("TRITON_INTERPRET=1 is set, which runs kernels on the CPU: unset it, or use --dry_run")
    return settings


def dtype_of(name: str) -> torch.dtype:
    """Such as bfloat16."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
