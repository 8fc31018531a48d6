"""Finished runs of all kinds, for tests of what is done with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finetuning import copy_of, finetune, made_rows, write_imdb, write_sst2, write_stsb, write_table

from nystromformer.tasks.documents.cut import Cut
from nystromformer.tasks.documents.divide import Division
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
        asked = None if kind == "classes" else kind
        cut, division = Cut("windows", 4), Division(share=0.25)
        return Documents(
            Question(kind, path, "body", label, path, separator=";", kind=asked, cut=cut, division=division)
        )

    def folder(kind: str) -> Path:
        if kind not in done:
            (result,) = finetune(experiment, task(kind), epoch=1).results
            done[kind] = Path(result.folder)
        return done[kind]

    return folder
