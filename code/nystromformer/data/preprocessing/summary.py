"""What a finished dataset says of itself in the log."""

import logging
from collections.abc import Mapping

from nystromformer.data.manifest import SPLITS, Manifest
from nystromformer.data.preprocessing.unified import UnifiedCorpus
from nystromformer.wording import counted, number_of

log = logging.getLogger(__name__)


def log_dataset(manifest: Manifest, read: Mapping[str, UnifiedCorpus], seconds: float) -> None:
    """Say what each corpus gave, how full the rows are, and the dataset's fingerprint.

    Args:
        read: the unified corpora by name.
        seconds: that the command took.
    """
    for corpus in manifest.corpora:
        unified = read[corpus.name]
        dropped = counted(unified.dropped)
        log.info("%s: %s; dropped before: %s", corpus.name, number_of(unified.documents, "document"), dropped)
        for split, counts in (("train", corpus.train), ("validation", corpus.validation)):
            log.info("%s, %s: %s", corpus.name, split, _contents(counts.documents, counts.tokens, counts.rows))
    _log_splits(manifest)
    log.info("dataset %s in %.1f seconds", manifest.fingerprint, seconds)


def _log_splits(manifest: Manifest) -> None:
    for split in SPLITS:
        rows = manifest.split(split)
        log.info(
            "%s: %s of %d (%.1f %% text, %.0f %% with sentence order), %s dropped",
            split,
            _contents(rows.documents, rows.tokens, rows.rows),
            manifest.length,
            100 * manifest.fill(split),
            100 * manifest.sentence_order_share(split),
            number_of(rows.dropped_tokens, "token"),
        )


def _contents(documents: int, tokens: int, rows: int) -> str:
    return ", ".join([number_of(documents, "document"), number_of(tokens, "token"), number_of(rows, "row")])
