"""An experiment folder: its config.json, and where its files are in and outside a container."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nystromformer.config import ExperimentConfig, load_config
from nystromformer.errors import UserError

if TYPE_CHECKING:
    from nystromformer.data.dataset import Dataset

CONTAINER_MODEL = Path("/model")


@dataclass(frozen=True)
class Experiment:
    """A folder with a config.json."""

    folder: Path
    config: ExperimentConfig

    @property
    def name(self) -> str:
        """The folder's."""
        return self.folder.resolve().name

    @property
    def config_file(self) -> Path:
        """Where the config was read."""
        return self.folder / "config.json"

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints and logs are."""
        return self.path(self.config.model_checkpoints)

    def path(self, name: str) -> Path:
        """A path of config.json: what is under the container's /model, or relative, is in the experiment folder."""
        path = Path(name)
        return self.folder / (path.relative_to(CONTAINER_MODEL) if path.is_relative_to(CONTAINER_MODEL) else path)

    def dataset(self, folder: Path | None) -> "Dataset":
        """The dataset in `folder`, or else in config.json's `data_folder`, checked to fit the model."""
        # Only now: the launcher does without numpy, and --help need not wait for it.
        from nystromformer.data.dataset import check_fits, open_dataset

        dataset = open_dataset(folder or self.path(self.config.data_folder))
        model = self.config.model
        check_fits(dataset, max_seq_len=model.max_seq_len, vocab_size=model.vocab_size)
        for index, attention in enumerate(model.attentions):
            if (reason := attention.why_not_length(dataset.manifest.length)) is not None:
                raise UserError(
                    f"{dataset.folder}: layer {index}'s attention does not accept rows of {dataset.manifest.length} "
                    f"tokens: {reason}"
                )
        train = dataset.manifest.train
        if "sop" in self.config.pretraining_setting.objectives and train.rows and not train.sentence_order_rows:
            raise UserError(
                f'{dataset.folder}: none of its rows has a sentence order to learn; remove "sop" from objectives, or '
                "make a dataset of documents with several sentences, of which two or more fit into a row"
            )
        return dataset


def open_experiment(folder: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read `folder/config.json`, with `section.key=value` overrides; the error has all that is wrong with it."""
    return Experiment(folder, load_config(folder / "config.json", overrides))
