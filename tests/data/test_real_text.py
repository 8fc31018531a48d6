"""Real text, where NYSTROM_DATA names a folder of data sets: Wikipedia as WikiExtractor writes it."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenizers import ByteLevelBPETokenizer

from nystromformer.data.corpus import Document, split_sentences
from nystromformer.data.rows import write_rows
from nystromformer.data.tokenizer import SpecialTokens

DATA = Path(os.environ.get("NYSTROM_DATA", "/nonexistent"))
ROBERTA = SpecialTokens(bos=0, pad=1, eos=2, unk=3, mask=50264)
LENGTH = 512

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not (DATA / "wiki").is_dir(), reason="NYSTROM_DATA names no folder with wiki/ in it"),
]


def articles() -> Iterator[Document]:
    for path in sorted((DATA / "wiki" / "english_wiki").rglob("wiki_*"))[:3]:
        found = re.findall(r'<doc id="(\d+)".*?>\n(.*?)</doc>', path.read_text(encoding="utf-8"), re.DOTALL)
        for number, text in found:
            if len(text.split()) >= 128:
                yield Document(number, number, tuple(split_sentences(text)))


def test_wikipedia_with_the_roberta_tokenizer_fills_its_rows(tmp_path: Path) -> None:
    folder = DATA / "roberta-base"
    tokenizer = ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), add_prefix_space=True)
    documents = list(articles())
    written = write_rows(tmp_path, "train", iter(documents), tokenizer._tokenizer, ROBERTA, LENGTH)
    assert written.documents == len(documents) > 50
    rows = np.fromfile(tmp_path / "train.tokens.bin", dtype="<u2").reshape(-1, LENGTH)
    splits = np.fromfile(tmp_path / "train.splits.bin", dtype="<u2")
    assert len(rows) == written.rows > 100
    assert (rows[:, 0] == ROBERTA.bos).all()
    assert (rows[:, -1] == ROBERTA.eos).all()
    assert not (rows == ROBERTA.pad).any(), "every row is full"
    assert (splits > 0).mean() > 0.3
    assert (rows[np.flatnonzero(splits), splits[splits > 0] - 1] == ROBERTA.eos).all()
    text = tokenizer.decode(rows[0][1:100].tolist())
    assert documents[0].sentences[0][:40] in text
