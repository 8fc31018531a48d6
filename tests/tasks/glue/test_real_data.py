"""GLUE's real files, where NYSTROM_DATA names a folder of data sets."""

import os
from pathlib import Path

import pytest

from nystromformer.tasks.glue.catalog import TASKS
from nystromformer.tasks.glue.read import check_size, find_files, read_split
from nystromformer.tasks.glue.table_task import GlueTask

DATA = Path(os.environ.get("NYSTROM_DATA", "/nonexistent")) / "glue"
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not DATA.is_dir(), reason="NYSTROM_DATA names no folder with glue/ in it"),
]

# the rows of which fewer are at hand
PARTS = {
    ("QQP", "train"): 8999,
    ("QQP", "dev"): 1000,
    ("MNLI", "train"): 8999,
    ("MNLI", "dev_matched"): 1000,
    ("QNLI", "train"): 9999,
}


@pytest.mark.parametrize("each", TASKS, ids=lambda each: each.name)
def test_row_counts(each: GlueTask) -> None:
    if not (DATA / each.name).is_dir():
        pytest.skip(f"no {each.name} in the data")
    for split, path in find_files(each, DATA).items():
        texts, _ = read_split(each, split, path)
        expected = PARTS.get((each.name, split), each.split(split).rows)
        assert len(texts) in (expected, each.split(split).rows)
        assert (check_size(each, split, len(texts)) == []) == (len(texts) == each.split(split).rows)
        assert texts.second is None or len(texts.second) == len(texts)
        assert (texts.labels is None) == (split in each.test_splits)
        if texts.labels is not None and each.labels is not None:
            assert set(texts.labels.tolist()) == set(range(len(each.labels)))
