"""The scripts that the launcher runs on experiment folders, and where the data of each are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CODE_FOLDER = Path(__file__).resolve().parents[2]
PROJECT = CODE_FOLDER.parent

LABEL = "nystromformer."
COMMAND_LABEL, EXPERIMENT_LABEL, GPUS_LABEL = LABEL + "command", LABEL + "experiment", LABEL + "gpus"


@dataclass(frozen=True)
class Data:
    """Where a script's data are.

    Args:
        key: of config.json, naming a folder in the container.
        flag: of the script, which the launcher takes for a folder of this machine.
        folder: in the project where neither names one; {length} is the model's `max_seq_len`.
    """

    key: str
    flag: str
    folder: str
    has_hub: bool = False
    """Whether the flag takes "hub", too, for data from the network."""


@dataclass(frozen=True)
class Script:
    """A script that runs on an experiment folder."""

    command: str
    file: str
    does: str
    """For people who choose a command."""
    data: Data
    shares_gpus: bool = True
    """Whether several processes share its work (torchrun)."""


PRETRAINING = Data("data_folder", "--dataset", "data-preprocessing/{length}-roberta")
SCRIPTS = {
    script.command: script
    for script in (
        Script("pretrain", "run_pretrain.py", "Pretrain an experiment's model", PRETRAINING),
        Script(
            "validate",
            "run_validation.py",
            "Measure a pretrained model on held-out text",
            PRETRAINING,
            shares_gpus=False,
        ),
        Script(
            "glue",
            "run_glue.py",
            "Fine-tune a pretrained model on GLUE",
            Data("glue_dataset_folder", "--glue", "glue", has_hub=True),
        ),
        Script(
            "imdb",
            "run_imdb.py",
            "Fine-tune a pretrained model on IMDb",
            Data("imdb_dataset_folder", "--imdb", "imdb"),
        ),
        Script(
            "wikihop",
            "run_wikihop.py",
            "Fine-tune a pretrained model on WikiHop",
            Data("wikihop_dataset_folder", "--wikihop", "wikihop"),
        ),
    )
}
