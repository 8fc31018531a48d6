"""The corpus of docstrings: duplicates dropped, split by package, written in the unified format."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nystromformer.data.build import BuildSettings
from nystromformer.data.corpus import Document, choose_validation_groups, write_documents
from nystromformer.data.docstrings import Module, find_sources, installed_sources, read_modules, text_digest
from nystromformer.data.stages import StageOutput
from nystromformer.errors import UserError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DocstringSettings:
    """What decides which docstrings make up the corpus.

    sources: folders to search; empty for those of the running interpreter.
    seed: of the choice of validation packages, and of the sample that `limit_mb` takes.
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

    def build_settings(self, length: int, vocab_size: int) -> BuildSettings:
        """Settings of the dataset that this corpus gives."""
        folders = [folder.resolve() for folder in self.sources]
        return BuildSettings(
            corpus="docstrings",
            parameters={
                "sources": [folder.name for folder in folders],
                "min_words": self.min_words,
                "limit_mb": self.limit_mb,
            },
            seed=self.seed,
            origin=tuple(map(str, folders)),
            length=length,
            vocab_size=vocab_size,
        )


def write_docstring_corpus(folder: Path, settings: DocstringSettings, workers: int) -> StageOutput:
    """Write `corpus/train.jsonl` and `corpus/validation.jsonl` below `folder`.

    Raises:
        UserError: fewer than two packages with English docstrings, so that there is nothing to split.
    """
    sources = settings.sources or tuple(installed_sources())
    modules = read_modules(find_sources(sources), settings.seed, settings.limit_mb, workers)
    splits, dropped = split_modules(modules, settings.seed, settings.min_words)
    output = StageOutput()
    for split, documents in splits.items():
        name = f"corpus/{split}.jsonl"
        output.files[name] = write_documents(folder / name, documents)
    output.result = {
        "documents": {split: len(documents) for split, documents in splits.items()},
        "words": {split: sum(document.words for document in documents) for split, documents in splits.items()},
        "modules_read": len(modules),
        "groups": {split: len({document.group for document in documents}) for split, documents in splits.items()},
        "validation_groups": sorted({document.group for document in splits["validation"]}),
        "dropped": dict(sorted(dropped.items())),
    }
    return output


def split_modules(
    modules: Sequence[Module], seed: int, min_words: int
) -> tuple[dict[str, list[Document]], Counter[str]]:
    """Turn modules into documents of a train and a validation split, each package wholly on one side.

    A docstring stays where it comes first: train before validation, then by id. So no validation docstring is in train.

    Returns:
        The documents of each split, and how many things were dropped, by reason.
    """
    validation = choose_validation_groups(_distinct_text(modules), seed)
    seen: set[bytes] = set()
    dropped: Counter[str] = Counter()
    splits: dict[str, list[Document]] = {"train": [], "validation": []}
    for split, documents in splits.items():
        for module in modules:
            if (module.group in validation) == (split == "validation"):
                document = _without_duplicates(module, seen, dropped)
                if document.words >= min_words:
                    documents.append(document)
                elif document.sentences:
                    dropped[f"document under {min_words} words"] += 1
        if not documents:
            raise UserError(f"no docstrings are left for the {split} split: add packages, or lower --min_words")
    for module in modules:
        dropped["docstring not English"] += module.not_english
        if module.problem:
            dropped[module.problem] += 1
    return splits, dropped


def _distinct_text(modules: Sequence[Module]) -> dict[str, int]:
    """Characters of the distinct docstrings of each package that has any."""
    sizes: dict[str, int] = {}
    seen: set[tuple[str, bytes]] = set()
    for module in modules:
        for docstring in module.docstrings:
            key = (module.group, text_digest(docstring))
            if key not in seen:
                seen.add(key)
                sizes[module.group] = sizes.get(module.group, 0) + sum(map(len, docstring))
    return sizes


def _without_duplicates(module: Module, seen: set[bytes], dropped: Counter[str]) -> Document:
    sentences: list[str] = []
    for docstring in module.docstrings:
        digest = text_digest(docstring)
        if digest in seen:
            dropped["duplicate docstring"] += 1
        else:
            seen.add(digest)
            sentences.extend(docstring)
    return Document(module.id, module.group, tuple(sentences))
