"""The tokenizer of an experiment: kept beside its checkpoints, whose token ids mean nothing without it."""

from pathlib import Path

from tokenizers import Tokenizer

from nystromformer.data.dataset import TOKENIZER_FOLDER, Dataset
from nystromformer.data.tokenizer import TOKENIZER_FILE, load_tokenizer
from nystromformer.errors import UserError
from nystromformer.files.reading import read_json
from nystromformer.files.writing import NewFile, sha256_of
from nystromformer.tasks.experiment.folder import Experiment


def keep_tokenizer(source: Path, checkpoints: Path) -> None:
    """Copy a dataset's tokenizer folder to the checkpoints that are made with it.

    Raises:
        UserError: it cannot be written.
    """
    for path in sorted(source.iterdir()):
        target = checkpoints / TOKENIZER_FOLDER / path.name
        if path.is_file() and not (target.is_file() and target.read_bytes() == path.read_bytes()):
            with NewFile(target) as file:
                file.write(path.read_bytes())


def find_tokenizer(experiment: Experiment, sha256: str) -> Tokenizer:
    """The tokenizer that a checkpoint was trained with, from beside the checkpoints or `data_folder`.

    Args:
        sha256: of its tokenizer.json, as the checkpoint says.

    Raises:
        UserError: none is there, or only others; lists where it was looked for.
    """
    if not sha256:
        raise UserError(
            f"{experiment.checkpoints}: the model was imported without a tokenizer, which is needed here: import it "
            "again with --tokenizer"
        )
    places = (experiment.checkpoints, experiment.path(experiment.config.data_folder))
    folders, others = [place / TOKENIZER_FOLDER for place in places], []
    for folder in folders:
        path = folder / TOKENIZER_FILE
        if path.is_file():
            its_sha256 = sha256_of(path)
            if its_sha256 == sha256:
                return load_tokenizer(folder)
            others.append(f"{path} is another one (sha256 {its_sha256[:12]}…)")
    looked = "; ".join(others) or "looked for " + " and ".join(str(folder / TOKENIZER_FILE) for folder in folders)
    raise UserError(
        f"the checkpoint's tokenizer (sha256 {sha256[:12]}…) was not found: {looked}. Put it beside the "
        "checkpoints, where pretraining puts a copy: it is the folder `tokenizer` of the dataset"
    )


_VOCABULARY = "vocab.json"


def has_vocabulary(folder: Path) -> bool:
    """Whether a model of others comes with a tokenizer whose tokens can be read."""
    return any((folder / name).is_file() for name in (TOKENIZER_FILE, _VOCABULARY))


def differing_vocabulary(folder: Path, dataset: Dataset) -> str | None:
    """How the tokens of a model of others differ from those of a dataset; None where they do not, or are not known.

    The files of the two tokenizers may differ: preprocessing writes one in the form of its rows.

    Raises:
        UserError: one of them cannot be read.
    """
    if not has_vocabulary(folder):
        return None
    ours = load_tokenizer(dataset.folder / TOKENIZER_FOLDER).get_vocab()
    is_json = (folder / TOKENIZER_FILE).is_file()
    theirs = load_tokenizer(folder).get_vocab() if is_json else read_json(folder / _VOCABULARY)
    if not isinstance(theirs, dict) or theirs == ours:
        return None if isinstance(theirs, dict) else f"{_VOCABULARY}: expected tokens with their ids"
    other = sorted(token for token in {*ours, *theirs} if ours.get(token) != theirs.get(token))
    return (
        f"another tokenizer than the dataset's: {len(other):,} tokens have another id or are in one of them alone, "
        f"such as {other[0]!r:.40}"
    )
