"""From unified corpora to a dataset of rows of one length, in parts that processes and machines share.

Each file of a unified corpus gives one part, whoever makes it and whenever. A process holds a document and what the
tokenizer makes of 2^18 characters and a sentence; the training of a tokenizer holds all distinct words of its text.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from nystromformer import __version__
from nystromformer.data.dataset import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    SPLITS,
    TOKENIZER_FOLDER,
    Corpus,
    Counts,
    Manifest,
    SplitManifest,
    open_dataset,
    splits_file,
    storage_dtype,
    tokens_file,
    write_manifest,
)
from nystromformer.data.preprocessing.corpus import read_documents, stable_uniform
from nystromformer.data.preprocessing.pool import Made, Work, make_parts
from nystromformer.data.preprocessing.rows import make_part, merge_parts
from nystromformer.data.preprocessing.settings import TRAIN, Choice, DatasetSettings, parse_mixture
from nystromformer.data.preprocessing.unified import CORPUS_FILE, UnifiedCorpus, add_up, read_corpus
from nystromformer.data.tokenizer import (
    TOKENIZER_FILE,
    find_tokenizer,
    load_tokenizer,
    read_tokenizer,
    save_tokenizer,
    special_tokens,
    train_tokenizer,
)
from nystromformer.errors import UserError
from nystromformer.files.parts import PARTS, Part, Parts, open_parts
from nystromformer.files.writing import sha256_of
from nystromformer.wording import counted, number_of

log = logging.getLogger(__name__)

_TOKENIZER = "tokenizer"
"""A part of a dataset, made before all others."""
_TRAINING_CHARACTERS = 10**9
_RESULTS = (
    *(file_of(split) for file_of in (tokens_file, splits_file) for split in SPLITS),
    f"{TOKENIZER_FOLDER}/{TOKENIZER_FILE}",
    MANIFEST_FILE,
)


@dataclass(frozen=True)
class _Source:
    """A corpus of the mixture: its unified folder, what is in it, and how its documents are chosen."""

    folder: Path
    unified: UnifiedCorpus
    choice: Choice


def build_dataset(
    corpora: Path,
    out: Path,
    settings: DatasetSettings,
    workers: int = 1,
    share: slice | None = None,
) -> Manifest | None:
    """Make a dataset, or what an interrupted run left to do; nothing where it is finished.

    Args:
        corpora: holds `<name>/unified` of each corpus.
        share: of the parts, that an array job does, which leaves the rest and the merging to others.
    """
    begin = time.monotonic()
    sources = _find_sources(corpora, settings)
    pretrained = None
    if settings.tokenizer != TRAIN:
        pretrained = read_tokenizer(find_tokenizer(settings.tokenizer, corpora))
    parameters = _parameters(settings, sources, pretrained)
    facts, results = {"format_version": FORMAT_VERSION, **parameters}, [out / name for name in _RESULTS]
    command = "the preprocessing of datasets"
    with open_parts(out / PARTS, command, facts, results, share is not None) as parts:
        if (out / MANIFEST_FILE).exists():
            manifest = open_dataset(out).manifest
            log.info("%s: already finished, nothing to do", out)
        else:
            sha256 = _make_tokenizer(parts, settings, sources, pretrained)
            works: dict[str, Work[Made]] = {
                (name := f"{corpus}-{number:05d}"): partial(
                    make_part,
                    folder=out,
                    name=name,
                    documents=source.folder / shard,
                    stamp=stamp,
                    tokenizer_sha256=sha256,
                    length=settings.length,
                    choice=source.choice,
                )
                for corpus, source in sources.items()
                for number, (shard, stamp) in enumerate(source.unified.shards.items())
            }
            made = make_parts(parts, works, workers, "rows", share)
            if share is not None:
                return None
            manifest = _finish(out, settings, parameters, sources, made, sha256)
            _log_dataset(manifest, sources)
            log.info("dataset %s in %.1f seconds", manifest.fingerprint, time.monotonic() - begin)
        if share is None:
            for name in parts.names():
                if name != _TOKENIZER:
                    parts.discard(name)
    return manifest


def _find_sources(corpora: Path, settings: DatasetSettings) -> dict[str, _Source]:
    read = {}
    for name in parse_mixture(settings.mixture):
        if not (corpora / name).is_dir():
            there = sorted(path.parent.parent.name for path in corpora.glob(f"*/unified/{CORPUS_FILE}"))
            raise UserError(
                f"--corpus {name}: no folder {corpora / name}. Unified corpora in {corpora}: "
                f"{', '.join(there) or 'none'}"
            )
        read[name] = read_corpus(corpora / name / "unified")
    choices = settings.choices(read)
    return {name: _Source(corpora / name / "unified", read[name], choice) for name, choice in choices.items()}


def _parameters(
    settings: DatasetSettings, sources: Mapping[str, _Source], pretrained: Tokenizer | None
) -> dict[str, Any]:
    """What the rows depend on, without paths of the machine, so that machines with other paths can share a run."""
    if pretrained is None:
        tokenizer = {"tokenizer": TRAIN, "vocab_size": settings.trained_size}
    else:
        state = hashlib.sha256(pretrained.to_str().encode()).hexdigest()
        tokenizer = {"tokenizer": Path(settings.tokenizer).name, "tokenizer_state": state}
    return {
        "length": settings.length,
        "corpora": {name: str(source.choice.weight) for name, source in sources.items()},
        "validation": settings.validation,
        "seed": settings.seed,
        **tokenizer,
        CORPUS_FILE: {name: sha256_of(source.folder / CORPUS_FILE) for name, source in sources.items()},
    }


def _make_tokenizer(
    parts: Parts, settings: DatasetSettings, sources: Mapping[str, _Source], pretrained: Tokenizer | None
) -> str:
    """Train the tokenizer, or copy it, unless it is there; gives its file's SHA-256."""
    folder = parts.folder.parent / TOKENIZER_FOLDER
    # The jobs of an array may all begin at once.
    with parts.alone(_TOKENIZER):
        part = parts.find(_TOKENIZER, verify=True)
        if part is None:
            tokenizer = pretrained or _train(settings, sources)
            files = {folder / file: stamp for file, stamp in save_tokenizer(tokenizer, folder).items()}
            part = parts.add(_TOKENIZER, files)
    return next(stamp.sha256 for file, stamp in part.files.items() if Path(file).name == TOKENIZER_FILE)


