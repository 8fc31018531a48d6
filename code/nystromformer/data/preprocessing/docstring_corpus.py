"""The corpus of docstrings: duplicates dropped, a document a module, a group a package, in the unified format."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nystromformer.data.preprocessing.corpora.text import Tally, cut_document
from nystromformer.data.preprocessing.corpus import Document, in_batches, write_documents
from nystromformer.data.preprocessing.docstrings import (
    Module,
    find_sources,
    installed_sources,
    read_modules,
    text_digest,
)
from nystromformer.data.preprocessing.stages import StageOutput, Stages
from nystromformer.data.preprocessing.unified import (
    CORPUS_FILE,
    FORMAT_VERSION,
    UnifiedCorpus,
    log_corpus,
    read_corpus,
    shard_name,
    write_corpus,
)
from nystromformer.errors import UserError
from nystromformer.wording import counted, number_of

log = logging.getLogger(__name__)

NAME = "docstrings"
_SHARD_CHARACTERS = 1 << 22


@dataclass(frozen=True)
class DocstringSettings:
    """What decides which docstrings make up the corpus.

    sources: folders to search; empty for those of the running interpreter.
    seed: of the sample that `limit_mb` takes.
    min_words: modules with fewer words in their docstrings are dropped.
    limit_mb: stop reading after this many 10^6 characters of text.
    """

    sources: tuple[Path, ...] = ()
    seed: int = 0
    min_words: int = 20
    limit_mb: float | None = None

    def __post_init__(self) -> None:
        if self.limit_mb is not None and self.limit_mb <= 0:
            raise UserError(f"--limit_mb: expected more than 0, found {self.limit_mb}")
        if self.min_words < 1:
            raise UserError(f"--min_words: expected at least 1, found {self.min_words}")

    def described(self) -> dict[str, Any]:
        """What corpus.json says of them."""
        return {
            "sources": [folder.resolve().name for folder in self.sources],
            "seed": self.seed,
            "min_words": self.min_words,
            "limit_mb": self.limit_mb,
        }


def unify_docstrings(
    out: Path, settings: DocstringSettings, workers: int = 1, overwrite: bool = False
) -> UnifiedCorpus:
    """Make the unified folder of the docstrings, or what an interrupted run left to do; nothing where it is finished.

    A finished folder stays as it is when packages are installed later.

    Raises:
        UserError: no docstring is left, a source is missing, or the folder is another run's.
    """
    begin = time.monotonic()
    origin = [str(folder.resolve()) for folder in settings.sources]
    parameters = {"format_version": FORMAT_VERSION, "corpus": NAME, **settings.described(), "origin": origin}
    with Stages(out, parameters, CORPUS_FILE, (CORPUS_FILE, shard_name(0)), overwrite, correctable=True) as stages:
        output = stages.run("corpus", parameters, [], lambda: _write(out, settings, workers))
        if not stages.ran and (out / CORPUS_FILE).exists():
            log.info("%s: finished already, nothing to do", out)
            return read_corpus(out)
        corpus = UnifiedCorpus(name=NAME, settings=settings.described(), shards=output.files, **output.result)
        write_corpus(out, corpus)
    log_corpus(corpus, time.monotonic() - begin)
    return corpus


def _write(out: Path, settings: DocstringSettings, workers: int) -> StageOutput:
    sources = settings.sources or tuple(installed_sources())
    modules = read_modules(find_sources(sources), settings.seed, settings.limit_mb, workers)
    tally = Tally()
    output = StageOutput()
    kept = documents_of_modules(modules, settings.min_words, tally)
    for number, documents in enumerate(in_batches(kept, _SHARD_CHARACTERS)):
        output.files[shard_name(number)] = write_documents(out / shard_name(number), documents)
    output.result = tally.as_dict(with_groups=True)
    if not tally.documents:
        raise UserError(
            f"no document is left of {number_of(len(modules), 'module')}: add packages by --source, or lower "
            f"--min_words. Dropped: {counted(tally.dropped)}"
        )
    return output


def documents_of_modules(modules: Sequence[Module], min_words: int, tally: Tally) -> Iterator[Document]:
    """A document of each module that is long enough; a docstring that stands in several modules is in the first one.

    Args:
        modules: sorted by id.
    """
    seen: set[bytes] = set()
    for module in modules:
        tally.dropped["docstring not English"] += module.not_english
        if module.problem:
            tally.dropped[module.problem] += 1
        sentences: list[str] = []
        for docstring in module.docstrings:
            digest = text_digest(docstring)
            if digest in seen:
                tally.dropped["duplicate docstring"] += 1
            else:
                seen.add(digest)
                sentences += docstring
        if sentences:
            for document in cut_document(module.id, sentences, min_words, tally, module.group):
                tally.count(document)
                yield document
