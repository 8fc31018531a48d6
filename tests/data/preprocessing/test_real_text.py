"""Real text, where NYSTROM_DATA names a folder of data sets: the four corpora in their own formats."""

import os
from pathlib import Path

import pytest

from nystromformer.data.preprocessing.corpora.formats import FORMATS, Rules
from nystromformer.data.preprocessing.corpora.unify import unify
from nystromformer.data.preprocessing.corpus import read_documents

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
