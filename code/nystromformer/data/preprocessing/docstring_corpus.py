"""The corpus of docstrings: duplicates dropped, a document a module, a group a package, in the unified format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from nystromformer.data.preprocessing.corpora.text import Tally, cut_document
from nystromformer.data.preprocessing.corpora.unify import write_unified
from nystromformer.data.preprocessing.corpus import Document, in_batches, write_documents
from nystromformer.data.preprocessing.docstrings import (
    Module,
    SourceFile,
    find_sources,
    installed_sources,
    read_modules,
    text_digest,
)
from nystromformer.data.preprocessing.pool import Made, Report, Unit
from nystromformer.data.preprocessing.unified import UnifiedCorpus, shard_name
from nystromformer.errors import UserError
from nystromformer.wording import counted, number_of

_SHARD_CHARACTERS = 1 << 22


@dataclass(frozen=True)
class DocstringSettings:
    """What decides which docstrings make up the corpus; its fields are flags (`with_flag_groups`)."""

    sources: Annotated[
        list[Path] | None,
        typer.Option(
            "--source", help="Folder of Python packages to read instead of the installed ones; repeat it for several."
        ),
    ] = None
    min_words: Annotated[int, typer.Option("--min_words", help="Drop modules whose docstrings have fewer words.")] = 20
    limit_mb: Annotated[
        float | None,
        typer.Option("--limit_mb", help="Stop after this many million characters, sampled from all packages."),
    ] = None
    seed: Annotated[int, typer.Option("--seed", help="Random seed of --limit_mb's sample.")] = 0

    def __post_init__(self) -> None:
        if self.limit_mb is not None and self.limit_mb <= 0:
            raise UserError(f"--limit_mb: expected more than 0, found {self.limit_mb}")
        if self.min_words < 1:
            raise UserError(f"--min_words: expected at least 1, found {self.min_words}")


def unify_docstrings(
    out: Path, settings: DocstringSettings, workers: int = 1, overwrite: bool = False
) -> UnifiedCorpus | None:
    """Make the unified folder of the docstrings, or what an interrupted run left to do; nothing where it is finished.

    A finished folder stays as it is when packages are installed later.

    Raises:
        UserError: no docstring is left, a source is missing, or the folder is another run's.
    """
    sources = settings.sources or []
    described = {
        "sources": [folder.resolve().name for folder in sources],
        "seed": settings.seed,
        "min_words": settings.min_words,
        "limit_mb": settings.limit_mb,
    }
    files = find_sources(sources or installed_sources())
    work = partial(_write, out=out, files=files, settings=settings, workers=workers)
    unit = Unit("corpus", sum(file.path.stat().st_size for file in files), work)
    origin = {"source": [str(folder.resolve()) for folder in sources]}
    return write_unified(out, "docstrings", described, origin, [unit], 1, overwrite)


def _write(
    report: Report, *, out: Path, files: Sequence[SourceFile], settings: DocstringSettings, workers: int
) -> Made:
    modules = read_modules(files, settings.seed, settings.limit_mb, workers, report)
    tally = Tally()
    shards = {}
    documents = documents_of_modules(modules, settings.min_words, tally)
    for number, batch in enumerate(in_batches(documents, _SHARD_CHARACTERS)):
        shard = out / shard_name(number)
        shards[shard] = write_documents(shard, batch)
    if not tally.documents:
        # before the part counts as finished: packages that are added later are no other facts
        raise UserError(
            f"no document is left of {number_of(len(modules), 'module')}: add packages by --source, or lower "
            f"--min_words. Dropped: {counted(tally.dropped)}"
        )
    return shards, tally.as_dict(with_groups=True)


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
