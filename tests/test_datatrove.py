"""Steps for datatrove: results in the metadata, and the corpus that its tasks write, whole after any kill."""

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
from corpora import contents, write_realnews
from finetuning import made_rows
from pyarrow import parquet

from nystromformer import Predictor
from nystromformer.data.preprocessing.build import DatasetSettings, build_dataset
from nystromformer.data.preprocessing.corpora.formats import FORMATS, Rules
from nystromformer.data.preprocessing.corpora.unify import unify
from nystromformer.data.preprocessing.corpus import read_documents
from nystromformer.data.preprocessing.unified import read_corpus
from nystromformer.data.tokenizer import save_tokenizer, train_tokenizer
from nystromformer.errors import UserError

pytest.importorskip("datatrove")

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter

from nystromformer.datatrove import DocumentPredictor, UnifiedWriter

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
    """To the bit, and as values of Python."""
    rows = zip(*(np.asarray(cells).tolist() for cells in expected.values()), strict=True)
    wanted = [dict(zip(expected, row, strict=True)) for row in rows]
    found = [{name: each[name] for name in expected} for each in metadata]
    return found == wanted and json.loads(json.dumps(found, allow_nan=False)) == wanted


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
    texts = ["", *TEXTS[:2], " \n"]
    with pytest.raises(ValueError, match=r"document 'd2': expected a text, found an empty one: .*skip_empty=True"):
        list(DocumentPredictor(Predictor(finished, "cpu", embed=embed))(iter(documents(texts[1:]))))
    step = DocumentPredictor(Predictor(finished, "cpu", embed=embed, skip_empty=True))
    first, *some, last = step(iter(documents(texts)))
    assert set(first.metadata.values()) == set(last.metadata.values()) == {None, False}
    assert same((each.metadata for each in some), Predictor(finished, "cpu", embed=embed)(TEXTS[:2]))
    assert step.stats["empty"].total == 2


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
def test_steps_pickle(finished: Path, tmp_path: Path, used: bool) -> None:
    """By the standard library and by dill; the opened run stays behind."""
    step = DocumentPredictor(Predictor(finished, "cpu"))
    writer = UnifiedWriter(tmp_path, "mine")
    if used:
        list(step(iter(documents())))
    for dumps, loads in ((pickle.dumps, pickle.loads), _dill()):
        assert len(dumps(step)) < 20_000
        again = loads(dumps(step))
        assert [each.metadata for each in again(iter(documents()))] == [each.metadata for each in step(documents())]
        assert loads(dumps(writer)).folder == writer.folder


def _dill() -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    reduction = multiprocess.reduction.ForkingPickler
    return lambda value: bytes(reduction.dumps(value)), reduction.loads


def test_arguments_that_say_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch_size: expected at least 1, found 0"):
        DocumentPredictor(Predictor(tmp_path), batch_size=0)
    with pytest.raises(ValueError, match="corpora: expected a folder of a file system, found 's3://bucket/corpora'"):
        UnifiedWriter("s3://bucket/corpora", "mine")
    with pytest.raises(ValueError, match="name: expected a corpus without a weight, found 'mine=2'"):
        UnifiedWriter(tmp_path, "mine=2")
    with pytest.raises(UserError, match="expected NAME"):
        UnifiedWriter(tmp_path, "a/b")


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "nystromformer.datatrove")
    for name in [name for name in sys.modules if name.partition(".")[0] == "datatrove"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "datatrove", None)
    with pytest.raises(ModuleNotFoundError, match=r"this needs datatrove, .*nystromformer-torch\[datatrove\]"):
        __import__("nystromformer.datatrove")


@pytest.fixture
def news(tmp_path: Path) -> list[Document]:
    """The documents of a corpus that the project unified itself, in tmp_path/own/news, under the same ids."""
    source = write_realnews(tmp_path / "source", 39)
    with (source / "realnews.jsonl").open("a") as file:
        file.write(json.dumps({"text": "A heading\nIts text goes on"}) + "\n")
    unify(source, tmp_path / "own" / "news" / "unified", FORMATS["realnews"], Rules())
    lines = (source / "realnews.jsonl").read_bytes().splitlines(keepends=True)
    offsets = np.cumsum([0, *map(len, lines)]).tolist()
    return [
        Document(json.loads(line)["text"], f"realnews.jsonl@{offset}")
        for line, offset in zip(lines, offsets, strict=False)
    ]


