"""The preprocessing benchmark runs on made-up text and on a corpus."""

import json
from collections.abc import Callable
from pathlib import Path

from nystromformer.data.preprocessing.corpus import Document, write_documents
from nystromformer.data.preprocessing.unified import UnifiedCorpus, write_corpus


def test_the_command_writes_its_results(tmp_path: Path, run_benchmark: Callable[..., str]) -> None:
    flags = ["preprocess", "--megabytes", 0.5, "--repeats", 1, "--workers", 1, "--length", 128, "--out", tmp_path]
    assert "encode_batch" in run_benchmark(*flags)
    results = json.loads((tmp_path / "preprocess.json").read_text())
    methods = ["read, encode, pack, write", "tokenizers.encode_batch_fast alone"]
    assert [row["method"] for row in results["rows"]] == methods
    assert all(row["tokens"] > 0 and min(row["seconds"]) > 0 for row in results["rows"])
    assert 20 < results["rows"][0]["memory"] < 300
    assert results["settings"]["corpus"] is None
    assert str(tmp_path) not in (tmp_path / "preprocess.txt").read_text()


def test_a_corpus_of_ones_own(tmp_path: Path, run_benchmark: Callable[..., str]) -> None:
    documents = [
        Document(str(n), str(n), tuple(f"Sentence {n} {k} of the text." for k in range(200))) for n in range(20)
    ]
    stamp = write_documents(tmp_path / "unified" / "00000.jsonl", documents)
    counts = {"documents": 20, "sentences": 4000, "words": 0, "characters": 0, "dropped": {}, "cut": {}}
    corpus = UnifiedCorpus(name="mine", settings={}, shards={"00000.jsonl": stamp}, **counts)
    write_corpus(tmp_path / "unified", corpus)
    flags = ["--corpus", tmp_path / "unified", "--repeats", 1, "--workers", 1, "--length", 64, "--out", tmp_path / "r"]
    run_benchmark("preprocess", *flags)
    assert json.loads((tmp_path / "r" / "preprocess.json").read_text())["settings"]["corpus"] == "mine"
