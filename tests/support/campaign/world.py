"""A small world: corpora, datasets, experiments and labelled data, made once by the project's own commands."""

import atexit
import contextlib
import importlib
import json
import os
import shutil
import sys
from functools import partial
from pathlib import Path

import corpora
import finetuning
import small
import wikihop_files
from tokenizers.implementations import ByteLevelBPETokenizer

from campaign.commands import Command, Ended, Hook, run

CORPORA = ("wiki", "bookcorpus", "stories", "realnews")
LENGTH = 64
_EPOCHS, _STEPS = 2, 3

DEVICE = ("--device", "cpu")
PRETRAIN = Command("code/run_pretrain.py", ("--model", "model", "--dataset", "dataset", *DEVICE))
VALIDATE = Command(
    "code/run_validation.py", ("--model", "model", "--dataset", "dataset", "--checkpoint", "all", *DEVICE)
)
_TUNING = ("--model", "model", "--epoch", "2", "--batch_size", "8", "--lr", "1e-3", *DEVICE)
GLUE = Command("code/run_glue.py", ("--task", "SST-2", "--glue", "glue", *_TUNING))
IMDB = Command("code/run_imdb.py", ("--imdb", "imdb/aclImdb_v1.tar.gz", "--length", "32", *_TUNING))
DOCUMENTS = Command(
    "code/run_classify.py",
    ("--train", "documents/reviews.csv", "--text", "body", "--label", "label", "--length", "32", *_TUNING),
)
WIKIHOP = Command("code/run_wikihop.py", ("--wikihop", "wikihop", *_TUNING))
TABLE = Command("code/run_report.py", ("table2", "model", "--out", "table2.md"))
CURVES = Command("code/run_report.py", ("pretraining", "model", "--out", "curves.png"))
EXPORT = Command("code/run_export.py", ("export", "model", "--format", "hf", "--out", "exported"))
IMPORT = Command("code/run_export.py", ("import", "exported", "imported"))
PREDICT = Command(
    "code/run_predict.py",
    ("finished", "--input", "new.csv", "--text", "body", "--id", "key", "--out", "predictions.csv", *DEVICE),
)
_SHORT = ("--longer_than", "4", "--shorter_than", "60", "--depth", "5", "--most_values", "4")
_FEW = ("--train", "2500", "--validation", "20", "--test", "20", "--workers", "1")
_PREPARE = "experiments/lra/prepare.py"
LISTOPS = Command(_PREPARE, ("listops", *_SHORT, *_FEW, "--out", "arena"))
RELEASE = Command(_PREPARE, ("listops", "--release", "release", "--partial", "--out", "arena"))
REVIEWS = Command(_PREPARE, ("text", "--imdb", "imdb/aclImdb_v1.tar.gz", "--partial", "--out", "arena"))


def corpus_command(name: str) -> Command:
    """Stage one of a corpus."""
    flags = ("--source", f"raw/{name}", "--out", f"corpora/{name}/unified", "--workers", "1")
    short = () if name == "docstrings" else ("--min_words", "5")
    return Command(f"data-preprocessing/{name}/preprocess.py", (*flags, *short))


def rows_command(*more: str, tokenizer: str = "train") -> Command:
    """Stage two."""
    flags = ["--length", str(LENGTH), "--corpora", "corpora", "--tokenizer", tokenizer, "--out", "dataset"]
    for name in ("wiki", "stories", "docstrings"):
        flags += ["--corpus", name]
    if tokenizer == "train":
        flags += ["--vocab_size", "300"]
    return Command("data-preprocessing/preprocess_data_512.py", (*flags, "--workers", "1", *more))


def make_world(folder: Path) -> None:
    """Write raw text and labelled data into a folder, and all that commands make of them: corpora, a dataset, a
    finished pretraining with its scores, fine-tunings and reports. What the commands import is imported here, too.
    """
    _write_raw(folder)
    noted = folder / "modules.json"
    commands = [*(corpus_command(name) for name in (*CORPORA, "docstrings")), rows_command()]
    for command in [*commands, PRETRAIN, VALIDATE, GLUE, IMDB, DOCUMENTS, WIKIHOP, TABLE, CURVES]:
        must(command, folder, partial(_note_modules, noted))
        _import_noted(noted)
    noted.unlink()
    _write_next(folder / "model", folder / "next")
    _write_finished(folder / "model" / "model", folder / "finished")


