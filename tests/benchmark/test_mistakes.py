"""What no benchmark can measure is refused by its flags' names, before anything is computed or written."""

from collections.abc import Callable
from pathlib import Path

import pytest

EFFICIENCY = ("efficiency", "--attention", "linear")
STEP = ("step",)
GPU = ("gpu", "--dry_run")
MISTAKES: list[tuple[tuple[str, ...], str, str]] = [
    (("efficiency",), "--attention locl", "did you mean"),
    (EFFICIENCY, "--lengths 0", "'--lengths': expected numbers from 1"),
    (EFFICIENCY, "--lengths 1k", "'--lengths': expected numbers separated by commas"),
    (("efficiency",), "--attention local,window=3", "window: unknown key"),
    (("abilities",), "--task loookup", "expected one or more of lookup, recall"),
    (("abilities",), "--length 8", "greater than or equal to 16"),
    (
        ("abilities",),
        """--attention {"name":"nystrom","num_landmarks":24,"segments":"padded"} --length 64""",
        "expected a divisor of max_seq_len = 64",
    ),
    (("abilities",), "--pairs 100 --length 64 --task recall", "expected at most 31 for recall at 64 tokens"),
    (("abilities",), "--conv_kernel_size 4", "conv_kernel_size: expected an odd number, found 4"),
    (("again", __file__), "", "expected the file of a benchmark"),
    (("again", "none.json"), "", "none.json: no such file"),
    (("span",), "", "expected at least one --model"),
    (("approximation",), "", "expected at least one --tensors"),
    (STEP, "--lengths 64", "'--lengths': expected numbers from 128"),
    (STEP, "--lengths 128,200", "--lengths: expected multiples of 64, its landmarks"),
    (STEP, "--width 100", "--width: expected multiples of 64, the heads' width; found [100]"),
    (
        STEP,
        "--attention nystrom,num_landmarks=4096 --lengths 128",
        "--attention nystrom,num_landmarks=4096 for",
    ),
    (GPU, "--minutes 0", "'--minutes'"),
]


@pytest.mark.parametrize(
    ("command", "flags", "words"), MISTAKES, ids=[" ".join([*command, flags])[:60] for command, flags, _ in MISTAKES]
)
def test_mistakes(
    command: tuple[str, ...], flags: str, words: str, tmp_path: Path, run_benchmark: Callable[..., str]
) -> None:
    out = () if command[0] == "again" else ("--out", tmp_path / "out")
    given = (*command, *flags.split(), *out)
    assert words in run_benchmark(*given, status=2)
    assert not list(tmp_path.glob("out/*"))
