"""A dataset folder: what is read, what is refused, and how a build continues."""

import dataclasses
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from corpora import contents, open_verified, write_unified
from small import resident_bytes

from nystromformer.data.dataset import MANIFEST_FILE, Dataset, Manifest, open_dataset, read_manifest
from nystromformer.data.preprocessing import build as building
from nystromformer.data.preprocessing.build import TRAIN, DatasetSettings, build_dataset
from nystromformer.data.preprocessing.corpus import Document
from nystromformer.data.sampler import rows_of_step
from nystromformer.errors import UserError
from nystromformer.files.checked_json import write_checked

SETTINGS = DatasetSettings(32, ("sample",), TRAIN, 300, validation=0.2, seed=3)
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    documents = [
        Document(f"d{n}", f"g{n // 5}", tuple(f"{WORDS[(n + k) % 8]} {WORDS[n * k % 8]}." for k in range(n % 9 + 8)))
        for n in range(50)
    ]
    write_unified(folder, "sample", documents)
    return folder


def build(corpora: Path, folder: Path, **changes: object) -> Manifest:
    settings = dataclasses.replace(SETTINGS, **changes)  # type: ignore[arg-type]
    manifest = build_dataset(corpora, folder, settings)
    assert manifest is not None
    return manifest


@pytest.fixture(scope="module")
def reference(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "dataset"
    build(corpora, folder)
    return folder


@pytest.fixture
def folder(reference: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(reference, tmp_path / "dataset"))


def test_what_is_written_is_read(reference: Path) -> None:
    assert not list(reference.rglob("*.tmp"))
    dataset = open_verified(reference)
    assert dataset.manifest.length == 32
    assert dataset.manifest.special.mask == 4
    assert (dataset.tokenizer_folder / "tokenizer_config.json").is_file()
    for split, rows in (("train", dataset.train), ("validation", dataset.validation)):
        assert len(rows) == dataset.manifest.split(split).rows > 2
        assert (rows.tokens.shape, rows.splits.shape) == ((len(rows), 32), (len(rows),))
        split_rows = np.flatnonzero(rows.splits)
        assert len(split_rows) > 1
        assert not rows.tokens.flags.writeable
        around = 2 * len(rows) + len(split_rows) + (rows.tokens == dataset.manifest.special.pad).sum()
        assert dataset.manifest.fill(split) == pytest.approx(1 - around / rows.tokens.size)
        assert dataset.manifest.fill(split) > 0.8


def test_the_fingerprint_names_the_content(corpora: Path, reference: Path, tmp_path: Path) -> None:
    fingerprint = open_dataset(reference).manifest.fingerprint
    build(corpora, tmp_path / "again")
    assert open_dataset(tmp_path / "again").manifest.fingerprint == fingerprint
    build(corpora, tmp_path / "other", length=33)
    assert open_dataset(tmp_path / "other").manifest.fingerprint != fingerprint


def test_a_pickle_maps_the_files_again(reference: Path) -> None:
    dataset = open_dataset(reference)
    total = int(dataset.train.tokens.sum())
    pickled = pickle.dumps(dataset)
    assert dataset.train.tokens.tobytes() not in pickled
    again: Dataset = pickle.loads(pickled)  # noqa: S301
    assert isinstance(again.train.tokens, np.memmap)
    assert int(again.train.tokens.sum()) == total
    assert again.manifest.fingerprint == dataset.manifest.fingerprint


def replace(name: str, before: bytes, after: bytes) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        content = (folder / name).read_bytes()
        assert before in content
        (folder / name).write_bytes(content.replace(before, after, 1))

    return apply


def flip_last_byte(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))


BAD_FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, r"dataset: expected a dataset folder, found none.*preprocess_data_512\.py"),
    "no manifest": (lambda at: (at / "manifest.json").unlink(), r"without manifest\.json: it is unfinished.*Make one"),
    "cut": (lambda at: (at / "manifest.json").write_text("{"), r"manifest\.json: .*remove the folder"),
    "by hand": (replace("manifest.json", b'"seed": 3', b'"seed": 4'), r"manifest\.json: modified after it was written"),
    "no splits": (lambda at: (at / "validation.splits.bin").unlink(), r"validation\.splits\.bin: no such file"),
    "size": (lambda at: os.truncate(at / "train.tokens.bin", 64), r"train\.tokens\.bin: 64 bytes, expected \d+ bytes"),
    "no tokenizer": (lambda at: shutil.rmtree(at / "tokenizer"), r"tokenizer\.json: expected SHA.*found no such file"),
    "tokenizer": (
        lambda at: flip_last_byte(at / "tokenizer" / "tokenizer.json"),
        r"tokenizer\.json: expected SHA.*remove the folder",
    ),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_a_bad_folder_is_refused(folder: Path, case: str) -> None:
    spoil, message = BAD_FOLDERS[case]
    spoil(folder)
    with pytest.raises(UserError, match=rf"(?s){message}") as caught:
        open_dataset(folder)
    assert str(folder) in str(caught.value)


def fail_in(stage: str, corpora: Path, folder: Path, **changes: object) -> None:
    """A run that is interrupted in this stage."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, stage, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build(corpora, folder, **changes)


MOMENTS = ["train_tokenizer", "make_parts", "merge_parts", "write_manifest", "_log_dataset"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_stopped_build_continues(corpora: Path, reference: Path, tmp_path: Path, moment: str) -> None:
    (tmp_path / "train.tokens.bin.tmp").write_text("what a killed process left")
    fail_in(moment, corpora, tmp_path)
    assert (tmp_path / "manifest.json").exists() == (moment == "_log_dataset")
    build(corpora, tmp_path)
    assert contents(tmp_path) == contents(reference)


def test_a_part_that_was_changed_is_made_again(
    corpora: Path, reference: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "dataset"
    fail_in("merge_parts", corpora, folder)
    flip_last_byte(folder / "parts" / "sample-00000.train.tokens.bin")
    build(corpora, folder)
    assert "sample-00000.train.tokens.bin: damaged or missing; it is made again" in caplog.text
    assert contents(folder) == contents(reference)


def test_ten_billion_rows_are_opened_and_sampled_in_little_memory(dataset_folder: Path, tmp_path: Path) -> None:
    """Files with holes stand for 9 TB; a run that resumes computes which rows it sees, and looks nothing up."""
    folder, rows = Path(shutil.copytree(dataset_folder, tmp_path / "data")), 10**10
    facts = read_manifest(folder).model_dump(mode="json")
    facts["train"]["rows"] = rows
    for name, stamp in facts["train"]["files"].items():
        stamp["size"] = rows * (stamp["size"] // read_manifest(dataset_folder).train.rows)
        try:
            os.truncate(folder / name, stamp["size"])
        except OSError as error:
            pytest.skip(f"no files of such a size here: {error.strerror}")
    write_checked(folder / MANIFEST_FILE, facts)
    before = resident_bytes()
    dataset = open_dataset(folder)
    assert len(dataset.train) == rows
    batch = rows_of_step(seed=1, step=12_345_678, batch_size=256, num_rows=rows)
    assert len(np.unique(batch)) == 256
    assert batch.max() > rows // 2
    assert dataset.train.tokens[batch].shape == (256, dataset.manifest.length)
    # A resumed run's loader goes on in the middle, as one that was there from the beginning.
    assert (rows_of_step(1, 12_345_678, 256, rows) == batch).all()
    assert resident_bytes() - before < 100 << 20
