"""What no benchmark can measure is refused by its flags' names, before anything is computed or written."""

from collections.abc import Callable
from pathlib import Path

import pytest

EFFICIENCY = ("efficiency", "--attention", "linear")
PEERS = ("efficiency", "--peers")
GPU = ("gpu", "--dry_run")
MISTAKES: list[tuple[tuple[str, ...], str, str]] = [
    (("efficiency",), "--attention locl", "did you mean"),
    (("efficiency",), "--attention linear,name=softmax", "expected the attention's name once, at the beginning"),
    (EFFICIENCY, "--parts encoder --encoder_batch 100000000 --encoder_lengths 16", "lower one of the two"),
    (EFFICIENCY, "--parts attention,layer", "'--parts': expected one or more of attention,encoder, found 'layer'"),
    (EFFICIENCY, "--encoder_lengths 1k", "'--encoder_lengths': expected numbers separated by commas"),
    (EFFICIENCY, "--lengths 0", "'--lengths': expected numbers from 1"),
    (EFFICIENCY, "--encoder_width 65", "--encoder_width: expected a multiple of --encoder_heads = 2, found 65"),
    (EFFICIENCY, "--lengths 64 --parts attention --budget 0", "no case of the part 'attention' could be measured"),
    (PEERS, "--lengths 512,many", "'--lengths': expected numbers separated by commas, found '512,many'"),
    (PEERS, "--lengths 64,100", "--lengths: expected multiples of num_landmarks = 64, larger than it"),
    (PEERS, "--attention locl", 'unknown attention "locl"; valid names: '),
    (PEERS, "--attention local,window=3", "window: unknown key"),
    (PEERS, "--attention local,block_size", "expected NAME,KEY=VALUE"),
    (PEERS, "--attention local,block/size=8", "expected NAME,KEY=VALUE,…, found 'block/size=8'"),
    (PEERS, "--attention local,block_size=8,block_size=16", "block_size: overridden twice; keep one"),
    (PEERS, """--attention {"nam":"local"}""", 'expected {"name": …}'),
    (PEERS, "--attention local --attention linear", "--peers: expected one --attention, found 2"),
    (PEERS, "--attention local --budget 9", "expected no --budget"),
    (PEERS, "--attention local --lengths 64", "block_size: expected at most the longest of --lengths"),
    (PEERS, "--attention nystrom,segments=padded --lengths 100", "does not accept inputs of 100 tokens"),
    (("abilities",), "--task loookup", "expected one or more of lookup, recall"),
    (("abilities",), "--length 8", "expected numbers from 16"),
    (
        ("abilities",),
        """--attention {"name":"nystrom","num_landmarks":24,"segments":"padded"} --length 64""",
        "nystrom does not accept inputs of 64 tokens",
    ),
    (
        ("abilities",),
        "--attention nystrom,num_landmarks=64 --length 64",
        "expected fewer landmarks than --length = 64",
    ),
    (("abilities",), "--attention linear,num_landmarks=8/16", "num_landmarks"),
    (("abilities",), "--pairs 100 --length 64 --task recall", "expected numbers from 1 to 31 for recall"),
    (("abilities",), "--conv_kernel_size 4", "odd numbers"),
    (("span",), "", "expected at least one --model or --run"),
    (("span",), "--run .", "expected the folder of a finished fine-tuning run"),
    *((("pretrain",), f"--sizes {sizes}", "expected TOKENSxROWS") for sizes in ("128", "64x2", "100x1", "128x0,256x1")),
    (("finetune",), "--pad_to 200", "--pad_to: expected a multiple of the 64 landmarks, found 200"),
    (("finetune",), "--width 100", "--width: expected a multiple of the heads' 64, found 100"),
    (("finetune",), "--glue glue", "--glue and --tokenizer: expected both or none"),
    (("finetune",), "--precision int8", "'int8' is not one of 'float32', 'bf16', 'fp16'"),
    (("lra",), "--data none", "no prepared data: run `python experiments/lra/prepare.py listops` first"),
    (("preprocess",), "--corpus none", "found no folder"),
    (GPU, "--sections check,speed", "'--sections': expected one or more of check,ceilings,attention"),
    (GPU, "--sections=", "expected a value that is not empty"),
    (GPU, "--minutes 0", "expected a number of at least 0.001, found '0'"),
    (GPU, "--minutes nan", "found 'nan'"),
    (GPU, "--minutes inf", "found 'inf'"),
]


@pytest.mark.parametrize(
    ("command", "flags", "words"), MISTAKES, ids=[" ".join([*command, flags])[:60] for command, flags, _ in MISTAKES]
)
def test_mistakes(
    command: tuple[str, ...], flags: str, words: str, tmp_path: Path, run_benchmark: Callable[..., str]
) -> None:
    given = (*command, *flags.split(), "--out", tmp_path / "out")
    assert words in run_benchmark(*given, status=2)
    assert not list(tmp_path.glob("out/*"))
