"""docs/adding.md, "A corpus": its files in a copy of the project, its commands on a small corpus in its format."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from corpora import open_verified, paragraph
from doc_examples import ROOT, apply, blocks, commands, copy_of_project, run

from nystromformer.data.preprocessing.corpus import read_documents
from nystromformer.data.preprocessing.files import CHUNK_BYTES
from nystromformer.data.preprocessing.unified import read_corpus

ADDING = ROOT / "docs" / "adding.md"
DAYS, ARTICLES_PER_DAY = 30, 4


def make_articles() -> list[dict[str, Any]]:
    draw = random.Random(0)
    return [
        {
            "date": f"1897-03-{day + 1:02d}",
            "title": f"Title {day} {number}",
            "paragraphs": [paragraph(draw, 8) for _ in range(3)],
        }
        for day in range(DAYS)
        for number in range(ARTICLES_PER_DAY)
    ]


def write_gazette(folder: Path, articles: list[dict[str, Any]]) -> None:
    """Two years: a compressed one, and a plain one with scans so large that processes divide it."""
    half = len(articles) // 2
    with gzip.open(folder / "1896.jsonl.gz", "wt") as packed:
        packed.writelines(json.dumps(article) + "\n" for article in articles[:half])
    scan = "x" * (CHUNK_BYTES // half + 1)
    with (folder / "1897.jsonl").open("w") as plain:
        plain.writelines(json.dumps({**article, "scan": scan}) + "\n" for article in articles[half:])


@pytest.mark.slow
def test_a_corpus_is_added_as_the_page_says(tmp_path: Path) -> None:
    project = copy_of_project(tmp_path / "project")
    examples = blocks(ADDING, "A corpus")
    script, *_ = apply(examples, project)
    articles = make_articles()
    write_gazette(script.parent, articles)
    said = [run(words, project) for words in commands(examples)]
    assert "2 passed" in said[0].stdout

    corpora = project / "data-preprocessing"
    check_documents(corpora / "gazette" / "unified", articles)
    dataset = open_verified(corpora / "128-gazette")
    assert (dataset.manifest.length, [corpus.name for corpus in dataset.manifest.corpora]) == (128, ["gazette"])
    # whole days, about a fifth of them
    assert 0 < dataset.manifest.validation.documents < DAYS * ARTICLES_PER_DAY / 2
    assert dataset.manifest.validation.documents % ARTICLES_PER_DAY == 0
    # as every script of the project
    again = run(["python", "data-preprocessing/gazette/preprocess.py", "--workers", "1"], project)
    assert "already finished" in again.stderr


def check_documents(unified: Path, articles: list[dict[str, Any]]) -> None:
    corpus = read_corpus(unified)
    assert (corpus.name, len(corpus.shards)) == ("gazette", 3), "one compressed file, and two ranges of the plain one"
    documents = [document for shard in corpus.shards for document in read_documents(unified / shard)]
    assert len(documents) == corpus.documents == len(articles) == DAYS * ARTICLES_PER_DAY
    for document, article in zip(documents, articles, strict=True):
        assert document.group == article["date"]
        assert document.sentences[0] == article["title"]
        assert " ".join(document.sentences) == " ".join([article["title"], *article["paragraphs"]])
    assert len({document.id for document in documents}) == len(documents)