def _note_modules(path: Path) -> None:
    """Write down, at this process's end, which modules it has imported."""
    atexit.register(lambda: path.write_text(json.dumps(list(sys.modules))))


def _import_noted(path: Path) -> None:
    """Import what a command has imported, so that no fork of this process has to."""
    for name in json.loads(path.read_text()):
        if name not in sys.modules and not name.startswith("__"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def must(command: Command, folder: Path, hook: Hook | None = None, status: int = 0) -> Ended:
    """Run a command that has to end as it should: a campaign stands on it."""
    ended = run(command, folder, hook)
    if ended.status != status:
        raise SystemExit(f"the campaign cannot begin: {command} ended with {ended.status}:\n{ended.text}")
    return ended


def _write_raw(folder: Path) -> None:
    """What a user brings: raw text, GLUE, IMDB, a table, WikiHop, a tokenizer's files, and a config.json."""
    raw = folder / "raw"
    corpora.write_wiki(raw / "wiki", files=2, articles=8)
    corpora.write_bookcorpus(raw / "bookcorpus", lines=60)
    corpora.write_stories(raw / "stories", files=4)
    corpora.write_realnews(raw / "realnews", articles=6)
    corpora.write_packages(raw / "docstrings", 5)
    finetuning.write_sst2(folder / "glue", train=24, dev=10, test=5)
    finetuning.write_imdb(folder / "reviews", train=16, test=8)
    (folder / "imdb").mkdir()
    finetuning.pack(folder / "reviews", folder / "imdb" / "aclImdb_v1.tar.gz")
    finetuning.write_table(folder / "documents" / "reviews.csv", ("body", "label"), finetuning.made_rows(24))
    wikihop_files.write_wikihop(folder / "wikihop", train=6, dev=4, test=3)
    _write_tokenizer(folder / "tokenizer", raw)
    # More rows than are predicted at a time, so that there are three parts.
    rows = [(f"key {number}", text) for number, (text, _) in enumerate(finetuning.made_rows(4200, most=3))]
    finetuning.write_table(folder / "new.csv", ("key", "body"), rows)
    for number, name in enumerate(("train", "val", "test")):
        lines = [f"[MAX {number} {digit} ]\t{max(number, digit)}" for digit in range(10)]
        path = folder / "release" / "listops-1000" / f"basic_{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(["Source\tTarget", *lines, ""]))
    changes = {
        "model__max_seq_len": LENGTH,
        "model__num_layers": 1,
        "pretraining_setting__epoch": _EPOCHS,
        "pretraining_setting__batches_per_epoch": _STEPS,
        "pretraining_setting__batches_per_report": 1,
        "pretraining_setting__batch_size": 4,
        "pretraining_setting__minutes_per_checkpoint": 1e-6,
        "gpu_setting__inst_per_gpu": 2,
    }
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(small.small_data(**changes), indent=2))


def _write_next(pretrained: Path, folder: Path) -> None:
    """An experiment that begins with another one's weights."""
    folder.mkdir()
    config = json.loads((pretrained / "config.json").read_text()) | {"from_cp": "/model/start.model"}
    config["pretraining_setting"]["epoch"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "start.model").write_bytes((pretrained / "model" / "cp-0001.model").read_bytes())


def _write_finished(pretrained: Path, folder: Path) -> None:
    """A finished run with its tokenizer, as it is passed on."""
    (run,) = (path.parent for path in (pretrained / "documents").rglob("result.json"))
    folder.mkdir()
    for path in run.iterdir():
        if path.is_file():
            shutil.copy2(path, folder)
    shutil.copytree(pretrained / "tokenizer", folder / "tokenizer")


def _write_tokenizer(folder: Path, raw: Path) -> None:
    """vocab.json and merges.txt as RoBERTa has them, of a vocabulary of 300."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pid = os.fork()  # its threads stay out of the process that forks the commands
    if pid:
        os.waitpid(pid, 0)
        return
    folder.mkdir()
    made = ByteLevelBPETokenizer()
    texts = [path.read_text() for path in sorted((raw / "stories").glob("*.txt"))]
    made.train_from_iterator(texts, vocab_size=300, min_frequency=1, special_tokens=special, show_progress=False)
    made.save_model(str(folder))
    os._exit(0)
