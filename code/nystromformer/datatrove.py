"""Steps for pipelines of datatrove: predictions of documents, and documents for preprocess_data_512.py."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.command_line.extras import what_is_missing
from nystromformer.data.preprocessing.corpora.text import documents_of
from nystromformer.data.preprocessing.corpus import line_of
from nystromformer.data.preprocessing.settings import parse_mixture
from nystromformer.data.preprocessing.unified import (
    CORPUS_FILE,
    FORMAT_VERSION,
    Tally,
    corpus_of,
    shard_name,
    write_corpus,
)
from nystromformer.files.parts import PARTS, open_parts
from nystromformer.files.writing import NewFile
from nystromformer.prediction.predictor import Predictor, is_empty
from nystromformer.wording import first_names

try:
    from datatrove.data import Document
    from datatrove.pipeline.base import PipelineStep
except ModuleNotFoundError as error:
    if (missing := what_is_missing(error)) is None:
        raise
    raise ModuleNotFoundError(f"nystromformer.datatrove: {missing}", name=error.name) from error


class DocumentPredictor(PipelineStep):
    """Predicts documents with a finished run, or embeds them, and writes the results into their metadata.

    Metadata gets the columns of the predictor's results: `prediction` and `p_NAME`, or `vector`, as plain values of
    Python. Order stays, and no more than a batch is held.

    Args:
        predictor: with `embed=True` it gives vectors; with `skip_empty=True` documents without text get None.
        batch_size: documents that are predicted by one call.
        prefix: what the names in the metadata begin with.

    Raises:
        ValueError: a batch of less than one document.
    """

    type = "PREDICTOR"
    name = "Nyströmformer"

    def __init__(self, predictor: Predictor, batch_size: int = 256, prefix: str = "") -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size: expected at least 1, found {batch_size}")
        super().__init__()
        self.predictor = predictor
        self.batch_size = batch_size
        self.prefix = prefix

    def run(self, data: Iterable[Document] | None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """The same documents, with their results.

        Raises:
            UserError: there is no such run, or it learned from pairs.
            ValueError: a document has no text, or its metadata has one of the names already; says which.
        """
        documents = iter(data or ())
        while batch := list(islice(documents, self.batch_size)):
            with self.track_time("batch"):
                self._predict(batch)
            self.stat_update("batches")
            for document in batch:
                self.stat_update("total")
                self.update_doc_stats(document)
                yield document
            # Not held while the next batch is read.
            del batch, document

    def _predict(self, batch: list[Document]) -> None:
        names = [f"{self.prefix}{name}" for name in self.predictor.columns]
        for document in batch:
            if taken := [name for name in names if name in document.metadata]:
                raise ValueError(
                    f"document {document.id!r}: its metadata has {first_names(taken)} already: give the step a prefix, "
                    'such as prefix="sentiment_"'
                )
            if is_empty(document.text) and not self.predictor.skip_empty:
                raise ValueError(
                    f"document {document.id!r}: expected a text, found an empty one: drop it before this step, or give "
                    "Predictor skip_empty=True"
                )
        found = self.predictor([document.text for document in batch])
        columns = [_plain(cells) for cells in found.values()]
        for document, *values in zip(batch, *columns, strict=True):
            document.metadata.update(zip(names, values, strict=True))
        if empty := sum(is_empty(document.text) for document in batch):
            self.stat_update("empty", value=empty)


def _plain(cells: NDArray[Any]) -> list[Any]:
    """Cells as JSON has them, which has no NaN: a text without a result has None."""
    if cells.dtype == object:
        return list(cells)
    return [None if np.isnan(cell).any() else cell.tolist() for cell in cells]


class UnifiedWriter(PipelineStep):
    """Writes documents as the corpus that `preprocess_data_512.py --corpora CORPORA --corpus NAME` reads.

    Each task writes one file in `<corpora>/<name>/unified`, which gets its name when the task has seen all documents.
    The task that ends last writes `corpus.json`, without which the folder counts as unfinished. All runs of a folder
    need the same number of tasks. A text is a document and a group of its own; its lines are paragraphs. Documents are
    passed on unchanged.

    Args:
        corpora: a folder on this machine, or one that all machines share.
        name: of the corpus.

    Raises:
        UserError, ValueError: the folder is an address, or the name is none of a corpus.
    """

    type = "WRITER"
    name = "Nyströmformer"

    def __init__(self, corpora: str | Path, name: str) -> None:
        if "://" in str(corpora):
            raise ValueError(f"corpora: expected a folder of a file system, found {str(corpora)!r:.80}")
        (corpus,) = parse_mixture([name])
        if corpus.name != name:
            raise ValueError(f"name: expected a corpus without a weight, found {name!r:.80}")
        super().__init__()
        # Another process may have another working folder.
        self.folder = Path(corpora).absolute() / name / "unified"

    def run(self, data: Iterable[Document] | None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """The same documents, once they are written.

        Raises:
            UserError: the folder is that of another number of tasks or of another command; another run is writing this
                file; a text holds half of a surrogate pair; or no task had a document.
        """
        name = self.folder.parent.name
        shards = [self.folder / shard_name(number) for number in range(world_size)]
        facts = {"format_version": FORMAT_VERSION, "corpus": name, "tasks": world_size}
        advice = (
            "give every run the same number of tasks, or choose another folder, or remove this one to start from the "
            "beginning"
        )
        results = [*shards, self.folder / CORPUS_FILE]
        with open_parts(self.folder / PARTS, "UnifiedWriter", facts, results, "share", advice=advice) as parts:
            with parts.alone(shards[rank].stem):
                tally = Tally()
                with NewFile(shards[rank]) as file:
                    for document in data or ():
                        with self.track_time():
                            before = tally.documents
                            # Readers pass numbers on as they are.
                            for made in documents_of(str(document.id), document.text.split("\n"), 0, tally):
                                file.write(line_of(tally.count(made)))
                        self.stat_update("total")
                        self.stat_update("written" if tally.documents > before else "empty")
                        self.update_doc_stats(document)
                        yield document
                parts.add(shards[rank].stem, {file.path: file.stamp}, tally.model_dump())
            # Two tasks may end at the same moment.
            with parts.alone("corpus", wait=True):
                finished = [part for shard in shards if (part := parts.find(shard.stem)) is not None]
                if len(finished) == world_size:
                    write_corpus(self.folder, corpus_of(name, {}, finished))
