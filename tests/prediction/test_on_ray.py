"""A folder predicted by workers of Ray, on a cluster of two CPUs that the tests start."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from finetuning import made_rows
from pyarrow import parquet
from small import contents, run_here

from nystromformer.prediction import on_ray

ray = pytest.importorskip("ray")
# Workers cannot import this file.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCRIPT = "code/run_predict.py"


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Its address."""
    utilities = pytest.importorskip("ray.cluster_utils")
    started = utilities.Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    yield started.address
    ray.shutdown()
    started.shutdown()


@pytest.fixture
def source_folder(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.mkdir()
    for number in range(5):
        texts = [text for text, _ in made_rows(8, number)]
        parquet.write_table(pa.table({"sentence": texts}), path / f"part-{number}.parquet")
    return path


@pytest.fixture
def flags(cluster: str, finished: Path, source_folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """All but --out, with the cluster's address in the environment."""
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    return finished, "--input", source_folder, "--device", "cpu"


ON_RAY = ("--engine", "ray", "--out")


@pytest.mark.slow
def test_workers_change_no_byte(
    flags: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And say what is wrong as this process would."""
    assert run_here(monkeypatch, SCRIPT, *flags, "--out", tmp_path / "one") == 0
    assert run_here(monkeypatch, SCRIPT, *flags, *ON_RAY, tmp_path / "ray") == 0
    assert contents(tmp_path / "ray") == contents(tmp_path / "one")
    parquet.write_table(pa.table({"sentence": ["a text", ""]}), tmp_path / "in" / "part-9.parquet")
    assert run_here(monkeypatch, SCRIPT, *flags, *ON_RAY, tmp_path / "empty") == 2
    said = capsys.readouterr().err
    assert "part-9.parquet, row 2: the text is empty: fill it in, or remove such rows" in said
    assert "Traceback" not in said


def dying(work: Any, name: str) -> Any:
    """Ends its process at a part, the first time or always; tells how the others' OpenMP waits."""
    top = work.args[2].parent
    mark = top / "died"
    if name == "part-2.parquet" and (not mark.exists() or (top / "always").exists()):
        mark.touch()
        os._exit(1)
    (top / "waiting").write_text(os.environ.get("OMP_WAIT_POLICY", ""))
    return work(name) and ""


@pytest.mark.slow
@pytest.mark.parametrize("always", [False, True], ids=["once", "always"])
def test_a_worker_that_ends(
    flags: tuple[object, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    always: bool,
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    if always:
        (tmp_path / "always").touch()
    with monkeypatch.context() as context:
        context.setattr(on_ray, "_told", dying)
        status = run_here(context, SCRIPT, *flags, *ON_RAY, tmp_path / "out")
    assert (tmp_path / "died").exists()
    assert (tmp_path / "waiting").read_text() == "passive"
    if always:
        assert status == 2
        assert "part-2.parquet: its worker ended 3 times" in capsys.readouterr().err
        assert not (tmp_path / "out" / "_manifest.json").exists()
        assert run_here(monkeypatch, SCRIPT, *flags, *ON_RAY, tmp_path / "out") == 0
    else:
        assert status == 0
    assert run_here(monkeypatch, SCRIPT, *flags, "--out", tmp_path / "one") == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "one")


@pytest.mark.slow
def test_an_address_without_a_cluster(
    finished: Path,
    source_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    flags = (finished, "--input", source_folder, "--device", "cpu", *ON_RAY, tmp_path / "out")
    assert run_here(monkeypatch, SCRIPT, *flags) == 2
    assert "error: --engine ray: no Ray cluster can be reached at 127.0.0.1:1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
