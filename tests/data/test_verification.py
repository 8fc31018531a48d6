"""A dataset's rows are verified once for each content; what was written wrongly is refused, whatever its hash."""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nystromformer.data.dataset import Dataset, open_dataset
from nystromformer.data.sealed import unsealed, write_sealed
from nystromformer.data.verification import MEMORY_FILE, Verification, VerificationStopped
from nystromformer.errors import UserError
from nystromformer.files import sha256_of

FILES = ["train.tokens.bin", "train.splits.bin", "validation.tokens.bin", "validation.splits.bin"]


@pytest.fixture
def folder(dataset_folder: Path, tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns(MEMORY_FILE)
    return Path(shutil.copytree(dataset_folder, tmp_path / "data", ignore=ignored))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read whole, as they are."""
    names: list[str] = []
    real = Verification._verify

    def verify(self: Verification, split: str, name: str, stop: threading.Event) -> None:
        names.append(name)
        real(self, split, name, stop)

    monkeypatch.setattr(Verification, "_verify", verify)
    return names


def flip(path: Path, at: int = -1) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_each_content_is_read_once(folder: Path, read: list[str]) -> None:
    dataset = open_dataset(folder)
    Verification(dataset).run()
    assert read == FILES
    assert Verification(open_dataset(folder)).size == 0
    Verification(dataset).run()
    assert read == FILES
    Verification(dataset).run(force=True)
    assert read == FILES * 2
    assert not list(folder.glob("*.tmp"))


def test_only_the_splits_that_are_used(folder: Path, read: list[str]) -> None:
    dataset = open_dataset(folder)
    Verification(dataset, ["validation"]).run()
    assert read == FILES[2:]
    Verification(dataset).run()
    assert read == [*FILES[2:], *FILES[:2]]


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_found_though_size_and_time_are_the_same(folder: Path, read: list[str], name: str) -> None:
    dataset = open_dataset(folder)
    Verification(dataset).run()
    read.clear()
    status = (folder / name).stat()
    flip(folder / name)
    os.utime(folder / name, ns=(status.st_atime_ns, status.st_mtime_ns))
    for _ in range(2):
        with pytest.raises(UserError, match=rf"{name}: expected SHA-256 \w{{64}} as in the manifest, found \w{{64}}"):
            Verification(dataset).run()
    assert read == [name] * 2
    flip(folder / name)
    Verification(dataset).run()


def test_a_file_in_anothers_place_is_read_again(folder: Path, read: list[str]) -> None:
    Verification(open_dataset(folder)).run()
    shutil.copy2(folder / FILES[0], folder / "copy")
    os.replace(folder / "copy", folder / FILES[0])
    Verification(open_dataset(folder)).run()
    assert read == [*FILES, FILES[0]]


def test_another_manifest_is_another_content(folder: Path, read: list[str]) -> None:
    Verification(open_dataset(folder)).run()
    rewrite(folder, lambda record: record.update(code_version="0"))
    Verification(open_dataset(folder)).run()
    assert read == FILES * 2


def test_a_dataset_that_cannot_be_written_to(folder: Path, tmp_path: Path, read: list[str]) -> None:
    (folder / MEMORY_FILE).mkdir()  # nothing can be renamed to it, not even by root
    other = tmp_path / "model"
    other.mkdir()
    dataset = open_dataset(folder)
    for _ in range(2):
        Verification(dataset, other=other).run()
        assert read == FILES
    assert [path.name for path in other.iterdir()] == [MEMORY_FILE]
    Verification(dataset).run()
    assert read == FILES * 2
    assert not list(folder.glob("*.tmp"))


@pytest.mark.parametrize("damage", [b"", b"{", b"[1, {}]", b"{}", b"\xff", b"[" * 99_999, b"[" + b"9" * 5000 + b"]"])
def test_damaged_memory_costs_time_alone(folder: Path, read: list[str], damage: bytes) -> None:
    (folder / MEMORY_FILE).write_bytes(damage)
    dataset = open_dataset(folder)
    Verification(dataset).run()
    Verification(dataset).run()
    assert read == FILES


def test_runs_at_the_same_time(folder: Path) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            Verification(open_dataset(folder)).run(force=True)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert isinstance(json.loads((folder / MEMORY_FILE).read_text()), list)
    assert not list(folder.glob("*.tmp"))


def test_what_a_killed_process_left_is_removed(folder: Path) -> None:
    host, gone = os.uname().nodename, subprocess.Popen(["true"])
    gone.wait()
    names = {
        f"{host}.{gone.pid}": False,
        f"{host}.{os.getppid()}": True,
        f"{host}.{10**30}": False,
        f"{host}.name": True,
        f"other-{host}.{gone.pid}": True,
        "0f" * 16: True,
    }
    files = {folder / f"{MEMORY_FILE}.{name}.tmp": stays for name, stays in names.items()}
    for path in files:
        path.write_text("[")
    old = folder / f"{MEMORY_FILE}.other.{os.getppid()}.tmp"
    foreign = folder / "other.json.1.tmp"
    for path in (old, foreign):
        path.write_text("[")
        os.utime(path, (0, 0))
    Verification(open_dataset(folder)).run()
    assert [path.exists() for path in files] == list(files.values())
    assert not old.exists()
    assert foreign.exists()


def test_each_process_has_one_temporary_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it leaves, when it is killed, is found by others."""
    names = []

    def killed(source: Path, target: Path) -> None:
        names.append(source.name)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                Verification(open_dataset(folder)).run()
    assert names == [f"{MEMORY_FILE}.{os.uname().nodename}.{os.getpid()}.tmp"] * 2
    Verification(open_dataset(folder)).run()
    assert not list(folder.glob("*.tmp"))


def test_it_stops_when_it_is_told_to(folder: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(VerificationStopped):
        Verification(open_dataset(folder)).run(stop=stop)
    assert not (folder / MEMORY_FILE).exists()


def test_values_across_blocks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nystromformer.data.verification._BLOCK_BYTES", 4)
    Verification(open_dataset(folder)).run()


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The manifest as a command with other ideas would have written it."""
    path = folder / "manifest.json"
    record = unsealed(path, json.loads(path.read_text()), "")
    change(record)
    write_sealed(path, record)


def restamp(folder: Path, name: str) -> None:
    split, sha256 = name.split(".")[0], sha256_of(folder / name)
    rewrite(folder, lambda record: record[split]["files"][name].update(sha256=sha256))


def edit_rows(folder: Path, name: str, change: Callable[[np.ndarray, Dataset], object]) -> Dataset:
    """Rows that were written wrongly, with the hash that is theirs."""
    dataset = open_dataset(folder)
    values = np.fromfile(folder / name, "<u2")
    change(values, dataset)
    values.tofile(folder / name)
    restamp(folder, name)
    return open_dataset(folder)


def test_ids_that_no_token_has(folder: Path) -> None:
    dataset = edit_rows(folder, FILES[0], lambda ids, made: ids.__setitem__(5, made.vocab_size))
    size = dataset.vocab_size
    with pytest.raises(UserError, match=rf"train\.tokens\.bin: expected ids from 0 to {size - 1}, .*, found {size}"):
        Verification(dataset).run()


def test_padding_that_the_manifest_does_not_know(folder: Path) -> None:
    dataset = edit_rows(folder, FILES[2], lambda ids, made: ids.__setitem__(5, made.special.pad))
    with pytest.raises(UserError, match=r"validation\.tokens\.bin: expected padding at \d+ positions"):
        Verification(dataset).run()


@pytest.mark.parametrize(("value", "message"), [(32, "split points below 32"), (3, "rows with a sentence order")])
def test_split_points_that_cannot_be(folder: Path, value: int, message: str) -> None:
    def change(splits: np.ndarray, made: Dataset) -> None:
        splits[np.flatnonzero(splits == 0)[0] if value == 3 else 0] = value

    dataset = edit_rows(folder, FILES[1], change)
    with pytest.raises(UserError, match=rf"train\.splits\.bin: expected .*{message}"):
        Verification(dataset).run()


WRONG: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "vocabulary": (lambda r: r.update(vocab_size=r["vocab_size"] - 1), "vocab_size: expected 3.., as the tokenizer"),
    "special": (lambda r: r["special"].update(mask=7), r"special: expected SpecialTokens\(.*mask=4\)"),
    "dtype": (lambda r: r.update(splits_dtype="int32"), "rows of train take"),
    "length": (lambda r: r.update(length=16), "rows of train take"),
    "rows": (lambda r: r["train"].update(rows=r["train"]["rows"] + 1), "rows of train take"),
    "orders": (lambda r: r["train"].update(sentence_order_rows=10**6), "at most .* rows with a sentence order"),
    "padding": (lambda r: r["validation"].update(padding=10**9), "validation: expected at most .* of padding"),
    "documents": (lambda r: r["train"].update(documents=1), r"train\.documents: expected 40, the sum over the corpora"),
    "tokens": (lambda r: r["corpora"][0]["train"].update(tokens=1), r"train\.tokens: expected 1, the sum"),
    "seed": (lambda r: r.update(seed=5), "seed: expected 0, as in parameters, found 5"),
    "huge": (lambda r: r["train"].update(rows=10**4000), r"train\.rows: .*less than"),
    "weight": (lambda r: r["corpora"][0].update(weight=float("inf")), r"corpora\.0\.weight: "),
    "a truth value": (lambda r: r.update(format_version=True), "format_version, found none"),
    "unknown keys": (lambda r: r.update({f"k{n}": 0 for n in range(20_000)}), "and 19,980 more"),
    "deep": (lambda r: r["parameters"].update(deep=nested(400)), "not a dataset's manifest"),
}


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("case", WRONG)
def test_wrong_values_in_the_manifest(folder: Path, case: str) -> None:
    change, message = WRONG[case]
    rewrite(folder, change)
    with pytest.raises(UserError, match=rf"(?s)manifest\.json: .*{message}") as caught:
        open_dataset(folder)
    assert len(str(caught.value)) < 5000


CONTENTS = {
    "nested": (b"[" * 99_999, "JSON nested too deep"),
    "nested objects": (b'{"a":' * 99_999, "JSON nested too deep"),
    "digits": (b'{"format_version": ' + b"9" * 5000 + b"}", "an integer of more than 4,300 digits"),
    "not UTF-8": (b'{"a": "\xff"}', "the byte 0xff at offset 7, which is not UTF-8"),
    "cut": (b'{"format_version": 2,', "something else at line 1, column 22"),
}


@pytest.mark.parametrize("case", CONTENTS)
def test_what_is_no_manifest(folder: Path, case: str) -> None:
    content, message = CONTENTS[case]
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(UserError, match=rf"manifest\.json: expected JSON, found {message}.*--overwrite"):
        open_dataset(folder)


def test_a_manifest_that_is_no_file(folder: Path) -> None:
    path = folder / "manifest.json"
    path.unlink()
    with path.open("wb") as file:
        file.truncate(400 << 20)
    with pytest.raises(UserError, match=r"manifest\.json: expected JSON of at most 64 MiB, found 400 MiB"):
        open_dataset(folder)


def test_a_value_that_was_changed_by_hand(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"code_version": "', '"code_version": "x'))
    with pytest.raises(UserError, match=r"manifest\.json: was changed since it was written"):
        open_dataset(folder)
