"""A dataset folder: what is read, what is refused, and how a build continues."""

import dataclasses
import fcntl
import json
import multiprocessing
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nystromformer import __version__
from nystromformer.data import build
from nystromformer.data.build import BuildSettings, build_dataset
from nystromformer.data.corpus import Document, write_documents
from nystromformer.data.dataset import Dataset, Rows, check_fits, open_dataset
from nystromformer.data.manifest import Manifest
from nystromformer.data.stages import StageOutput
from nystromformer.errors import UserError
from nystromformer.files import sha256_of

SETTINGS = BuildSettings("sample", {"flavour": "plain"}, seed=3, origin=("/somewhere/here",), length=32, vocab_size=300)
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


def make_corpus(folder: Path) -> StageOutput:
    output = StageOutput(result={"documents": {}, "validation_groups": ["g3"], "dropped": {"too odd": 2}})
    for split, numbers in (("train", range(40)), ("validation", range(40, 50))):
        documents = [
            Document(f"d{n}", "g", tuple(f"{WORDS[(n + k) % 8]} is {WORDS[n * k % 8]} {k}." for k in range(n % 9 + 4)))
            for n in numbers
        ]
        name = f"corpus/{split}.jsonl"
        output.files[name] = write_documents(folder / name, documents)
        output.result["documents"][split] = len(documents)
    return output


def no_corpus(folder: Path) -> StageOutput:
    raise AssertionError("the corpus was to be found finished")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "dataset"
    build_dataset(folder, SETTINGS, make_corpus)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "dataset"))


def test_what_is_written_is_read(made: Path) -> None:
    dataset = open_dataset(made, verify=True)
    assert (dataset.length, dataset.vocab_size) == (32, dataset.manifest.vocab_size)
    assert dataset.special.mask == 4
    assert (dataset.tokenizer_folder / "tokenizer_config.json").is_file()
    for split, rows in (("train", dataset.train), ("validation", dataset.validation)):
        assert len(rows) == dataset.manifest.split(split).rows > 2
        assert rows.tokens.shape == (len(rows), 32)
        assert rows.splits.shape == (len(rows),)
        assert (rows.tokens[:, 0] == dataset.special.bos).all()
        assert (rows.tokens[:, -1] == dataset.special.eos).all()
        split_rows = np.flatnonzero(rows.splits)
        assert (rows.tokens[split_rows, rows.splits[split_rows] - 1] == dataset.special.eos).all()
        assert not rows.tokens.flags.writeable
        assert dataset.manifest.fill(split) > 0.9


def test_nothing_temporary_is_left(made: Path) -> None:
    assert not list(made.rglob("*.tmp"))


def test_the_manifest_tells_how_it_was_made_without_paths(made: Path) -> None:
    text = (made / "manifest.json").read_text()
    record = json.loads(text)
    assert "/" not in text
    counts = {
        split: {key: record[split][key] for key in ("documents", "tokens", "rows")} for split in ("train", "validation")
    }
    assert record["corpora"] == [{"name": "sample", "weight": 1.0, **counts}]
    assert record["code_version"] == __version__
    assert record["seed"] == 3
    assert record["parameters"] == {"flavour": "plain", "length": 32, "vocab_size": 300}
    assert record["tokenizer_sha256"] == sha256_of(made / "tokenizer" / "tokenizer.json")
    for split in ("train", "validation"):
        for name, stamp in record[split]["files"].items():
            assert stamp == {"size": (made / name).stat().st_size, "sha256": sha256_of(made / name)}


def test_a_manifest_without_counts_of_corpora_is_read(folder: Path) -> None:
    edit_manifest(lambda record: record.update(corpora=[{"name": "sample", "weight": 1.0}]))(folder)
    assert open_dataset(folder).manifest.corpora[0].train is None


def test_the_fingerprint_names_the_content(made: Path, tmp_path: Path) -> None:
    fingerprint = open_dataset(made).fingerprint
    build_dataset(tmp_path / "again", SETTINGS, make_corpus)
    assert open_dataset(tmp_path / "again").fingerprint == fingerprint
    build_dataset(tmp_path / "other", dataclasses.replace(SETTINGS, length=33), make_corpus)
    assert open_dataset(tmp_path / "other").fingerprint != fingerprint