def _train(settings: DatasetSettings, sources: Mapping[str, _Source]) -> Tokenizer:
    """A tokenizer of the train split, of a sample of its documents where there is more than 10^9 characters."""
    log.info("training a tokenizer of %d tokens", settings.trained_size)
    sample = min(1.0, _TRAINING_CHARACTERS / max(sum(each.unified.characters for each in sources.values()), 1))

    def sentences() -> Iterator[str]:
        for source in sources.values():
            for shard, stamp in source.unified.shards.items():
                for document in read_documents(source.folder / shard, stamp):
                    chance = stable_uniform(settings.seed, f"tokenizer\0{document.id}")
                    split, times = source.choice(document)
                    if split == "train" and times and chance < sample:
                        yield from document.sentences

    tokenizer = train_tokenizer(sentences(), settings.trained_size)
    if (size := tokenizer.get_vocab_size()) < settings.trained_size:
        log.warning("the text is too short for %d tokens: the tokenizer has %d", settings.trained_size, size)
    return tokenizer


def _finish(
    out: Path,
    settings: DatasetSettings,
    parameters: dict[str, Any],
    sources: Mapping[str, _Source],
    made: Mapping[str, Part],
    tokenizer_sha256: str,
) -> Manifest:
    """Merge the parts, and write the manifest."""
    corpora, splits = [], {}
    for corpus, source in sources.items():
        own = [made[f"{corpus}-{number:05d}"] for number in range(len(source.unified.shards))]
        counts = {split: Counts(**add_up(part.figures[split] for part in own)) for split in SPLITS}
        corpora.append(Corpus(name=corpus, weight=float(source.choice.weight), **counts))
    for split in SPLITS:
        total = add_up(part.figures[split] for part in made.values())
        if not total["rows"] and not (split == "train" and settings.validation == 1):
            raise UserError(
                f"{out}: the {split} split has {number_of(total['tokens'], 'token')} of "
                f"{number_of(total['documents'], 'document')}, not enough for a row of {settings.length}: use more "
                "text, a smaller --length or another --validation, and remove the folder"
            )
        splits[split] = SplitManifest(**total, files=merge_parts(out, split, made))
    encoder = load_tokenizer(out / TOKENIZER_FOLDER)
    manifest = Manifest(
        corpora=corpora,
        length=settings.length,
        vocab_size=encoder.get_vocab_size(),
        tokens_dtype=storage_dtype(encoder.get_vocab_size()),
        splits_dtype=storage_dtype(settings.length),
        special=special_tokens(encoder),
        tokenizer_sha256=tokenizer_sha256,
        train=splits["train"],
        validation=splits["validation"],
        seed=settings.seed,
        code_version=__version__,
        parameters=parameters,
    )
    write_manifest(out, manifest)
    return manifest


def _log_dataset(manifest: Manifest, sources: Mapping[str, _Source]) -> None:
    """Say what was read, and how full the rows are."""
    for name, source in sources.items():
        documents, dropped = number_of(source.unified.documents, "document"), counted(source.unified.dropped)
        log.info("%s: %s; dropped before: %s", name, documents, dropped)
    for split in SPLITS:
        rows, fill, order = manifest.split(split), manifest.fill(split), manifest.sentence_order_share(split)
        log.info(
            f"{split}: {rows.documents:,} documents, {rows.tokens:,} tokens, {rows.rows:,} rows of {manifest.length} "
            f"({fill:.1%} text, {order:.0%} with sentence order), {rows.dropped_tokens:,} tokens dropped"
        )
