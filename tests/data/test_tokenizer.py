"""Byte-level BPE tokenizers: special tokens, round trips, transformers, determinism."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from nystromformer.data.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer
from nystromformer.errors import UserError

SENTENCES = [f"The quick brown fox number {n} jumps over the lazy dog {n * 7919}." for n in range(300)]
TEXTS = ["The fox isn't lazy, is it?", "unseen wörds: 中文 😀", "two  spaces\tand\nlines"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(SENTENCES, 400), folder)
    return folder


def test_transformers_loads_the_folder(folder: Path) -> None:
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    ids = (theirs.bos_token_id, theirs.pad_token_id, theirs.eos_token_id, theirs.unk_token_id, theirs.mask_token_id)
    assert ids == (0, 1, 2, 3, 4)
    assert (theirs.cls_token_id, theirs.sep_token_id, len(theirs)) == (0, 2, 400)
    for text in TEXTS:
        assert theirs(text)["input_ids"] == ours.encode(text).ids
        assert theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True) == " " + text
    batch = theirs(["The fox", "The"], padding=True)
    assert batch["input_ids"][1][-1] == 1
    assert batch["attention_mask"][1][-1] == 0


def test_a_mask_takes_the_space_before_it(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    around = [tokenizer.encode(text, add_special_tokens=False).ids for text in ("The", "fox")]
    assert tokenizer.encode("The <mask> fox", add_special_tokens=False).ids == [*around[0], 4, *around[1]]


TRAIN = """
import sys
from nystromformer.data.tokenizer import train_tokenizer
# every letter pair is as frequent as any other: only ties
words = [a + b + c for a in "abcdefgh" for b in "ijklmnop" for c in "qrstuvwx"]
sys.stdout.write(train_tokenizer(words * 3, 600).to_str())
"""


def test_training_is_deterministic_whatever_the_number_of_threads() -> None:
    digests = set()
    for threads in ("1", "4"):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads}
        run = subprocess.run([sys.executable, "-c", TRAIN], env=environment, capture_output=True, check=True)
        digests.add(hashlib.sha256(run.stdout).hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b"{", "expected a tokenizer"), (b"\xff", "expected a tokenizer")],
)
def test_a_broken_tokenizer_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UserError, match=rf"tokenizer\.json: .*{message}"):
        load_tokenizer(tmp_path)
