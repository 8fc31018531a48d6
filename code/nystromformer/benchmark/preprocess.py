"""`run_benchmark.py preprocess`: stage two, whole, beside the tokenizer alone on the same text and cores."""

from __future__ import annotations

import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from nystromformer.benchmark.questions.preprocess import Preprocessing
from nystromformer.benchmark.results import measure_and_write, table_of
from nystromformer.data.dataset import TOKENIZER_FOLDER, open_dataset
from nystromformer.data.preprocessing.corpus import Document, read_documents, write_documents
from nystromformer.data.preprocessing.pretrained_tokenizer import read_tokenizer
from nystromformer.data.preprocessing.unified import UnifiedCorpus, read_corpus, write_corpus
from nystromformer.data.tokenizer import save_tokenizer, train_tokenizer
from nystromformer.errors import UserError
from nystromformer.machine import machine_facts, peak_memory
from nystromformer.tables import Column

logger = logging.getLogger(__name__)

OURS, BASE = "read, encode, pack, write", "tokenizers.encode_batch_fast alone"
_SHARD_BYTES = 1 << 24
_BATCH_SENTENCES = 4096
_GENERATED_VOCABULARY = 8192
_COMMAND = """
from pathlib import Path
from nystromformer.command_line import cli
from nystromformer.data.preprocessing.commands import dataset_command
cli.run(dataset_command({length}, ("text",), Path({folder!r}), tokenizer_limit={length}))
"""


@dataclass(frozen=True)
class PreprocessRow:
    """One method.

    seconds: of each repeat. memory: MiB at the peak of the largest process.
    """

    method: str
    tokens: int
    seconds: tuple[float, ...]
    memory: float | None

    @property
    def speed(self) -> float:
        """Tokens a second, the median of the repeats."""
        return self.tokens / statistics.median(self.seconds)


def run_preprocess(settings: Preprocessing) -> list[PreprocessRow]:
    """Measure both in turn, again and again."""
    # before the tokenizers library makes its threads
    os.environ["RAYON_NUM_THREADS"] = str(settings.workers)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    with tempfile.TemporaryDirectory(prefix="preprocess-benchmark-") as name:
        folder = Path(name)
        sentences = _write_text(settings, folder / "text" / "unified")
        tokenizer = _tokenizer(settings, sentences)
        save_tokenizer(tokenizer, folder / TOKENIZER_FOLDER)
        alone: list[float] = []
        whole: list[float] = []
        memory = 0.0
        for repeat in range(settings.repeats):
            begin = time.perf_counter()
            tokens = _encode(tokenizer, sentences)
            middle = time.perf_counter()
            memory = max(memory, _preprocess(settings, folder, folder / f"out{repeat}"))
            alone.append(middle - begin)
            whole.append(time.perf_counter() - middle)
            logger.info("repeat %d of %d measured", repeat + 1, settings.repeats)
        manifest = open_dataset(folder / "out0").manifest
        # of the separators between documents, all are written and none is encoded
        separators = sum(manifest.split(split).documents - 1 for split in ("train", "validation"))
        written = manifest.train.tokens + manifest.validation.tokens
        assert tokens - written <= separators, "both encode the same text"
    return [PreprocessRow(OURS, tokens, tuple(whole), memory), PreprocessRow(BASE, tokens, tuple(alone), None)]


