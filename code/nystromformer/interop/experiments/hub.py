"""The Hugging Face hub: a model's files from there."""

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
