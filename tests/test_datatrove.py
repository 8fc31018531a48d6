"""The step for datatrove: results in the metadata."""

import json
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import multiprocess  # its pools pickle by dill
import numpy as np
import pyarrow as pa
import pytest
from finetuning import made_rows
from pyarrow import parquet

from nystromformer import Predictor

pytest.importorskip("datatrove")

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter

from nystromformer.datatrove import DocumentPredictor

TEXTS = [text for text, _ in made_rows(23, most=60)]
FILES = (TEXTS[:9], TEXTS[9:20], TEXTS[20:])
Pipeline = Sequence[Any]


def execute(pipeline: Pipeline, logs: Path, tasks: int, workers: int = 1) -> None:
    LocalPipelineExecutor(list(pipeline), tasks=tasks, workers=workers, logging_dir=str(logs)).run()


def documents(texts: Iterable[str] = TEXTS) -> list[Document]:
    return [Document(text, f"d{number}") for number, text in enumerate(texts)]


def write_texts(folder: Path, files: Iterable[Sequence[str]]) -> Path:
    folder.mkdir()
    for number, texts in enumerate(files):
        ids = [f"{number}.{row}" for row in range(len(texts))]
        parquet.write_table(pa.table({"id": ids, "text": list(texts)}), folder / f"{number}.parquet")
    return folder


def same(metadata: Iterable[dict[str, Any]], expected: dict[str, Any]) -> bool:
    """But for the last digits, and as values of Python."""
    rows = zip(*(np.asarray(cells).tolist() for cells in expected.values()), strict=True)
    wanted = [value if isinstance(value, str) else pytest.approx(value, abs=1e-5) for row in rows for value in row]
    found = [each[name] for each in metadata for name in expected]
    return found == wanted and json.loads(json.dumps(found, allow_nan=False)) == found


# Of several workers each opens the run anew, after seconds of imports.
@pytest.mark.parametrize(
    ("tasks", "workers"), [(1, 1), (2, 1), pytest.param(2, 2, marks=pytest.mark.slow)], ids=lambda number: f"{number}"
)
def test_documents_get_what_one_call_gives(finished: Path, tmp_path: Path, tasks: int, workers: int) -> None:
    """Through files, by any number of tasks; each file stays in its order."""
    step = DocumentPredictor(Predictor(finished, "cpu"), batch_size=4)
    reader = ParquetReader(str(write_texts(tmp_path / "in", FILES)))
    execute([reader, step, ParquetWriter(str(tmp_path / "out"))], tmp_path / "logs", tasks, workers)
    found = [
        row
        for rank in range(tasks)
        for row in parquet.read_table(tmp_path / "out" / f"000_{rank:05d}.parquet").to_pylist()
    ]
    in_order = [text for rank in range(tasks) for file in FILES[rank::tasks] for text in file]
    assert [row["text"] for row in found] == in_order
    assert same([row["metadata"] for row in found], Predictor(finished, "cpu")(in_order))


def test_batches_are_streamed_and_counted(finished: Path) -> None:
    """No document is read before those of the batch before it were taken."""
    read: list[str] = []

    def reader() -> Iterator[Document]:
        for document in documents():
            read.append(document.id)
            yield document

    step = DocumentPredictor(Predictor(finished, "cpu"), batch_size=4)
    for number, document in enumerate(step(reader())):
        assert document.id == f"d{number}"
        assert len(read) == min(4 * (number // 4 + 1), len(TEXTS))
    assert step.stats["total"].total == len(TEXTS)
    assert step.stats["batches"].total == step.stats.time_stats.n == 6
    assert list(step(None)) == []


@pytest.mark.parametrize("embed", [False, True], ids=["predictions", "vectors"])
def test_documents_without_text(finished: Path, embed: bool) -> None:
    found = DocumentPredictor(Predictor(finished, "cpu", embed=embed))(iter(documents(TEXTS[:2])))
    assert same((each.metadata for each in found), Predictor(finished, "cpu", embed=embed)(TEXTS[:2]))
    with pytest.raises(ValueError, match=r"document 'd2': expected a text, found an empty one: drop it"):
        list(DocumentPredictor(Predictor(finished, "cpu", embed=embed))(iter(documents([*TEXTS[:2], " \n"]))))


def test_metadata_is_not_overwritten(finished: Path) -> None:
    predictor = Predictor(finished, "cpu")
    given = documents()
    given[5].metadata["prediction"] = "mine"
    with pytest.raises(ValueError, match="document 'd5': its metadata has prediction already: give the step a prefix"):
        list(DocumentPredictor(predictor)(iter(given)))
    assert [each.metadata for each in given[:6]] == [{}] * 5 + [{"prediction": "mine"}]
    list(DocumentPredictor(predictor, prefix="new_")(iter(given)))
    expected = {f"new_{name}": cells for name, cells in predictor(TEXTS).items()}
    assert same((each.metadata for each in given), expected)
    assert given[5].metadata["prediction"] == "mine"


@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
def test_a_step_pickles(finished: Path, used: bool) -> None:
    """By the standard library and by dill; the opened run stays behind."""
    step = DocumentPredictor(Predictor(finished, "cpu"))
    if used:
        list(step(iter(documents())))
    for dumps, loads in ((pickle.dumps, pickle.loads), _dill()):
        assert len(dumps(step)) < 20_000
        again = loads(dumps(step))
        assert [each.metadata for each in again(iter(documents()))] == [each.metadata for each in step(documents())]


def _dill() -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    reduction = multiprocess.reduction.ForkingPickler
    return lambda value: bytes(reduction.dumps(value)), reduction.loads


def test_a_batch_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch_size: expected at least 1, found 0"):
        DocumentPredictor(Predictor(tmp_path), batch_size=0)


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "nystromformer.datatrove")
    for name in [name for name in sys.modules if name.partition(".")[0] == "datatrove"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "datatrove", None)
    with pytest.raises(ModuleNotFoundError, match=r"this needs datatrove, .*nystromformer-torch\[datatrove\]"):
        __import__("nystromformer.datatrove")
