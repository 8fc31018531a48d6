"""From unified corpora to a dataset of rows of one length, in parts that processes and machines share.

Each file of a unified corpus gives one part, whoever makes it and whenever. A process holds a document and what the
tokenizer makes of 2^18 characters and a sentence; the training of a tokenizer holds all distinct words of its text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nystromformer import __version__
from nystromformer.data.dataset import TOKENIZER_FOLDER, open_dataset
from nystromformer.data.manifest import (
    FORMAT_VERSION,
    MAKE_ANEW,
    MANIFEST_FILE,
    PARTS_FOLDER,
    SPLITS,
    Corpus,
    Counts,
    Manifest,
    SplitManifest,
    check_size,
    index_file,
    splits_file,
    storage_dtype,
    tokens_file,
    write_manifest,
)
from nystromformer.data.preprocessing.corpus import read_documents, stable_uniform
from nystromformer.data.preprocessing.mixture import Choice, WeightedCorpus, parse_mixture
from nystromformer.data.preprocessing.parts import make_part, merge_parts, write_index
from nystromformer.data.preprocessing.pool import Report
from nystromformer.data.preprocessing.pretrained_tokenizer import PretrainedTokenizer, find_tokenizer, read_tokenizer
from nystromformer.data.preprocessing.settings import TRAIN, DatasetSettings
from nystromformer.data.preprocessing.stages import StageOutput, Stages, fingerprint_of
from nystromformer.data.preprocessing.unified import CORPUS_FILE, UnifiedCorpus, read_corpus, sum_counts
from nystromformer.data.preprocessing.units import Unit, run_units
from nystromformer.data.tokenizer import (
    TOKENIZER_FILE,
    load_tokenizer,
    save_tokenizer,
    special_tokens,
    train_tokenizer,
)
from nystromformer.data.verification import MEMORY_FILE
from nystromformer.errors import UserError
from nystromformer.files.writing import FileStamp, sha256_of
from nystromformer.wording import counted, number_of

log = logging.getLogger(__name__)

_TOKENIZER_STAGE = "tokenizer"
_TRAINING_CHARACTERS = 10**9
_RESERVED = (
    MANIFEST_FILE,
    MEMORY_FILE,
    TOKENIZER_FOLDER,
    PARTS_FOLDER,
    *map(tokens_file, SPLITS),
    *map(splits_file, SPLITS),
    *map(index_file, SPLITS),
)


@dataclass(frozen=True)
class _Source:
    """A corpus of the mixture: its unified folder, what is in it, and how its documents are chosen."""

    folder: Path
    unified: UnifiedCorpus
    choice: Choice

    @property
    def name(self) -> str:
        return self.choice.corpus.name


def build_dataset(
    corpora: Path,
    out: Path,
    settings: DatasetSettings,
    workers: int = 1,
    overwrite: bool = False,
    part: slice | None = None,
) -> Manifest | None:
    """Make a dataset, or what an interrupted run left to do; nothing where it is finished.

    Args:
        corpora: holds `<name>/unified` of each corpus.
        part: of the list of all parts, that an array job does, which leaves the rest and the merging to others.

    Raises:
        UserError: a corpus or the tokenizer is missing, the folder is another run's, or the text is too little.
    """
    begin = time.monotonic()
    folders = {corpus.name: _unified_folder(corpora, corpus) for corpus in parse_mixture(settings.mixture)}
    read = {name: read_corpus(folder) for name, folder in folders.items()}
    sources = [
        _Source(folders[name], read[name], choice) for name, choice in zip(folders, settings.choices(read), strict=True)
    ]
    pretrained = _read_pretrained(settings, corpora)
    parameters = _parameters(settings, sources, pretrained)
    run = {"format_version": FORMAT_VERSION, **parameters}
    with Stages(out, run, MANIFEST_FILE, _RESERVED, overwrite) as stages:
        if _is_finished(out):
            log.info("%s: already finished, nothing to do", out)
            if part is None:
                stages.exclude_others()
                _tidy(stages, settings)
            return open_dataset(out).manifest
        tokenizer = _make_tokenizer(stages, settings, sources, pretrained)
        units = {source.name: _units(out, settings.length, source, tokenizer) for source in sources}
        outputs = run_units(stages, [unit for each in units.values() for unit in each], workers, "rows", part)
        if part is not None:
            return None
        stages.exclude_others()
        if _is_finished(out):
            log.info("%s: finished by another process", out)
            return open_dataset(out).manifest
        stages.unfinish()
        manifest = _finish(stages, settings, parameters, units, outputs, tokenizer)
        _tidy(stages, settings)
    _log_dataset(manifest, read)
    log.info("dataset %s in %.1f seconds", manifest.fingerprint, time.monotonic() - begin)
    return manifest


def _unified_folder(corpora: Path, corpus: WeightedCorpus) -> Path:
    folder = corpora / corpus.name
    if not folder.is_dir():
        there = sorted(path.parent.parent.name for path in corpora.glob(f"*/unified/{CORPUS_FILE}"))
        raise UserError(
            f"--corpus {corpus.name}: no folder {folder}. Unified corpora in {corpora}: {', '.join(there) or 'none'}"
        )
    return folder / "unified"


def _read_pretrained(settings: DatasetSettings, corpora: Path) -> PretrainedTokenizer | None:
    if settings.tokenizer == TRAIN:
        return None
    pretrained = read_tokenizer(find_tokenizer(settings.tokenizer, corpora), settings.tokenizer)
    limit = settings.tokenizer_limit or pretrained.limit
    if limit is not None and settings.length > limit:
        raise UserError(
            f"--length {settings.length}: the tokenizer {pretrained.name} belongs to models of at most {limit} "
            f"tokens. For a model with extended positions, give --tokenizer_limit {settings.length}"
        )
    return pretrained


def _parameters(
    settings: DatasetSettings, sources: Sequence[_Source], pretrained: PretrainedTokenizer | None
) -> dict[str, Any]:
    """What the rows depend on, without paths of the machine, so that machines with other paths can share a run."""
    if pretrained is None:
        tokenizer = {"tokenizer": TRAIN, "vocab_size": settings.trained_size}
    else:
        tokenizer = {"tokenizer": pretrained.name, "tokenizer_state": fingerprint_of(pretrained.tokenizer.to_str())}
    return {
        "length": settings.length,
        "corpora": {source.name: str(source.choice.corpus.weight) for source in sources},
        "validation": settings.validation,
        "seed": settings.seed,
        **({"in_parts": True} if settings.in_parts else {}),
        **tokenizer,
        CORPUS_FILE: {source.name: sha256_of(source.folder / CORPUS_FILE) for source in sources},
    }


def _is_finished(out: Path) -> bool:
    """Whether a dataset is whole; what it lost is made again."""
    if not (out / MANIFEST_FILE).exists():
        return False
    try:
        dataset = open_dataset(out)
        for rows in (dataset.train, dataset.validation):
            for name, stamp in rows.index.files(rows.split) if rows.index else ():
                check_size(out / name, stamp, MANIFEST_FILE, MAKE_ANEW)
    except UserError as error:
        log.info("%s", error)
        return False
    return True


def _make_tokenizer(
    stages: Stages, settings: DatasetSettings, sources: Sequence[_Source], pretrained: PretrainedTokenizer | None
) -> FileStamp:
    def work(report: Report) -> StageOutput:
        if pretrained is None:
            log.info("training a tokenizer of %d tokens", settings.trained_size)
            tokenizer = train_tokenizer(_training_text(settings.seed, sources, report), settings.trained_size)
            if tokenizer.get_vocab_size() < settings.trained_size:
                log.warning(
                    "the text is too short for the full vocabulary, which now has %d of %d tokens",
                    tokenizer.get_vocab_size(),
                    settings.trained_size,
                )
        else:
            tokenizer = pretrained.tokenizer
        files = save_tokenizer(tokenizer, stages.folder / TOKENIZER_FOLDER)
        return StageOutput({f"{TOKENIZER_FOLDER}/{file}": stamp for file, stamp in files.items()})

    size = sum(source.unified.size for source in sources) if pretrained is None else 0
    # what it is made of is among the run's parameters
    unit = Unit(_TOKENIZER_STAGE, "", size, work, verify=True)
    [output] = run_units(stages, [unit], 1, _TOKENIZER_STAGE).values()
    return output.files[f"{TOKENIZER_FOLDER}/{TOKENIZER_FILE}"]


def _training_text(seed: int, sources: Sequence[_Source], report: Report) -> Iterator[str]:
    """Sentences of the train split, of a sample of its documents where there is more than 10^9 characters."""
    sample = min(1.0, _TRAINING_CHARACTERS / max(sum(source.unified.characters for source in sources), 1))
    for source in sources:
        for shard, stamp in source.unified.shards.items():
            for document in read_documents(source.folder / shard, lambda size: report(size, 0), stamp):
                chance = stable_uniform(seed, f"tokenizer\0{document.id}")
                split, times = source.choice(document)
                if split == "train" and times and chance < sample:
                    yield from document.sentences


def _units(out: Path, length: int, source: _Source, tokenizer: FileStamp) -> list[Unit]:
    """The parts of a corpus."""
    units = []
    for number, (shard, stamp) in enumerate(source.unified.shards.items()):
        name = f"{source.name}-{number:05d}"
        work = partial(
            make_part,
            folder=out,
            name=name,
            documents=source.folder / shard,
            stamp=stamp,
            tokenizer_sha256=tokenizer.sha256,
            length=length,
            choice=source.choice,
        )
        # the run's parameters hold the rest
        fingerprint = fingerprint_of([name, stamp.sha256, tokenizer.sha256])
        units.append(Unit(name, fingerprint, stamp.size * source.choice.corpus.passes, work))
    return units


def _finish(
    stages: Stages,
    settings: DatasetSettings,
    parameters: dict[str, Any],
    units: Mapping[str, list[Unit]],
    outputs: Mapping[str, StageOutput],
    tokenizer: FileStamp,
) -> Manifest:
    out = stages.folder
    totals = {split: sum_counts(output.result[split] for output in outputs.values()) for split in SPLITS}
    for split, total in totals.items():
        if not total["rows"] and not (split == "train" and settings.validation == 1):
            raise UserError(
                f"{out}: the {split} split has {number_of(total['tokens'], 'token')} of "
                f"{number_of(total['documents'], 'document')}, not enough for a row of {settings.length}: use more "
                "text, a smaller --length or another --validation, and add --overwrite"
            )
    corpora = []
    for corpus in parse_mixture(settings.mixture):
        parts = [outputs[unit.name].result for unit in units[corpus.name]]
        sums = {split: sum_counts(part[split] for part in parts) for split in SPLITS}
        counts = {split: Counts(**{key: sums[split][key] for key in Counts.model_fields}) for split in SPLITS}
        corpora.append(Corpus(name=corpus.name, weight=float(corpus.weight), **counts))
    place = write_index if settings.in_parts else merge_parts
    splits = {split: SplitManifest(**totals[split], files=place(stages.stamps, split, outputs)) for split in SPLITS}
    encoder = load_tokenizer(out / TOKENIZER_FOLDER, tokenizer.sha256)
    manifest = Manifest(
        corpora=corpora,
        length=settings.length,
        vocab_size=encoder.get_vocab_size(),
        tokens_dtype=storage_dtype(encoder.get_vocab_size()),
        splits_dtype=storage_dtype(settings.length),
        special=special_tokens(encoder),
        tokenizer_sha256=tokenizer.sha256,
        train=splits["train"],
        validation=splits["validation"],
        seed=settings.seed,
        code_version=__version__,
        parameters=parameters,
    )
    write_manifest(out, manifest)
    return manifest


def _tidy(stages: Stages, settings: DatasetSettings) -> None:
    """Remove what a finished dataset has no use for. The stamps of parts that stay are of use when one is lost."""
    for name in stages.stamps.names():
        if name != _TOKENIZER_STAGE and not settings.in_parts:
            stages.stamps.remove(name)
    folder = stages.folder / PARTS_FOLDER
    # what a killed process was writing
    for path in folder.glob("*.tmp"):
        path.unlink()
    with suppress(OSError):
        folder.rmdir()


def _log_dataset(manifest: Manifest, read: Mapping[str, UnifiedCorpus]) -> None:
    """Say what each corpus gave, and how full the rows are."""
    for corpus in manifest.corpora:
        unified = read[corpus.name]
        dropped = counted(unified.dropped)
        log.info("%s: %s; dropped before: %s", corpus.name, number_of(unified.documents, "document"), dropped)
        for split in SPLITS:
            log.info("%s, %s: %s", corpus.name, split, _contents(getattr(corpus, split)))
    for split in SPLITS:
        rows = manifest.split(split)
        log.info(
            "%s: %s of %d (%.1f %% text, %.0f %% with sentence order), %s dropped",
            split,
            _contents(rows),
            manifest.length,
            100 * manifest.fill(split),
            100 * manifest.sentence_order_share(split),
            number_of(rows.dropped_tokens, "token"),
        )


def _contents(counts: Counts) -> str:
    return ", ".join(number_of(getattr(counts, key), key.removesuffix("s")) for key in Counts.model_fields)
