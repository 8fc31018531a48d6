"""The Hugging Face hub: a model's files from there, and an exported folder to it."""

import importlib
import re
from pathlib import Path

from nystromformer.errors import UserError, first_line

_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_WORDS = (
    *("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"),
    *("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"),
)
_WEIGHTS = (
    ("model*.safetensors", "model.safetensors.index.json"),
    ("pytorch_model*.bin", "pytorch_model.bin.index.json"),
)
"""safetensors, and what is taken where there are none."""
_SUFFIXES = (".safetensors", ".bin", ".model", ".cp", ".pt", ".pth", ".json")


def find_source(source: Path) -> Path:
    """A folder or file that is there; else of a name such as `owner/model` the folder with its download.

    What looks like a path (ends as weights do, or names a folder that is here before its slash) is asked of nobody.

    Raises:
        UserError: it cannot be had from the hub; says what to do.
    """
    name = str(source)
    is_path = source.suffix in _SUFFIXES or (len(source.parts) == 2 and source.parent.exists())
    if source.exists() or is_path or not _NAME.fullmatch(name):
        return source
    download = importlib.import_module("huggingface_hub").snapshot_download
    try:
        for patterns in _WEIGHTS:
            folder = Path(download(name, allow_patterns=[*_WORDS, *patterns]))
            if any(any(folder.glob(pattern)) for pattern in patterns):
                break
    except Exception as error:  # whatever the network's layers raise
        raise UserError(
            f"{name}: no such folder here, and it cannot be downloaded from the Hugging Face hub: {first_line(error)}. "
            "On a machine with a network, get the files with `hf download NAME --local-dir FOLDER`, copy FOLDER here "
            "and name it"
        ) from error
    return folder


def push(folder: Path, name: str, private: bool) -> str:
    """Upload all files of an exported folder; returns the repository's address.

    The user's own login is taken, as `hf auth login` keeps it.

    Raises:
        UserError: no exported folder, another name than `owner/model`, no network, or the hub refuses.
    """
    if not (folder / "config.json").is_file() or not (folder / "model.safetensors").is_file():
        raise UserError(f"{folder}: expected a folder that `run_export.py export --format hf` has written")
    if name.count("/") != 1 or not _NAME.fullmatch(name):
        raise UserError(f"expected a name such as owner/model, found {name!r}")
    hub = importlib.import_module("huggingface_hub")
    try:
        api = hub.HfApi()
        api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=str(folder))
    except Exception as error:  # whatever the network's layers raise
        raise UserError(
            f"{name}: cannot be uploaded to the Hugging Face hub: {first_line(error)}. It needs a network and a login "
            f"(`hf auth login`); the folder {folder} is whole and can be uploaded later or from elsewhere"
        ) from error
    return f"https://huggingface.co/{name}"