def _write_text(settings: Preprocessing, folder: Path) -> list[str]:
    """Write the text as a unified corpus; returns its sentences."""
    documents, size = [], 0
    for document in _generated() if settings.corpus is None else _read(settings.corpus):
        documents.append(document)
        size += sum(map(len, document.sentences)) + 4 * len(document.sentences)
        if size >= settings.megabytes * 1e6:
            break
    each = -(-len(documents) * _SHARD_BYTES // max(size, _SHARD_BYTES))
    shards = {
        f"{number:05d}.jsonl": write_documents(folder / f"{number:05d}.jsonl", documents[first : first + each])
        for number, first in enumerate(range(0, len(documents), each))
    }
    sentences = [sentence for document in documents for sentence in document.sentences]
    corpus = UnifiedCorpus(
        name="text",
        settings={},
        documents=len(documents),
        sentences=len(sentences),
        words=0,
        characters=sum(map(len, sentences)),
        dropped={},
        cut={},
        shards=shards,
    )
    write_corpus(folder, corpus)
    return sentences


def _read(folder: Path) -> Iterator[Document]:
    for shard in read_corpus(folder).shards:
        yield from read_documents(folder / shard)


def _generated() -> Iterator[Document]:
    """Made-up text without end, its words distributed as Zipf's law has it."""
    draw = random.Random(0)
    syllables = [a + b for a in "bdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "in", "ost")]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(20000)]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    number = 0
    while True:
        drawn = iter(draw.choices(words, weights, k=20 * 40))
        sentences = tuple(" ".join(next(drawn) for _ in range(20)).capitalize() + "." for _ in range(40))
        yield Document(str(number), str(number), sentences)
        number += 1


def _tokenizer(settings: Preprocessing, sentences: Sequence[str]) -> Tokenizer:
    if settings.tokenizer is None:
        return train_tokenizer(sentences[:50000], _GENERATED_VOCABULARY)
    return read_tokenizer(settings.tokenizer, str(settings.tokenizer)).tokenizer


def _encode(tokenizer: Tokenizer, sentences: Sequence[str]) -> int:
    """Encode all text, a batch at a time, for memory's sake; returns the number of tokens."""
    tokens = 0
    for begin in range(0, len(sentences), _BATCH_SENTENCES):
        batch = list(sentences[begin : begin + _BATCH_SENTENCES])
        tokens += sum(map(len, tokenizer.encode_batch_fast(batch, add_special_tokens=False)))
    return tokens


def _preprocess(settings: Preprocessing, folder: Path, out: Path) -> float:
    """Run the command from its start to its end; returns MiB at the peak of its largest process."""
    code = _COMMAND.format(length=settings.length, folder=str(folder))
    flags = ["--tokenizer", str(folder / TOKENIZER_FOLDER), "--out", str(out), "--workers", str(settings.workers)]
    try:
        return peak_memory([sys.executable, "-c", code, *flags], stderr=subprocess.PIPE)
    except subprocess.CalledProcessError as error:
        raise UserError(f"the preprocessing command failed:\n{error.stderr}") from error


def table(rows: Sequence[PreprocessRow]) -> str:
    """Tokens a second, their ratio to the tokenizer alone, and memory."""
    base = next(row for row in rows if row.method == BASE)
    lines = table_of(
        rows,
        (Column("method", 32, is_text=True), lambda row: row.method),
        (Column("tokens", 12, gap=1), lambda row: str(row.tokens)),
        (
            Column("seconds", 24, gap=1),
            lambda row: f"{statistics.median(row.seconds):.2f} ({min(row.seconds):.2f}-{max(row.seconds):.2f})",
        ),
        (Column("tokens/s", 10, gap=1), lambda row: f"{row.speed:.0f}"),
        (Column("ratio", 6, gap=1), lambda row: f"{row.speed / base.speed:.2f}"),
        (Column("MiB", 7, gap=1), lambda row: "" if row.memory is None else f"{row.memory:.0f}"),
    )
    return "\n".join(lines)


def measure_preprocessing(settings: Preprocessing, folder: Path) -> str:
    """Measure, write `preprocess.json` and `preprocess.txt`, and return what to print."""
    facts = machine_facts()
    del facts["threads"], facts["device"], facts["torch"]
    # A folder's name says what the text is; its place is this machine's own.
    names = {key: getattr(settings, key) and str(getattr(settings, key).name) for key in ("corpus", "tokenizer")}
    described: dict[str, Any] = {**asdict(settings), **names}
    if settings.corpus is not None:
        described["corpus"] = read_corpus(settings.corpus).name
    return measure_and_write(folder, "preprocess", lambda: run_preprocess(settings), table, described, facts)
