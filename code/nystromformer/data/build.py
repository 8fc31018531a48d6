"""From a corpus to a finished dataset folder, in stages: corpus, tokenizer, rows of each split, manifest."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nystromformer import __version__
from nystromformer.data.corpus import Document, read_documents
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
from nystromformer.data.rows import MIN_LENGTH, splits_file, storage_dtype, tokens_file, write_rows
from nystromformer.data.stages import StageOutput, Stages
from nystromformer.data.tokenizer import TOKENIZER_FILE, load_tokenizer, save_tokenizer, special_tokens, train_tokenizer
from nystromformer.errors import UserError
from nystromformer.files import FileStamp

log = logging.getLogger(__name__)

_RESERVED = (MANIFEST_FILE, TOKENIZER_FOLDER, "corpus", *map(tokens_file, SPLITS), *map(splits_file, SPLITS))


@dataclass(frozen=True)
class BuildSettings:
    """What decides the rows that a corpus gives.

    corpus: its name; parameters: what decides its text, as the manifest shall say it: without paths of the machine.
    origin: where the text comes from on this machine, by which a folder tells one run from another.
    length: tokens of a row; vocab_size: tokens of the tokenizer that is trained on the train split.
    """

    corpus: str
    parameters: dict[str, Any]
    seed: int
    origin: tuple[str, ...] = ()
    length: int = 256
    vocab_size: int = 4096

    def __post_init__(self) -> None:
        # checked here too, so that a wrong length does not cost the reading of a corpus
        if self.length < MIN_LENGTH:
            raise UserError(f"--length: expected at least {MIN_LENGTH}, found {self.length}")


def build_dataset(
    folder: Path, settings: BuildSettings, make_corpus: Callable[[Path], StageOutput], overwrite: bool = False
) -> Manifest:
    """Make a dataset folder, or what an interrupted run left to do, or nothing where it is finished.

    Args:
        make_corpus: writes `corpus/train.jsonl` and `corpus/validation.jsonl` below the folder that it is given.
        overwrite: replace a run with other parameters.

    Raises:
        UserError: the folder is another run's, the text is too little, or the disk is full.
    """
    begin = time.monotonic()
    parameters = {**asdict(settings), "format_version": FORMAT_VERSION}
    with Stages(folder, parameters, MANIFEST_FILE, _RESERVED, overwrite) as stages:
        corpus = stages.run("corpus", parameters, [], lambda: make_corpus(folder))
        tokenizer = _tokenizer_stage(stages, settings, corpus)
        rows = {split: _rows_stage(stages, settings, corpus, tokenizer, split) for split in SPLITS}
        if not stages.ran and (folder / MANIFEST_FILE).exists():
            log.info("%s: finished already, nothing to do", folder)
            return open_dataset(folder).manifest
        manifest = _manifest(folder, settings, tokenizer, rows)
        write_manifest(folder, manifest)
    _log_summary(manifest, corpus.result, time.monotonic() - begin)
    return manifest


def _corpus_file(corpus: StageOutput, split: str) -> tuple[str, FileStamp]:
    name = f"corpus/{split}.jsonl"
    return name, corpus.files[name]


def _tokenizer_stage(stages: Stages, settings: BuildSettings, corpus: StageOutput) -> StageOutput:
    name, stamp = _corpus_file(corpus, "train")

    def work() -> StageOutput:
        documents = _progress(read_documents(stages.folder / name), corpus, "train", "tokenizer")
        sentences = (sentence for document in documents for sentence in document.sentences)
        tokenizer = train_tokenizer(sentences, settings.vocab_size)
        if tokenizer.get_vocab_size() < settings.vocab_size:
            log.warning("the text gave only %d of %d tokens", tokenizer.get_vocab_size(), settings.vocab_size)
        files = save_tokenizer(tokenizer, stages.folder / TOKENIZER_FOLDER)
        return StageOutput({f"{TOKENIZER_FOLDER}/{file}": stamp for file, stamp in files.items()})

    return stages.run("tokenizer", {"vocab_size": settings.vocab_size}, [stamp], work)


def _rows_stage(
    stages: Stages, settings: BuildSettings, corpus: StageOutput, tokenizer: StageOutput, split: str
) -> StageOutput:
    name, stamp = _corpus_file(corpus, split)

    def work() -> StageOutput:
        encoder = load_tokenizer(stages.folder / TOKENIZER_FOLDER)
        documents = _progress(read_documents(stages.folder / name), corpus, split, f"{split} rows")
        written = write_rows(stages.folder, split, documents, encoder, special_tokens(encoder), settings.length)
        result = asdict(written)
        del result["files"]
        return StageOutput(written.files, result)

    return stages.run(f"{split}-rows", {"length": settings.length}, [stamp, *tokenizer.files.values()], work)


def _progress(documents: Iterator[Document], corpus: StageOutput, split: str, label: str) -> Iterator[Document]:
    """Documents behind a progress bar, which is shown on a terminal only."""
    return iter(tqdm(documents, total=corpus.result["documents"][split], desc=label, unit="doc", disable=None))


def _manifest(folder: Path, settings: BuildSettings, tokenizer: StageOutput, rows: dict[str, StageOutput]) -> Manifest:
    encoder = load_tokenizer(folder / TOKENIZER_FOLDER)
    splits = {split: SplitManifest(files=rows[split].files, **rows[split].result) for split in SPLITS}
    return Manifest(
        corpora=[
            Corpus(
                name=settings.corpus,
                weight=1.0,
                train=counts_of(rows["train"].result),
                validation=counts_of(rows["validation"].result),
            )
        ],
        length=settings.length,
        vocab_size=encoder.get_vocab_size(),
        tokens_dtype=storage_dtype(encoder.get_vocab_size()),
        splits_dtype=storage_dtype(settings.length),
        special=special_tokens(encoder),
        tokenizer_sha256=tokenizer.files[f"{TOKENIZER_FOLDER}/{TOKENIZER_FILE}"].sha256,
        train=splits["train"],
        validation=splits["validation"],
        seed=settings.seed,
        code_version=__version__,
        parameters={**settings.parameters, "length": settings.length, "vocab_size": settings.vocab_size},
    )


def counts_of(result: dict[str, Any]) -> Counts:
    """The counts among a stage's figures."""
    return Counts(**{name: result[name] for name in Counts.model_fields})


def log_splits(manifest: Manifest) -> None:
    """Say what a dataset's splits hold."""
    for split in SPLITS:
        rows = manifest.split(split)
        log.info(
            "%s: %d documents, %d tokens, %d rows of %d (%.1f %% text, %.0f %% with sentence order), %d tokens dropped",
            split,
            rows.documents,
            rows.tokens,
            rows.rows,
            manifest.length,
            100 * manifest.fill(split),
            100 * rows.sentence_order_rows / rows.rows,
            rows.dropped_tokens,
        )


def _log_summary(manifest: Manifest, corpus: dict[str, Any], seconds: float) -> None:
    log_splits(manifest)
    share = manifest.validation.tokens / (manifest.train.tokens + manifest.validation.tokens)
    log.info("validation: %.1f %% of all tokens, of packages: %s", 100 * share, ", ".join(corpus["validation_groups"]))
    for reason, count in corpus["dropped"].items():
        log.info("dropped: %d x %s", count, reason)
    log.info("dataset %s in %.1f seconds", manifest.fingerprint, seconds)
