"""Settings that no benchmark can measure are refused by their flags' names, before anything is made."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nystromformer.benchmark.attention import AttentionBenchmark, parse_lengths
from nystromformer.benchmark.finetune import FinetuneBenchmark
from nystromformer.benchmark.models import common_settings
from nystromformer.benchmark.pretrain import PretrainBenchmark, parse_sizes
from nystromformer.errors import UserError

MISTAKES: dict[str, Callable[[], object]] = {
    "--lengths: expected numbers separated by commas, found '512,many'": lambda: parse_lengths("512,many"),
    "--lengths: expected multiples of num_landmarks = 64, larger than it, .* found [64, 100]": lambda: (
        AttentionBenchmark((64, 100, 512))
    ),
    "--sizes: expected TOKENSxROWS .* found '512x8,4096'": lambda: parse_sizes("512x8,4096"),
    "--precision: expected float32, bf16 or fp16, found 'int8'": lambda: common_settings(4, 512, 300, "int8", 7, 2),
    "--width: expected a multiple of the heads' 64, found 100": lambda: PretrainBenchmark(width=100),
    "--glue and --tokenizer: expected both or none": lambda: FinetuneBenchmark(glue=Path("glue")),
    "--pad_to: expected a multiple of the 64 landmarks, found 200": lambda: FinetuneBenchmark(pad_to=200),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes(words: str) -> None:
    with pytest.raises(UserError, match=words.replace("[", r"\[")):
        MISTAKES[words]()


def test_what_flags_say() -> None:
    assert parse_lengths("512,1024") == (512, 1024)
    assert parse_sizes("512x8, 4096x1") == ((512, 8), (4096, 1))
    for precision, mixed in (("float32", False), ("bf16", "bf16"), ("fp16", "fp16")):
        settings = PretrainBenchmark(**common_settings(2, 128, 300, precision, 5, 1))
        assert (settings.num_layers, settings.width, settings.vocab_size) == (2, 128, 300)
        assert (settings.mixed_precision, settings.repeats, settings.threads) == (mixed, 5, 1)
