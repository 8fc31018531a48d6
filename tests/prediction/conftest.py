"""Finished runs of all kinds, for tests of what is done with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finetuning import copy_of, finetune, made_rows, write_imdb, write_sst2, write_stsb, write_table
from small import contents, run_here

from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.documents.task import Documents
from nystromformer.tasks.finetuning.definition import Definition
from nystromformer.tasks.glue.catalog import find_tasks
from nystromformer.tasks.glue.task import Glue
from nystromformer.tasks.imdb.task import Imdb


@pytest.fixture(scope="session")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the data are: of a table NAME.csv."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def folders(source: Path, top: Path) -> Callable[[str], Path]:
    """The folder of a finished run of a kind, trained once for all tests. Texts of tables are in windows, and the test
    table is the training table.
    """
    experiment = copy_of(source, top / "experiment")
    done: dict[str, Path] = {}

    def task(kind: Any) -> Definition:
        if kind in ("STS-B", "SST-2"):
            write = write_stsb if kind == "STS-B" else write_sst2
            return Glue(find_tasks(kind)[0], write(top / "glue"))
        if kind == "imdb":
            return Imdb(write_imdb(top / "aclImdb"), 0.25, 0)
        rows = [
            (text, label, f"{len(text.split()) % 4 + 1}", "a;b" if number % 3 else "b")
            for number, (text, label) in enumerate(made_rows(40, most=60))
        ]
        path = str(write_table(top / f"{kind}.csv", ("body", "label", "count", "sets"), rows))
        label = {"classes": "label", "several": "sets"}.get(kind, "count")
        asked = {"classes": None, "several": "several,separator=;"}.get(kind, kind)
        return Documents(Question(path, "body", label, path, kind=asked, cut="windows,overlap=4", validation="0.25"))

    def folder(kind: str) -> Path:
        if kind not in done:
            (result,) = finetune(experiment, task(kind), epoch=1).results
            done[kind] = Path(result.folder)
        return done[kind]

    return folder


@pytest.fixture
def predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The exit status of run_predict.py on a CPU, by run, input, more flags, and the name of the output."""

    def predict(run: Path, source: object, *flags: object, out: str = "out.csv") -> int:
        given = (run, "--input", source, "--out", tmp_path / out, "--device", "cpu", *flags)
        return run_here(monkeypatch, "code/run_predict.py", *given)

    return predict


@pytest.fixture
def refused(predict: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What run_predict.py says where it ends with one message and exit status 2 and nothing is written."""

    def refused(*given: object, **where: str) -> str:
        before = contents(tmp_path)
        capsys.readouterr()
        assert predict(*given, **where) == 2
        assert contents(tmp_path) == before
        said = capsys.readouterr().err
        assert said.lower().count("error:") == 1
        assert "Traceback" not in said
        return said

    return refused