def test_a_pickle_maps_the_files_again(made: Path) -> None:
    dataset = open_dataset(made)
    total = int(dataset.train.tokens.sum())
    pickled = pickle.dumps(dataset)
    assert dataset.train.tokens.tobytes() not in pickled
    again: Dataset = pickle.loads(pickled)  # noqa: S301
    assert isinstance(again.train.tokens, np.memmap)
    assert int(again.train.tokens.sum()) == total
    assert again.fingerprint == dataset.fingerprint


def read_row(rows: Rows, index: int) -> list[int]:
    return [*rows.tokens[index].tolist(), int(rows.splits[index])]


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_other_processes_read_the_same(made: Path, method: str) -> None:
    rows = open_dataset(made).train
    here = read_row(rows, 1)
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(read_row, (rows, 1)) == here


def edit_manifest(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "manifest.json"
        record = json.loads(path.read_text())
        change(record)
        path.write_text(json.dumps(record))

    return apply


def flip_last_byte(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))


BAD_FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, r"dataset: expected a dataset folder, found none.*preprocess\.py"),
    "no manifest": (lambda at: (at / "manifest.json").unlink(), r"manifest\.json: no such file.*unfinished.*Make one"),
    "not JSON": (lambda at: (at / "manifest.json").write_text("{"), r"manifest\.json: expected JSON.*--overwrite"),
    "not UTF-8": (lambda at: (at / "manifest.json").write_bytes(b"\xff"), r"manifest\.json: expected JSON"),
    "a list": (lambda at: (at / "manifest.json").write_text("[]"), r"manifest\.json: .*format_version, found none"),
    "newer": (edit_manifest(lambda r: r.update(format_version=2)), r"format_version 1 or older, found 2.*newer"),
    "key missing": (edit_manifest(lambda r: r["train"].pop("rows")), r"manifest\.json: not a.*train\.rows: .*required"),
    "wrong type": (edit_manifest(lambda r: r.update(length="32")), r"length: .*integer"),
    "rows disagree": (edit_manifest(lambda r: r["train"].update(rows=7)), r"rows of train take 448 bytes in train"),
    "no tokens": (lambda at: (at / "train.tokens.bin").unlink(), r"train\.tokens\.bin: no such file, though"),
    "no splits": (lambda at: (at / "validation.splits.bin").unlink(), r"validation\.splits\.bin: no such file"),
    "size": (
        lambda at: (at / "train.tokens.bin").write_bytes((at / "train.tokens.bin").read_bytes()[:-2]),
        r"train\.tokens\.bin: expected \d+ bytes as in the manifest, found \d+",
    ),
    "no tokenizer": (lambda at: shutil.rmtree(at / "tokenizer"), r"tokenizer\.json: no such file"),
    "tokenizer": (lambda at: flip_last_byte(at / "tokenizer" / "tokenizer.json"), r"another tokenizer.*expected SHA"),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_a_bad_folder_is_refused(folder: Path, case: str) -> None:
    spoil, message = BAD_FOLDERS[case]
    spoil(folder)
    with pytest.raises(UserError, match=rf"(?s){message}") as caught:
        open_dataset(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("name", ["train.tokens.bin", "validation.splits.bin"])
def test_changed_bytes_are_found_on_request(folder: Path, name: str) -> None:
    flip_last_byte(folder / name)
    open_dataset(folder)
    with pytest.raises(UserError, match=rf"{name}: expected SHA-256 \w{{64}} as in the manifest, found \w{{64}}"):
        open_dataset(folder, verify=True)


def test_a_model_must_be_large_enough(made: Path) -> None:
    dataset = open_dataset(made)
    size = dataset.vocab_size
    check_fits(dataset, 32, size)
    with pytest.raises(UserError, match=r"32 tokens, the model takes 31: set model.max_seq_len.*config.json to 32"):
        check_fits(dataset, 31, size)
    with pytest.raises(UserError, match=rf"{size} tokens, the model {size - 1}: set model.vocab_size"):
        check_fits(dataset, 32, size - 1)
    with pytest.raises(UserError, match=r"max_seq_len.*vocab_size"):
        check_fits(dataset, 1, 1)


def test_a_finished_folder_is_left_alone(folder: Path) -> None:
    before = contents(folder)
    build_dataset(folder, SETTINGS, no_corpus)
    assert contents(folder) == before


@pytest.mark.parametrize("stage", ["train_tokenizer", "special_tokens", "write_rows", "write_manifest"])
def test_a_stopped_build_continues(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(build, stage, stop)
        with pytest.raises(KeyboardInterrupt):
            build_dataset(tmp_path / "dataset", SETTINGS, make_corpus)
    assert not (tmp_path / "dataset" / "manifest.json").exists()
    build_dataset(tmp_path / "dataset", SETTINGS, no_corpus)
    assert contents(tmp_path / "dataset") == contents(made)


def test_leftovers_of_a_killed_build_do_not_matter(made: Path, tmp_path: Path) -> None:
    (tmp_path / "train.tokens.bin.tmp").write_text("half")
    build_dataset(tmp_path, SETTINGS, make_corpus)
    assert contents(tmp_path) == contents(made)


@pytest.mark.parametrize("name", ["train.splits.bin", "tokenizer/tokenizer.json", "corpus/validation.jsonl"])
def test_a_lost_file_is_made_again(made: Path, folder: Path, name: str) -> None:
    (folder / name).unlink()
    build_dataset(folder, SETTINGS, make_corpus)
    assert contents(folder) == contents(made)


def test_a_folder_that_is_being_mended_has_no_manifest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    (folder / "validation.splits.bin").unlink()
    monkeypatch.setattr(build, "write_rows", stop)
    with pytest.raises(KeyboardInterrupt):
        build_dataset(folder, SETTINGS, no_corpus)
    assert not (folder / "manifest.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 40}, r"length: found 32, expected 40"),
        ({"seed": 4}, r"seed: found 3, expected 4"),
        ({"parameters": {}}, r"parameters: found {'flavour': 'plain'}, expected {}"),
        ({"origin": ("/else",)}, r"origin: found \['/somewhere/here'\], expected \['/else'\]"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_run_is_refused(folder: Path, change: dict[str, object], message: str) -> None:
    before = contents(folder)
    with pytest.raises(UserError, match=rf"(?s)other parameters:\n  {message}\nNothing.*--overwrite"):
        build_dataset(folder, dataclasses.replace(SETTINGS, **change), make_corpus)
    assert contents(folder) == before


def test_overwrite_replaces_a_run_and_nothing_else(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    manifest: Manifest = build_dataset(folder, dataclasses.replace(SETTINGS, length=40), make_corpus, overwrite=True)
    assert manifest.length == open_dataset(folder, verify=True).length == 40
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["manifest.json", "train.tokens.bin", "tokenizer"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_files_of_no_run_are_refused(tmp_path: Path, name: str, overwrite: bool) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(UserError, match=rf"{name} exist there, but no stages/run.json.*another --out"):
        build_dataset(tmp_path, SETTINGS, make_corpus, overwrite)
    assert contents(tmp_path) == {name: b"precious"}


def test_a_second_process_is_kept_out(folder: Path) -> None:
    with (folder / "stages" / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is at work"):
            build_dataset(folder, SETTINGS, make_corpus, overwrite=True)
    build_dataset(folder, SETTINGS, no_corpus)


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(UserError, match="cannot be written"):
        build_dataset(tmp_path / "out", SETTINGS, make_corpus)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_leaves_an_unfinished_folder_that_continues(made: Path, tmp_path: Path) -> None:
    (tmp_path / "train.tokens.bin.tmp").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"train\.tokens\.bin: no space left"):
        build_dataset(tmp_path, SETTINGS, make_corpus)
    with pytest.raises(UserError, match="unfinished"):
        open_dataset(tmp_path)
    build_dataset(tmp_path, SETTINGS, no_corpus)
    assert contents(tmp_path) == contents(made)
