"""Each mistake of a fine-tuning command gives one clear error and exit status 2, and changes nothing."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from finetuning import write_imdb, write_sst2
from small import ROOT, small_data
from wikihop_files import record, write_records

from nystromformer.data.tokenizer import TOKENIZER_FILE, train_tokenizer
from nystromformer.files.writing import sha256_of

GLUE, IMDB, WIKIHOP = "code/run_glue.py", "code/run_imdb.py", "code/run_wikihop.py"
Refused = Callable[..., str]
FIXED_SEGMENTS = 'model.attn_type={"name": "nystrom", "segments": "padded"}'


@pytest.fixture
def experiment(source: Path, tmp_path: Path) -> Path:
    """A pretrained experiment to break."""
    return Path(shutil.copytree(source, tmp_path / "experiment"))


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    return write_sst2(tmp_path / "glue")


@pytest.fixture
def wikihop(tmp_path: Path) -> Path:
    for split in ("train", "dev"):
        write_records(tmp_path / "wikihop" / f"{split}.json")
    return tmp_path / "wikihop"


@pytest.fixture
def imdb(tmp_path: Path) -> Path:
    return write_imdb(tmp_path / "aclImdb")


def assert_says(said: str, *words: str) -> None:
    for word in words:
        assert word in said, said


# --- data


@pytest.mark.parametrize(
    ("script", "flag", "looked_for", "how"),
    [
        (GLUE, "--glue", "SST-2/train.tsv", "gluebenchmark.com"),
        (IMDB, "--imdb", "aclImdb_v1.tar.gz", "https://ai.stanford.edu/~amaas/data/sentiment/"),
        (WIKIHOP, "--wikihop", "train.json", "https://qangaroo.cs.ucl.ac.uk"),
    ],
)
def test_data_folders(
    refused: Refused, experiment: Path, tmp_path: Path, script: str, flag: str, looked_for: str, how: str
) -> None:
    folder = tmp_path / "data"
    task = ("--task", "SST-2") if script == GLUE else ()
    assert_says(refused(script, experiment, *task, flag, folder), str(folder), looked_for, how)
    # Without the flag, config.json's folder, here the container's default: /glue and the like.
    folder.mkdir()
    config = json.loads((experiment / "config.json").read_text())
    config[f"{flag[2:]}_dataset_folder"] = str(folder)
    (experiment / "config.json").write_text(json.dumps(config))
    assert_says(refused(script, experiment, *task), str(folder), looked_for)


def test_each_glue_task_is_looked_at_before_the_first_one_trains(
    refused: Refused, experiment: Path, glue: Path
) -> None:
    tasks = ("--glue", glue, "--task", "SST-2,RTE")
    assert_says(refused(GLUE, experiment, *tasks), "RTE/train.tsv: no such file")
    (glue / "RTE").mkdir()
    header = "index\tsentence1\tsentence2\tlabel\n"
    for split in ("train", "dev"):
        (glue / "RTE" / f"{split}.tsv").write_text(f"{header}0\ta\tb\tentailment\n")
    (glue / "RTE" / "dev.tsv").write_text(f"{header}0\ta\tb\tmaybe\n")
    assert_says(refused(GLUE, experiment, *tasks), "RTE/dev.tsv, row 1", "'maybe'")


def test_no_dev_file(refused: Refused, experiment: Path, wikihop: Path) -> None:
    (wikihop / "dev.json").unlink()
    assert_says(refused(WIKIHOP, experiment, "--wikihop", wikihop), "dev.json: no such file", "--validation 0.1")


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_questions_too_long_for_the_rows(refused: Refused, experiment: Path, wikihop: Path, split: str) -> None:
    """Also of the test data, which are needed only after training."""
    answer = ... if split == "test" else "wales"
    write_records(wikihop / f"{split}.json", [record(77, query="country river " * 30, answer=answer)])
    said = refused(WIKIHOP, experiment, "--wikihop", wikihop, "--length", 32)
    assert_says(said, "WH_train_77", "leave no room for supports in rows of 32", "larger --length, at least")


# --- checkpoint and tokenizer


@pytest.fixture
def flags(glue: Path) -> tuple[object, ...]:
    """Of a run that nothing is wrong with, but for what a test breaks."""
    return ("--task", "SST-2", "--glue", glue, "--epoch", 1)


def test_no_tokenizer_and_another_one(refused: Refused, experiment: Path, flags: tuple[object, ...]) -> None:
    kept = experiment / "model" / "tokenizer" / TOKENIZER_FILE
    expected = sha256_of(kept)[:12]
    train_tokenizer(["other words"] * 9, 280).save(str(kept))
    assert_says(refused(GLUE, experiment, *flags), expected, sha256_of(kept)[:12], str(kept))
    shutil.rmtree(kept.parent)
    assert_says(refused(GLUE, experiment, *flags), expected, str(kept), "pretrain")


# --- flags


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--batch_size", "0", "a number from 1 to 1,000,000,000"),
        ("--batch_size", "8,8", "or several different ones separated by commas"),
        ("--lr", "nan", "a number from 1e-12 to 10"),
        ("--seed", "-1", "a number from 0 to 9,223"),
        ("--predict", "first", "best"),
        ("--length", "7", ""),
        ("--attention", "nystrom,num_landmark=8", "num_landmarks"),
    ],
)
def test_values_of_flags(refused: Refused, source: Path, flag: str, value: str, expected: str) -> None:
    """Refused before the data are looked for, which do not exist."""
    said = refused(GLUE, source, "--task", "RTE", flag, value)
    assert_says(said, flag, *([expected, value] if expected else []))
    assert "no data" not in said


def test_padding_shorter_than_the_rows(refused: Refused, experiment: Path, flags: tuple[object, ...]) -> None:
    said = refused(GLUE, experiment, *flags, "--length", 24, "--pad_to", 16)
    assert_says(said, "--pad_to 16: expected at least --length 24")


def test_fixed_segments(refused: Refused, experiment: Path, flags: tuple[object, ...]) -> None:
    fixed = (*flags, "--set", FIXED_SEGMENTS)
    assert_says(refused(GLUE, experiment, *fixed), "layer 0's attention", "give --pad_to a length", '"valid"')
    said = refused(GLUE, experiment, *fixed, "--pad_to", 36)
    assert_says(said, "does not accept rows of 36 tokens", "8 equal segments")


def test_a_config_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(small_data(model__num_landmark=8)))
    watched = [sys.executable, "-X", "importtime", str(ROOT / GLUE), "--model", str(tmp_path), "--task", "RTE"]
    done = subprocess.run(watched, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    imported = {line.split("|")[2].strip() for line in lines if line.startswith("import time:")}
    said = "\n".join(line for line in lines if not line.startswith("import time:"))
    assert said.count("error:") == 1
    assert_says(said, "model.num_landmark", "num_landmarks")
    assert "nystromformer.command_line.flags" in imported
    assert not imported & {"torch", "datasets", "transformers", "pyarrow"}


# --- runs
