"""Nyström's kernels against float64, attention over the length, and steps of training, within a time limit."""

import gc
import itertools
import logging
import math
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd
import torch
import typer

from nystromformer.attention import comparison, create_attention
from nystromformer.attention.kernels import why_not
from nystromformer.attention.kernels.plan import HEAD_DIMS, LANDMARKS
from nystromformer.benchmark.apart import LeftOut, Work, run_works
from nystromformer.benchmark.findings import Findings, Record
from nystromformer.benchmark.methods import SDPA
from nystromformer.benchmark.questions import OUT, Out, efficiency, flag, step
from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.errors import UserError
from nystromformer.tables import markdown, show
from nystromformer.training.device import Device

logger = logging.getLogger(__name__)

FACTOR = 2.0
"""How many times the error of tensor operations the kernels' may be."""
FLOAT32_FLOOR = 1e-5
"""A relative error that is no mistake in float32, whatever tensor operations have: a third of what the tests allow."""
ENDS = {"check": 0.4, "speed": 0.8, "training": 1.0}
"""Of each section, as a share of the time."""
KERNELS = "nystrom, kernels"
_SEVERAL, _MEMORY = 12, 16 << 30
"""Processes that compare at once, and bytes that each may take; what is timed has the device for itself."""


@dataclass(frozen=True)
class Gpu:
    """How long and on what."""

    minutes: float = flag(8.0, "Total minutes; what does not fit is left out and listed.", 0.001)
    seed: int | None = flag(None, "Random seed of the inputs on which results are compared. Default: a new one.", 0)
    dry_run: bool = flag(False, "Try the command on a CPU, in tiny sizes: its figures mean nothing.")


@dataclass(frozen=True)
class Sizes:
    """What is measured."""

    heads: int = 12
    head_dim: int = 64
    num_landmarks: int = 64
    taps: int = 33
    tokens: int = 65536
    """Of a batch, whatever its length."""
    lengths: tuple[int, ...] = (4096, 512, 1024, 2048, 8192, 16384)
    training: step.Step = step.Step(
        attentions=[step.NYSTROM, "near_far", "softmax"],
        lengths=(512, 4096),
        tokens=32768,
        num_layers=12,
        width=768,
        precision="bf16",
    )
    repeats: int = 15
    device: str = "cuda"
    implementation: str = "triton"
    """What computes the kernels' row."""

    @property
    def at(self) -> Device:
        """bfloat16 under autocast, parameters in float32, as in training."""
        return Device(torch.device(self.device), torch.bfloat16 if self.device == "cuda" else None)


TINY = Sizes(
    *(1, 32, 32, 5, 64, (64,)),
    training=step.Step([step.NYSTROM], lengths=(128,), tokens=128, num_layers=1, width=64, vocab_size=300, repeats=1),
    repeats=1,
    device="cpu",
    implementation="torch",
)


