"""Real text, where NYSTROM_DATA names a folder of data sets: the four corpora in their own formats."""

import os
from pathlib import Path

import numpy as np
import pytest
from corpora import open_verified

from nystromformer.data.preprocessing.build import DatasetSettings, build_dataset
from nystromformer.data.preprocessing.corpora.formats import FORMATS, Rules
from nystromformer.data.preprocessing.corpora.unify import unify
from nystromformer.data.preprocessing.corpus import read_documents
from nystromformer.errors import UserError

DATA = Path(os.environ.get("NYSTROM_DATA", "/nonexistent"))

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not (DATA / "wiki").is_dir(), reason="NYSTROM_DATA names no folder with wiki/ in it"),
]


RULES = {
    "wiki": Rules(min_words=128),
    "bookcorpus": Rules(lines_per_document=1000),
    "stories": Rules(),
    "realnews": Rules(min_words=300),
}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few megabytes of each corpus, unified."""
    folder = tmp_path_factory.mktemp("corpora")
    files = {
        "wiki": sorted((DATA / "wiki" / "english_wiki").rglob("wiki_*"))[:4],
        "stories": sorted((DATA / "stories").rglob("*.txt"), key=lambda path: path.stat().st_size)[:4],
        "bookcorpus": sorted((DATA / "bookcorpus").glob("*.txt")),
        "realnews": sorted((DATA / "realnews").glob("*.jsonl")),
    }
    for name, paths in files.items():
        (folder / name).mkdir()
        for path in paths:
            lines = path.read_bytes().splitlines(keepends=True)
            part = lines[:20_000] if name == "bookcorpus" else lines[:400] if name == "realnews" else lines
            (folder / name / path.name).write_bytes(b"".join(part))
        unify(folder / name, folder / name / "unified", FORMATS[name], RULES[name])
    return folder


def test_all_text_of_books_and_stories_is_kept(corpora: Path) -> None:
    for name in ("bookcorpus", "stories"):
        raw = [path.read_text(encoding="utf-8-sig") for path in sorted((corpora / name).glob("*.txt"))]
        kept = [s for d in read_documents(corpora / name / "unified" / "00000.jsonl") for s in d.sentences]
        assert " ".join(kept).split() == " ".join(raw).split()


def test_articles_have_no_marks_of_their_formats(corpora: Path) -> None:
    wiki = list(read_documents(corpora / "wiki" / "unified" / "00000.jsonl"))
    assert len(wiki) > 200
    assert all(document.words >= 128 for document in wiki)
    assert not any("<doc" in s or "</doc>" in s or "&amp;" in s for document in wiki for s in document.sentences)
    news = list(read_documents(corpora / "realnews" / "unified" / "00000.jsonl"))
    assert len(news) > 50
    assert all(document.words >= 300 for document in news)


@pytest.mark.slow
def test_the_mixture_at_4096_tokens(corpora: Path, tmp_path: Path) -> None:
    mixture = ("wiki", "bookcorpus", "realnews=1/3", "stories=1/3")
    settings = DatasetSettings(4096, mixture, str(DATA / "roberta-base"), tokenizer_limit=4096)
    manifest = build_dataset(corpora, tmp_path / "rows", settings)
    assert manifest is not None
    dataset = open_verified(tmp_path / "rows")
    assert dataset.vocab_size == 50265
    assert (dataset.special.bos, dataset.special.mask) == (0, 50264)
    assert all(manifest.fill(split) > 0.95 for split in ("train", "validation"))
    rows = dataset.train.tokens
    assert (rows[:, 0] == dataset.special.bos).all()
    labelled = np.flatnonzero(dataset.train.splits)
    assert len(labelled) > 0.08 * len(rows)
    assert (rows[labelled, dataset.train.splits[labelled] - 1] == dataset.special.eos).all()
    share = manifest.validation.documents / (manifest.train.documents + manifest.validation.documents)
    assert 0.1 < share < 0.3
    with pytest.raises(UserError, match=r"roberta-base belongs to models of at most 512"):
        build_dataset(corpora, tmp_path / "no", DatasetSettings(4096, mixture, str(DATA / "roberta-base")))
