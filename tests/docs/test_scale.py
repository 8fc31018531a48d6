"""The examples of docs/scale.md in Spark and Ray Data, where these are installed: what Predictor gives."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from doc_examples import blocks
from finetuning import made_rows
from pyarrow import parquet
from small import ROOT

import nystromformer

BEFORE = {
    "Spark": """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
""",
    "Ray Data": """
import ray
ray.init(address="local", num_cpus=4)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize(("section", "package"), [("Spark", "pyspark"), ("Ray Data", "ray")])
def test_an_example(section: str, package: str, finished: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec(package) is None or (package == "pyspark" and shutil.which("java") is None):
        pytest.skip(f"{package} is not installed")
    texts = [text for text, _ in made_rows(120)]
    (tmp_path / "in").mkdir()
    for number in range(4):
        part = slice(30 * number, 30 * number + 30)
        table = {"id": [f"{row}" for row in range(120)][part], "sentence": texts[part]}
        parquet.write_table(pa.table(table), tmp_path / "in" / f"{number}.parquet")
    (example,) = (block.text for block in blocks(ROOT / "docs" / "scale.md", section) if block.language == "python")
    places = f"RUN, INPUT, OUTPUT = {str(finished)!r}, {str(tmp_path / 'in')!r}, {str(tmp_path / 'out')!r}\n"
    (tmp_path / "example.py").write_text(places + BEFORE[section] + example)
    path = os.pathsep.join([str(ROOT / "code"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, tmp_path / "example.py"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = parquet.read_table(tmp_path / "out").sort_by("id")
    expected = nystromformer.Predictor(finished, "cpu")({"id": [str(row) for row in range(120)], "sentence": texts})
    order = np.argsort(expected["id"])
    assert found["id"].to_pylist() == [expected["id"][row] for row in order]
    for name in ("prediction", *(name for name in expected if name.startswith("p_"))):
        assert found[name].to_pylist() == np.asarray(expected[name])[order].tolist(), name