@with_flag_groups
def gpu(flags: Gpu, out: Out = OUT) -> None:
    """The kernels and attentions on a GPU: are they correct, how fast are they, and what do they gain in training.

    The exit status is 1 where a measurement failed, or the kernels' results differ too much from float64's.
    """
    sizes = TINY if flags.dry_run else Sizes()
    if flags.dry_run:
        logger.info("a dry run: tensor operations stand in the kernels' place, and figures mean nothing")
    elif not torch.cuda.is_available():
        raise UserError("no CUDA device was found; --dry_run goes through everything on the CPU, in tiny sizes")
    seed = secrets.randbits(31) if flags.seed is None else flags.seed
    found, text = Findings.begin("gpu", replace(flags, seed=seed), out), ""
    works: dict[str, dict[str, Work]] = {
        "check": {
            f"check of {case}": partial(compare, sizes, case, seed + number) for number, case in enumerate(cases(sizes))
        },
        "speed": {f"speed at {length} tokens": partial(measure_speed, sizes, length) for length in sizes.lengths},
        "training": {
            f"training at {length} tokens": partial(step.measure_steps, sizes.training, length, sizes.at)
            for length in sizes.training.lengths
        },
    }
    begin = time.monotonic()
    for name, end in ENDS.items():
        at_once = 0 if flags.dry_run else 1
        if at_once and name == "check":
            at_once = max(1, min(_SEVERAL, (os.cpu_count() or 1) - 2, torch.cuda.mem_get_info()[1] // _MEMORY))
        for title, outcome in run_works(works[name], at_once, begin + 60 * flags.minutes * end):
            records = outcome.get("records", [])
            found.records += [{"section": name, **record} for record in records]
            wrong = [*(text for each in records for text in each.get("wrong", [])), outcome.get("failed")]
            found.failed += [f"{title}: {each}" for each in wrong if each]
            found.left_out += [f"{title}: {outcome['left_out']}"] if "left_out" in outcome else []
            logger.info("%s: %s", title, outcome.get("failed") or outcome.get("left_out") or "measured")
        text = found.publish(out / "gpu.json")
    show(text)
    if found.failed:
        raise typer.Exit(1)


def cases(sizes: Sizes) -> Iterator[Record]:
    """Comparisons of the kernels with float64: first what takes longest, then every size in every dtype, with and
    without a mask.
    """
    names = ("dtype", "num_landmarks", "head_dim", "rows", "heads", "length", "masked", "taps")
    shape, masks = (sizes.num_landmarks, sizes.head_dim), len(comparison.MASKS)
    if sizes.device == "cpu":
        found: list[tuple[Any, ...]] = [("float32", *shape, masks, 1, 40, masked) for masked in (True, False)]
    else:
        large = ((32, 12, 4096), (1, 12, 131072), (1, 1, (1 << 20) + 3))
        found = [("bfloat16", *shape, *place, False) for place in large]
        # Work of few heads is cut otherwise than that of many.
        places = itertools.cycle(((24, 1000), (2, 4096), (24, 333), (2, 4097)))
        pairs = [(pair, next(places)) for pair in itertools.product(LANDMARKS, HEAD_DIMS)]
        for dtype, (pair, place), masked in itertools.product(("bfloat16", "float16", "float32"), pairs, (True, False)):
            found.append((dtype, *pair, masks, *place, masked))
    for case, taps in zip(found, itertools.cycle((sizes.taps, 65, None, 9, sizes.taps))):
        yield dict(zip(names, (*case, taps), strict=True))


def compare(sizes: Sizes, case: Record, seed: int) -> list[Record]:
    """The kernels and tensor operations with float64, on inputs of a seed of their own: `ratios` of their errors,
    ‖out − reference‖ / ‖reference‖ of the output and of the gradients, and what is `wrong`.
    """
    # Convolutions of float32 numbers by tensor operations would be inexact.
    torch.backends.cudnn.allow_tf32 = False
    device, dtype, landmarks = torch.device(sizes.device), getattr(torch, case["dtype"]), case["num_landmarks"]
    generator = torch.Generator(device).manual_seed(seed)
    keep = comparison.masks_of_all_kinds(case["length"], landmarks, generator) if case["masked"] else None
    # Neighbours have something in common, and what stands at masked tokens must not matter.
    size = (case["rows"], case["length"], case["heads"], case["head_dim"])
    inputs = comparison.draw_inputs(size, dtype, generator, alike=16, keep_BN=keep, masked=1e4)
    if sizes.implementation == "triton" and (reason := why_not(inputs[0], landmarks, case["taps"])):
        raise LeftOut(reason)
    parameters: dict[str, Any] = {"num_heads": case["heads"], "head_dim": case["head_dim"]}
    parameters |= {"num_landmarks": landmarks, "conv_kernel_size": case["taps"]}
    module, plain = (
        comparison.build(seed, device, **parameters, implementation=each) for each in (sizes.implementation, "torch")
    )
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        _poison(device)
        ours = comparison.results(module, inputs, keep)
        _poison(device)
        again = comparison.results(module, inputs, keep)
        usual = comparison.results(plain, inputs, keep)
    expected = comparison.by_tensor_operations(plain, inputs, keep)
    ratios, wrong = judge(case["dtype"], comparison.errors(ours, expected), comparison.errors(usual, expected))
    if not all(torch.equal(value, again[name]) for name, value in ours.items()):
        wrong.append("a second run gave other bits")
    if keep is not None:
        masked = ~keep[:, None, :, None]
        if any(bool(ours[name].masked_select(masked).any()) for name in ("out", "q", "k", "v")):
            wrong.append("masked tokens got other values than zero")
    return [case | {"seed": seed, "ratios": ratios, "wrong": wrong}]


def judge(dtype: str, ours: dict[str, float], plain: dict[str, float]) -> tuple[dict[str, float | None], list[str]]:
    """Errors over those of tensor operations, None where there is no such number, and those that are too large."""
    floor = FLOAT32_FLOOR if dtype == "float32" else 0.0
    wrong = [
        f"{name}: error {error:.2e}, tensor operations {plain[name]:.2e}"
        for name, error in ours.items()
        # Written so that NaN fails.
        if not (error <= FACTOR * plain[name] or error <= floor)
    ]
    ratios = {name: error / plain[name] if plain[name] else math.nan for name, error in ours.items()}
    return {name: ratio if math.isfinite(ratio) else None for name, ratio in ratios.items()}, wrong


def _poison(device: torch.device) -> None:
    """Fill the memory that the allocator will give next with NaN: of every dtype, all bits set are one."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        # Blocks of up to a mebibyte come from a pool of their own.
        sizes = [1 << 30] + [1 << 20] * 64
        blocks = [torch.empty(each, dtype=torch.uint8, device=device).fill_(255) for each in sizes]
        del blocks


def measure_speed(sizes: Sizes, length: int) -> list[Record]:
    """Nyström attention by kernels, SDPA, and tensor operations as they are and compiled, side by side."""
    nystrom = {"num_landmarks": sizes.num_landmarks, "conv_kernel_size": sizes.taps}
    shape: dict[str, Any] = {"num_heads": sizes.heads, "head_dim": sizes.head_dim, "max_length": length}
    plain: dict[str, Any] = {name: create_attention(name, **shape) for name in ("near_far", "mra")}
    plain["nystrom"] = create_attention("nystrom", **shape, **nystrom, implementation="torch")
    kernels = create_attention("nystrom", **shape, **nystrom, implementation=sizes.implementation)
    methods = {KERNELS: kernels, SDPA: create_attention("softmax", **shape), **plain}
    if sizes.device == "cuda":
        # Of any length: what was compiled for one is found in the cache for the others.
        methods |= {f"{name}, compiled": torch.compile(each, dynamic=True) for name, each in plain.items()}
    size = max(1, sizes.tokens // length), length, sizes.heads, sizes.head_dim
    dtype = sizes.at.autocast_dtype or torch.float32
    inputs = comparison.draw_inputs(size, dtype, torch.Generator(sizes.device).manual_seed(0))
    records = efficiency.side_by_side(methods, inputs, sizes.repeats, sizes.at.autocast)
    return [{"length": length, "rows": size[0], **record} for record in records]


def blocks(found: Findings) -> list[str]:
    """Tables of each section."""
    parts = ["Measured on a GPU"]
    sections = {name: [r for r in found.records if r["section"] == name] for name in ENDS}
    if rows := sections["check"]:
        frame = pd.json_normalize(rows).assign(cases=1)
        frame["wrong"] = frame.wrong.map(len).gt(0)
        ratios = [name for name in frame if name.startswith("ratios.")]
        how = {"cases": "sum", "wrong": "sum", **dict.fromkeys(ratios, "max")}
        table = frame.groupby(["dtype", "num_landmarks", "head_dim"], as_index=False).agg(how)
        lines = [[f"{x:.2f}" if isinstance(x, float) else str(x) for x in row] for row in table.itertuples(index=False)]
        parts += [
            "## Correctness",
            "Errors of the output and of gradients, ‖out − reference‖ / ‖reference‖ against tensor operations in "
            "float64, over those of tensor operations in the same precision: the largest of the cases. Seeds from "
            f"{found.settings['seed']} on.",
            markdown([name.removeprefix("ratios.") for name in table], lines),
        ]
    if rows := sections["speed"]:
        parts += ["## Attention", "bfloat16 under autocast; in brackets: over SDPA.", *efficiency.tables(rows)]
    if rows := sections["training"]:
        parts += ["## A step of pretraining", step.table(rows)]
    return parts


draw = efficiency.draw