class Slices:
    """A reader: of each task every so many documents; one of the tasks may end in the middle."""

    def __init__(self, given: Sequence[Document], broken: int | None = None) -> None:
        self.given = given
        self.broken = broken

    def __call__(self, data: None, rank: int, world_size: int) -> Iterator[Document]:
        size = -(-len(self.given) // world_size)
        for number, document in enumerate(self.given[rank * size : (rank + 1) * size]):
            if rank == self.broken and number == 3:
                raise OSError("killed")
            yield document


def unified(tmp_path: Path) -> Path:
    return tmp_path / "new" / "news" / "unified"


def write(given: Sequence[Document], tmp_path: Path, tasks: int, logs: str = "logs", broken: int | None = None) -> None:
    execute([Slices(given, broken), UnifiedWriter(tmp_path / "new", "news")], tmp_path / logs, tasks)


def test_one_task_writes_the_bytes_of_the_project(news: list[Document], tmp_path: Path) -> None:
    write(news, tmp_path, 1)
    assert (unified(tmp_path) / "00000.jsonl").read_bytes() == (
        tmp_path / "own" / "news" / "unified" / "00000.jsonl"
    ).read_bytes()
    found, own = read_corpus(unified(tmp_path)), read_corpus(tmp_path / "own" / "news" / "unified")
    assert found.model_copy(update={"name": own.name, "settings": own.settings}) == own


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_it_feeds_the_preprocessing(news: list[Document], tmp_path: Path, workers: int) -> None:
    """The rows of one file are those of the project's own corpus; several tasks hold the same documents."""
    texts = [[document.text for document in news[start : start + 10]] for start in range(0, 40, 10)]
    reader = ParquetReader(str(write_texts(tmp_path / "in", texts)))
    execute([reader, UnifiedWriter(tmp_path / "several", "news")], tmp_path / "logs-several", 5, workers)
    write(news, tmp_path, 1)
    own = list(read_documents(tmp_path / "own" / "news" / "unified" / "00000.jsonl"))
    folder = tmp_path / "several" / "news" / "unified"
    several = [each for shard in read_corpus(folder).shards for each in read_documents(folder / shard)]
    assert [each.sentences for each in several] == [each.sentences for each in own]
    assert len({each.group for each in several}) == len(several) == 40
    assert (folder / "00004.jsonl").read_bytes() == b"", "a task without a file"

    tokenizer = train_tokenizer([sentence for each in own for sentence in each.sentences], 300)
    save_tokenizer(tokenizer, tmp_path / "tokenizer")
    settings = DatasetSettings(32, ["news"], str(tmp_path / "tokenizer"), validation=0.3)
    for name in ("own", "new", "several"):
        build_dataset(tmp_path / name, tmp_path / f"{name}-rows", settings)
    rows = [contents(tmp_path / f"{name}-rows") for name in ("own", "new", "several")]
    for each in rows:
        each.pop("manifest.json")
    assert rows[0] == rows[1]
    assert all(rows[2].values())


def test_a_killed_task_leaves_no_file_and_a_relaunch_writes_the_same(news: list[Document], tmp_path: Path) -> None:
    write(news, tmp_path, 4)
    expected = contents(unified(tmp_path))
    assert list(expected) == ["00000.jsonl", "00001.jsonl", "00002.jsonl", "00003.jsonl", "corpus.json"]
    (tmp_path / "new").rename(tmp_path / "before")

    with pytest.raises(OSError, match="killed"):
        write(news, tmp_path, 4, "other", broken=2)
    assert list(contents(unified(tmp_path))) == ["00000.jsonl", "00001.jsonl"]
    with pytest.raises(UserError, match=r"no corpus\.json: it is unfinished"):
        read_corpus(unified(tmp_path))
    # What a kill leaves, at which Python runs no more.
    (unified(tmp_path) / "00002.jsonl.tmp").write_text("half")
    write(news, tmp_path, 4, "other")
    assert contents(unified(tmp_path)) == expected

    (unified(tmp_path) / "00001.jsonl").unlink()
    write(news, tmp_path, 4, "all again")
    assert contents(unified(tmp_path)) == expected


def test_another_number_of_tasks_is_refused(news: list[Document], tmp_path: Path) -> None:
    with pytest.raises(OSError, match="killed"):
        write(news, tmp_path, 4, broken=2)
    before = contents(unified(tmp_path))
    with pytest.raises(UserError, match=r"(?s)tasks: found 4, expected 8.*the same number of tasks"):
        write(news, tmp_path, 8, "other")
    assert contents(unified(tmp_path)) == before


def test_a_task_runs_once_at_a_time(news: list[Document], tmp_path: Path) -> None:
    first = UnifiedWriter(tmp_path / "new", "news").run(iter(news), 0, 2)
    next(first)
    with pytest.raises(UserError, match="another command is using its part 00000"):
        list(UnifiedWriter(tmp_path / "new", "news").run(iter(news), 0, 2))
    list(UnifiedWriter(tmp_path / "new", "news").run(None, 1, 2))
    assert len(list(first)) == len(news) - 1
    assert read_corpus(unified(tmp_path)).documents == len(news)


def test_what_is_no_document_is_counted(tmp_path: Path) -> None:
    long = " ".join(f"Word{number} is a word." for number in range(70_000))
    given = [Document(long, "long"), Document(" \n", "empty"), Document("A text.", 7)]  # type: ignore[arg-type]
    step = UnifiedWriter(tmp_path / "new", "news")
    assert list(step(given)) == given
    corpus = read_corpus(unified(tmp_path))
    assert corpus.dropped == {"empty document": 1}
    assert [each.id for each in read_documents(unified(tmp_path) / "00000.jsonl")] == ["long", "long#2", "7"]
    assert [step.stats[name].total for name in ("total", "written", "empty")] == [3, 2, 1]
    with pytest.raises(UserError, match=r"no document is left.* Dropped: 1 x empty document"):
        list(UnifiedWriter(tmp_path / "none", "news")([given[1]]))
