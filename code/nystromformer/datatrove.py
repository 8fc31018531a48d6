"""A step for pipelines of datatrove: predictions of documents."""

from collections.abc import Iterable, Iterator
from itertools import islice

from nystromformer.command_line.extras import what_is_missing
from nystromformer.prediction.predictor import Predictor
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
        predictor: with `embed=True` it gives vectors.
        batch_size: documents that are predicted by one call.
        prefix: what the names in the metadata begin with.
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
        """The same documents, with their results; one without text, or with such a name already, is refused."""
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
            if not document.text.strip():
                raise ValueError(
                    f"document {document.id!r}: expected a text, found an empty one: drop it before this step"
                )
        found = self.predictor([document.text for document in batch])
        for document, *values in zip(batch, *(cells.tolist() for cells in found.values()), strict=True):
            document.metadata.update(zip(names, values, strict=True))
