"""From unified corpora to a dataset of rows of one length, in parts that processes and machines share.

Each file of a unified corpus gives one part, whoever makes it and whenever. A process holds a document (10^6 characters
at the most) and what the tokenizer makes of 2^18 characters and a sentence: less than 256 MiB, whatever the size of the
corpora. Only the training of a tokenizer holds more: all distinct words of its text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nystromformer import __version__
from nystromformer.data.dataset import TOKENIZER_FOLDER, open_dataset
from nystromformer.data.manifest import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    SPLITS,
    Corpus,
    Counts,
    Manifest,
    SplitManifest,
    write_manifest,
)
from nystromformer.data.preprocessing.corpus import choose_validation_groups, read_documents, stable_hash
from nystromformer.data.preprocessing.mixture import Choice, WeightedCorpus, parse_mixture
from nystromformer.data.preprocessing.packing import MIN_LENGTH
from nystromformer.data.preprocessing.parts import PARTS_FOLDER, DamagedPart, MakePart, merge_parts
from nystromformer.data.preprocessing.pretrained_tokenizer import PretrainedTokenizer, find_tokenizer, read_tokenizer
from nystromformer.data.preprocessing.stages import StageOutput, Stages, fingerprint_of
from nystromformer.data.preprocessing.summary import log_dataset
from nystromformer.data.preprocessing.unified import CORPUS_FILE, UnifiedCorpus, read_corpus
from nystromformer.data.preprocessing.units import ArraySlice, Unit, run_units
from nystromformer.data.row_files import splits_file, storage_dtype, tokens_file
from nystromformer.data.tokenizer import TOKENIZER_FILE, load_tokenizer, save_tokenizer, special_tokens, train_tokenizer
from nystromformer.data.verification import MEMORY_FILE
from nystromformer.errors import UserError
from nystromformer.files import FileStamp, sha256_of
from nystromformer.wording import number_of

log = logging.getLogger(__name__)

TRAIN = "train"
_TOKENIZER_STAGE = "tokenizer"
_TRAINING_CHARACTERS = 10**9
_RESERVED = (
    MANIFEST_FILE,
    MEMORY_FILE,
    TOKENIZER_FOLDER,
    PARTS_FOLDER,
    *map(tokens_file, SPLITS),
    *map(splits_file, SPLITS),
)


@dataclass(frozen=True)
class DatasetSettings:
    """What decides a dataset's rows, besides the corpora.

    length: tokens of a row; mixture: corpora with weights, as `mixture.parse_mixture` reads them.
    tokenizer: a folder, a name, or "train" for one of `vocab_size` tokens trained on the train split.
    tokenizer_limit: longest row, in place of the limit that the tokenizer's files state.
    validation: share of the documents that are for validation; 1 for a dataset to score held-out text with.
    """

    length: int
    mixture: tuple[str, ...]
    tokenizer: str
    vocab_size: int = 50265
    tokenizer_limit: int | None = None
    validation: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.length < MIN_LENGTH:
            raise UserError(f"--length: expected at least {MIN_LENGTH}, found {self.length}")
        if not 0 < self.validation <= 1:
            raise UserError(
                f"--validation: expected a share above 0, at most 1 (no training rows), found {self.validation}"
            )
        if self.validation == 1 and self.tokenizer == TRAIN:
            raise UserError(
                "--validation 1 leaves no text to train a tokenizer on: name that of the model to score by --tokenizer "
                "FOLDER (a run keeps it in <model>/model/tokenizer)"
            )
        if not self.mixture:
            raise UserError("--corpus: expected at least one")
        parse_mixture(self.mixture)

    def choices(self, read: Mapping[str, UnifiedCorpus]) -> list[Choice]:
        """How documents of each corpus are chosen.

        Raises:
            UserError: none of the corpora can be divided.
        """
        choices = [
            Choice(corpus, self.validation, self.seed, self._validation_groups(read[corpus.name]))
            for corpus in parse_mixture(self.mixture)
        ]
        undivided = [choice.corpus.name for choice in choices if choice.groups == frozenset()]
        if len(undivided) == len(choices):
            raise UserError(
                f"--corpus {', '.join(undivided)}: the text is one group, of which nothing can be kept for validation: "
                "add text or another corpus, or give --validation 1"
            )
        for name in undivided:
            log.warning("%s: its text is one group, so all of it is for training", name)
        return choices

    def _validation_groups(self, corpus: UnifiedCorpus) -> frozenset[str] | None:
        if corpus.groups is None:
            return None
        if len(corpus.groups) < 2 and self.validation < 1:
            return frozenset()
        return choose_validation_groups(corpus.groups, self.seed, self.validation)


@dataclass(frozen=True)
class _Mixture:
    """The corpora of a mixture by name: their unified folders and what is in them, and how documents are chosen."""

    folders: Mapping[str, Path]
    read: Mapping[str, UnifiedCorpus]
    choices: Sequence[Choice]


def build_dataset(
    corpora: Path,
    out: Path,
    settings: DatasetSettings,
    workers: int = 1,
    overwrite: bool = False,
    array_slice: ArraySlice | None = None,
) -> Manifest | None:
    """Make a dataset, or what an interrupted run left to do; nothing where it is finished.

    Args:
        corpora: holds `<name>/unified` of each corpus.
        array_slice: do only these parts, and leave the rest and the merging to others.

    Raises:
        UserError: a corpus or the tokenizer is missing, the folder is another run's, or the text is too little.
    """
    begin = time.monotonic()
    mixture = _read_mixture(corpora, settings)
    pretrained = _pretrained(settings, corpora)
    parameters = _parameters(settings, mixture.folders, pretrained)
    run = {"format_version": FORMAT_VERSION, **parameters}
    with Stages(out, run, MANIFEST_FILE, _RESERVED, overwrite, shared=True) as stages:
        if _is_finished(out):
            stages.share()
            log.info("%s: finished already, nothing to do", out)
            if array_slice is None and (out / PARTS_FOLDER).exists():
                stages.alone()
                _remove_parts(stages)
            return open_dataset(out).manifest
        tokenizer = _tokenizer_stage(stages, settings, mixture, pretrained)
        stages.share()
        units = _units(out, settings, mixture, tokenizer)
        outputs = run_units(stages, [unit for part in units.values() for unit in part], workers, "rows", array_slice)
        if array_slice is not None:
            return None
        stages.alone()
        if _is_finished(out):
            log.info("%s: finished by another process", out)
            _remove_parts(stages)
            return open_dataset(out).manifest
        stages.unfinish()
        try:
            manifest = _merge(out, settings, parameters, units, outputs, _tokenizer_stamp(tokenizer))
        except DamagedPart as error:
            stages.stamps.remove(error.name)
            raise
        _remove_parts(stages)
    log_dataset(manifest, mixture.read, time.monotonic() - begin)
    return manifest


def _read_mixture(corpora: Path, settings: DatasetSettings) -> _Mixture:
    folders = {corpus.name: _unified_folder(corpora, corpus) for corpus in parse_mixture(settings.mixture)}
    read = {name: read_corpus(folder) for name, folder in folders.items()}
    return _Mixture(folders, read, settings.choices(read))


def _unified_folder(corpora: Path, corpus: WeightedCorpus) -> Path:
    folder = corpora / corpus.name
    if not folder.is_dir():
        there = sorted(path.parent.parent.name for path in corpora.glob(f"*/unified/{CORPUS_FILE}"))
        raise UserError(
            f"--corpus {corpus.name}: no folder {folder}. Unified corpora in {corpora}: {', '.join(there) or 'none'}"
        )
    return folder / "unified"


def _pretrained(settings: DatasetSettings, corpora: Path) -> PretrainedTokenizer | None:
    if settings.tokenizer == TRAIN:
        return None
    pretrained = read_tokenizer(find_tokenizer(settings.tokenizer, corpora), settings.tokenizer)
    limit = settings.tokenizer_limit or pretrained.limit
    if limit is not None and settings.length > limit:
        raise UserError(
            f"--length {settings.length}: the tokenizer {pretrained.name} is of models that take {limit} tokens. For "
            f"one whose positions are extended, give --tokenizer_limit {settings.length}"
        )
    return pretrained


def _parameters(
    settings: DatasetSettings, folders: Mapping[str, Path], pretrained: PretrainedTokenizer | None
) -> dict[str, Any]:
    """What the rows depend on, without paths of the machine, so that machines with other paths can share a run."""
    if pretrained is None:
        tokenizer = {"tokenizer": TRAIN, "vocab_size": settings.vocab_size}
    else:
        tokenizer = {"tokenizer": pretrained.name, "tokenizer_state": fingerprint_of(pretrained.tokenizer.to_str())}
    return {
        "length": settings.length,
        "corpora": {corpus.name: str(corpus.weight) for corpus in parse_mixture(settings.mixture)},
        "validation": settings.validation,
        "seed": settings.seed,
        **tokenizer,
        "unified": {name: sha256_of(folder / CORPUS_FILE) for name, folder in folders.items()},
    }


def _is_finished(out: Path) -> bool:
    """Whether a dataset is whole; one that lost a file is made again."""
    if not (out / MANIFEST_FILE).exists():
        return False
    try:
        open_dataset(out)
    except UserError as error:
        log.info("%s", error)
        return False
    return True


def _tokenizer_stage(
    stages: Stages, settings: DatasetSettings, mixture: _Mixture, pretrained: PretrainedTokenizer | None
) -> StageOutput:
    def work() -> StageOutput:
        if pretrained is None:
            log.info("training a tokenizer of %d tokens", settings.vocab_size)
            tokenizer = train_tokenizer(_training_text(settings, mixture), settings.vocab_size)
            if tokenizer.get_vocab_size() < settings.vocab_size:
                log.warning("the text gave only %d of %d tokens", tokenizer.get_vocab_size(), settings.vocab_size)
        else:
            tokenizer = pretrained.tokenizer
        files = save_tokenizer(tokenizer, stages.folder / TOKENIZER_FOLDER)
        return StageOutput({f"{TOKENIZER_FOLDER}/{file}": stamp for file, stamp in files.items()})

    # what it is made of is among the run's parameters
    return stages.run(_TOKENIZER_STAGE, {}, [], work)


def _training_text(settings: DatasetSettings, mixture: _Mixture) -> Iterator[str]:
    """Sentences of the train split, of a sample of its documents where there is more than 10^9 characters."""
    sample = min(1.0, _TRAINING_CHARACTERS / max(sum(corpus.characters for corpus in mixture.read.values()), 1))
    for choice in mixture.choices:
        name = choice.corpus.name
        for shard, stamp in mixture.read[name].shards.items():
            for document in read_documents(mixture.folders[name] / shard, stamp=stamp):
                chance = int.from_bytes(stable_hash(settings.seed, f"tokenizer\0{document.id}")[:8], "big") / 2**64
                split, times = choice(document)
                if split == "train" and times and chance < sample:
                    yield from document.sentences


def _units(out: Path, settings: DatasetSettings, mixture: _Mixture, tokenizer: StageOutput) -> dict[str, list[Unit]]:
    """The parts of each corpus."""
    stamp = _tokenizer_stamp(tokenizer)
    units: dict[str, list[Unit]] = {}
    for choice in mixture.choices:
        corpus = choice.corpus.name
        units[corpus] = []
        for number, (shard, content) in enumerate(mixture.read[corpus].shards.items()):
            name = f"{corpus}-{number:05d}"
            path = mixture.folders[corpus] / shard
            work = MakePart(out, name, path, content, out / TOKENIZER_FOLDER, stamp.sha256, settings.length, choice)
            # the run's parameters hold the rest
            fingerprint = fingerprint_of([name, content.sha256, stamp.sha256])
            units[corpus].append(Unit(name, fingerprint, content.size * choice.corpus.passes, work))
    return units


def _tokenizer_stamp(tokenizer: StageOutput) -> FileStamp:
    return tokenizer.files[f"{TOKENIZER_FOLDER}/{TOKENIZER_FILE}"]


def _merge(
    out: Path,
    settings: DatasetSettings,
    parameters: dict[str, Any],
    units: Mapping[str, list[Unit]],
    outputs: Mapping[str, StageOutput],
    tokenizer: FileStamp,
) -> Manifest:
    results = {name: output.result for name, output in outputs.items()}
    totals = {split: _sum([result[split] for result in results.values()]) for split in SPLITS}
    for split, total in totals.items():
        if not total["rows"] and not (split == "train" and settings.validation == 1):
            raise UserError(
                f"{out}: the {split} split has {number_of(total['tokens'], 'token')} of "
                f"{number_of(total['documents'], 'document')}, which fill no row of {settings.length}: use more text, "
                "a smaller --length or another --validation"
            )
    files = {split: merge_parts(out, split, outputs) for split in SPLITS}
    splits = {split: SplitManifest(files=files[split], **totals[split]) for split in SPLITS}
    encoder = load_tokenizer(out / TOKENIZER_FOLDER, tokenizer.sha256)
    corpora = []
    for corpus in parse_mixture(settings.mixture):
        mine = [results[unit.name] for unit in units[corpus.name]]
        counts = {split: _counts_of(_sum([result[split] for result in mine])) for split in SPLITS}
        corpora.append(Corpus(name=corpus.name, weight=float(corpus.weight), **counts))
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


def _remove_parts(stages: Stages) -> None:
    for name in stages.stamps.names():
        if name != _TOKENIZER_STAGE:
            stages.stamps.remove(name)
    folder = stages.folder / PARTS_FOLDER
    # what a killed process was writing
    for path in folder.glob("*.tmp"):
        path.unlink()
    with suppress(OSError):
        folder.rmdir()


def _sum(counts: list[dict[str, int]]) -> dict[str, int]:
    return {name: sum(count[name] for count in counts) for name in counts[0]}


def _counts_of(result: Mapping[str, int]) -> Counts:
    """The counts among a stage's figures."""
    return Counts(**{name: result[name] for name in Counts.model_fields})
