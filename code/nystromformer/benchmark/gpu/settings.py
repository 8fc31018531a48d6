"""What `run_benchmark.py gpu` measures, in full and as a dry run."""

import secrets
from dataclasses import dataclass, replace
from itertools import product

import torch

from nystromformer.attention.kernels import IS_INSTALLED, interprets
from nystromformer.attention.kernels.plan import HEAD_DIMS, LANDMARKS
from nystromformer.benchmark.questions.gpu import SECTIONS, Gpu
from nystromformer.errors import UserError
from nystromformer.training.device import Device


@dataclass(frozen=True)
class TrainingSize:
    """A batch, and the experiment folder whose model takes it."""

    length: int
    rows: int
    experiment: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sizes:
    """All sizes, and how long things are repeated."""

    check_dtypes: tuple[str, ...] = ("bfloat16", "float16", "float32")
    check_landmarks: tuple[tuple[int, int], ...] = tuple(product(LANDMARKS, HEAD_DIMS))
    """Landmarks and head dims of the comparisons in every dtype, each at one of the lengths."""
    check_lengths: tuple[tuple[int, int], ...] = ((1000, 24), (4096, 2), (333, 24), (4097, 2))
    """Lengths and the heads of a row: work of few heads is cut otherwise than that of many."""
    check_large: tuple[tuple[int, int, int], ...] = ((32, 12, 4096), (1, 12, 131072), (1, 1, (1 << 20) + 3))
    """Rows, heads and lengths of single comparisons in the dtype that is timed."""
    dtype: str = "bfloat16"
    """Of everything but the comparisons."""
    num_heads: int = 12
    head_dim: int = 64
    num_landmarks: int = 64
    conv_kernel_size: int = 33
    tokens: int = 131072
    """Of a batch, whatever its length: the rows are as many as that gives."""
    lengths: tuple[int, ...] = (4096, 512, 1024, 8192, 32768, 131072)
    longest: int = 1 << 20
    """Tokens of the one sequence that our attention is measured on alone."""
    copy_bytes: int = 1 << 32
    matmul: int = 8192
    training: tuple[TrainingSize, ...] = (
        TrainingSize(512, 64, "nystrom-512"),
        TrainingSize(4096, 8, "nystrom-4096"),
    )
    compiles: bool = True
    """Whether compiled layers are trained too."""
    seconds: float = 0.5
    """For which each method is repeated."""

    def rows(self, length: int) -> int:
        """Of a batch of this length."""
        return max(1, self.tokens // length)


FULL = Sizes()
TINY = Sizes(
    check_dtypes=("float32",),
    check_landmarks=((32, 32),),
    check_lengths=((40, 1),),
    check_large=(),
    # In Triton's interpreter bfloat16 has no arithmetic, and on most CPUs it is slow.
    dtype="float32",
    num_heads=1,
    head_dim=32,
    num_landmarks=32,
    conv_kernel_size=5,
    tokens=64,
    lengths=(64,),
    longest=100,
    copy_bytes=1 << 20,
    matmul=64,
    training=(
        TrainingSize(
            *(64, 1, "nystrom-512"),
            (
                *("model.embedding_dim=32", "model.transformer_dim=32", "model.transformer_hidden_dim=64"),
                *("model.num_head=1", "model.head_dim=32", "model.num_layers=1", "model.vocab_size=300"),
                *("model.num_landmarks=32", "model.conv_kernel_size=5", "model.max_seq_len=64"),
            ),
        ),
    ),
    compiles=False,
    seconds=1e-9,
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
        raise UserError(
            "no CUDA device was found; --dry_run runs everything on the CPU, in sizes too small for measurements"
        )
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
