"""A folder of Parquet files in an object store: moto's server on this machine."""

import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from finetuning import made_rows
from pyarrow import fs, parquet
from small import contents

moto = pytest.importorskip("moto.server")

NAMES = ("part-0.parquet", "part-1.parquet")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Its address. Credentials are asked for after `/moto-api/reset-auth`."""
    started = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    yield f"http://{host}:{port}"
    started.stop()


@pytest.fixture
def bucket(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """With two files, which lie in the folder `in`, too, and what Spark leaves beside them."""
    key = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    for name, value in {**key, "AWS_ENDPOINT_URL": server, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    store = fs.S3FileSystem(endpoint_override=server, allow_bucket_creation=True)
    store.create_dir("texts")
    (tmp_path / "in").mkdir()
    for number, name in enumerate(NAMES):
        # Row groups of a few rows, so that the footer is not all that is read.
        table = pa.table({"sentence": [text for text, _ in made_rows(20, number)]})
        parquet.write_table(table, tmp_path / "in" / name, row_group_size=6)
        for prefix in ("of/2026", "of a #day"):
            with store.open_output_stream(f"texts/{prefix}/{name}") as file:
                file.write((tmp_path / "in" / name).read_bytes())
    for other in ("_SUCCESS", "more/part-2.parquet"):
        with store.open_output_stream(f"texts/of/2026/{other}") as file:
            file.write(b"not read")
    return "s3://texts/of/2026"


@pytest.mark.parametrize("prefix", ["of/2026/", "of a #day"])
def test_it_gives_the_bytes_of_the_same_files_here(
    bucket: str, finished: Path, predict: Callable[..., int], tmp_path: Path, prefix: str
) -> None:
    """And goes on with what was predicted from a copy of them."""
    assert predict(finished, tmp_path / "in", out="out") == 0
    expected = contents(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    assert predict(finished, tmp_path / "in", "--array_index", 0, "--array_size", 2, out="out") == 0
    assert predict(finished, f"s3://texts/{prefix}", out="out") == 0
    assert contents(tmp_path / "out") == expected


def test_what_cannot_be_read(bucket: str, server: str, finished: Path, refused: Callable[..., str]) -> None:
    def said(place: str) -> str:
        return refused(finished, place, out="out").removeprefix("error: ")

    assert said("s3://").startswith("--input s3://: ")
    assert said("s3://texts/of").startswith("--input s3://texts/of: expected Parquet files (.parquet) directly in it")
    for place, problem in (
        ("s3://texts/nowhere", "NO_SUCH|does not exist|expected Parquet"),
        ("s3://no-bucket", "BUCKET"),
    ):
        assert any(each in said(place) for each in problem.split("|"))
    damaged = fs.S3FileSystem(endpoint_override=server)
    with damaged.open_output_stream(f"texts/of/2026/{NAMES[1]}") as file:
        file.write(b"PAR1 and no more")
    assert said(bucket).startswith(f"{bucket}/{NAMES[1]}: expected a Parquet file, found a damaged one")
    plain = {"Content-Type": "text/plain"}
    request = urllib.request.Request(f"{server}/moto-api/reset-auth", b"0", plain)
    urllib.request.urlopen(request)
    unknown = said(bucket)
    assert unknown.startswith(f"--input {bucket}: cannot be read: ")
    assert "AWS_ACCESS_KEY_ID" in unknown
