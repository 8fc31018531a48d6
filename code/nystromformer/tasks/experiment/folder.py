"""An experiment folder: its config.json, and where its files are in and outside a container."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nystromformer
from nystromformer.config import ExperimentConfig, NystromConfig, load_config, overridden, peek_config
from nystromformer.config.attention import what_decides
from nystromformer.data.dataset import Dataset, check_fits, open_dataset
from nystromformer.errors import UserError
from nystromformer.tasks.experiment.shape import SHAPE, recall_shape, run_shape

CONTAINER_MODEL = Path("/model")

# What may change between two starts of one run. Everything else decides what the model is or which rows it sees.
_FREE = {
    "model": {"mixed_precision", "attention_grad_checkpointing", "gelu_grad_checkpointing", "dropout_prob", "compile"},
    "pretraining_setting": {
        "learning_rate",
        "warmup",
        "batches_per_report",
        "epoch",
        "validate_batches_per_epoch",
        "weight_decay",
        "adam_beta1",
        "adam_beta2",
        "adam_eps",
        "max_grad_norm",
        "keep_checkpoints",
        "keep_epochs",
        "minutes_per_checkpoint",
    },
    # Another micro-batch draws other dropout masks: allowed, and said.
    "gpu_setting": {"inst_per_gpu", "parallel"},
}


@dataclass(frozen=True)
class Experiment:
    """A folder with a config.json."""

    folder: Path
    config: ExperimentConfig
    set_by_flag: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Keys of the model's shape that `--set` gave when the run began, dotted, and their values."""

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints and logs are."""
        return self.path(self.config.model_checkpoints)

    def path(self, name: str) -> Path:
        """A path of config.json: what is under the container's /model, or relative, is in the experiment folder."""
        return _resolved(self.folder, name)

    def dataset(self, folder: Path | None, verify: bool = False) -> Dataset:
        """The dataset in `folder`, or else in config.json's `data_folder`, checked to fit the model.

        Raises:
            UserError: no dataset there, a damaged one, or one that does not fit.
        """
        dataset = open_dataset(folder or self.path(self.config.data_folder), verify=verify)
        model = self.config.model
        check_fits(dataset, max_seq_len=model.max_seq_len, vocab_size=model.vocab_size)
        for index, attention in enumerate(model.attentions):
            if isinstance(attention, NystromConfig) and not attention.accepts_length(dataset.length):
                raise UserError(
                    f"{dataset.folder}: its rows have {dataset.length} tokens, which layer {index}'s "
                    f'segments="{attention.segments}" cannot cut into {attention.num_landmarks} equal segments'
                )
        train = dataset.manifest.train
        if "sop" in self.config.pretraining_setting.objectives and train.rows and not train.sentence_order_rows:
            raise UserError(
                f'{dataset.folder}: none of its rows has a sentence order to learn; remove "sop" from objectives, or '
                "make a dataset of longer documents or shorter rows"
            )
        return dataset


def open_experiment(folder: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read `folder/config.json`, with `section.key=value` overrides, for work on the run that the folder has, if any.

    Of the shape of its weights (`SHAPE`), what overrides gave when it began need not be given again.

    Raises:
        UserError: all that is wrong with it, or another shape than that of the run's checkpoints.
    """
    path = folder / "config.json"
    data, given = peek_config(path, overrides), overridden(overrides)
    checkpoints = data.get("model_checkpoints", ExperimentConfig.model_fields["model_checkpoints"].default)
    run = run_shape(_resolved(folder, checkpoints)) if data and isinstance(checkpoints, str) else None
    recalled = {} if run is None else recall_shape(run, path, data, given)
    config = load_config(path, [*overrides, *(f"{key}={value}" for key, value in recalled.items())])
    by_flag = {key: getattr(config.model, name) for key, name in SHAPE.items() if key in given or key in recalled}
    return Experiment(folder, config, by_flag)


def read_experiment(folder: Path) -> Experiment:
    """Read `folder/config.json`, whatever has become of the run in the folder.

    Raises:
        UserError: all that is wrong with it.
    """
    return Experiment(folder, load_config(folder / "config.json"))


def _resolved(folder: Path, name: str) -> Path:
    path = Path(name)
    return folder / (path.relative_to(CONTAINER_MODEL) if path.is_relative_to(CONTAINER_MODEL) else path)


def checkpoint_facts(config: ExperimentConfig, dataset: Dataset) -> dict[str, Any]:
    """What every checkpoint says about where it comes from."""
    return {
        "version": nystromformer.__version__,
        "config": config.model_dump(mode="json", by_alias=True),
        "dataset": dataset.fingerprint,
        "tokenizer": dataset.manifest.tokenizer_sha256,
    }


def check_same_tokenizer(content: Mapping[str, Any], dataset: Dataset, source: Path) -> None:
    """Refuse weights that were trained with another tokenizer.

    Raises:
        UserError: the two differ.
    """
    found = dataset.manifest.tokenizer_sha256
    if content["tokenizer"] != found:
        raise UserError(
            f"{source}: trained with another tokenizer (sha256 {content['tokenizer'][:12]}…) than the dataset's "
            f"({found[:12]}…): its token ids mean other words. Use the dataset that it was trained on, or one made "
            "with the same tokenizer."
        )


def _comparable(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: what_decides(value) if key == "attn_type" else value for key, value in section.items()}


def check_resumable(content: Mapping[str, Any], facts: Mapping[str, Any], source: Path) -> list[str]:
    """Refuse to go on with another model or other rows than the checkpoint's; returns the other differences.

    Raises:
        UserError: lists each difference that matters.
    """
    serious: list[str] = []
    harmless: list[str] = []
    for section, free in _FREE.items():
        before, now = (_comparable(each["config"][section]) for each in (content, facts))
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key):
                line = f"{section}.{key}: {before.get(key)!r} in the checkpoint, {now.get(key)!r} now"
                (harmless if key in free else serious).append(line)
    # What mixed_precision true amounts to depends on the device; earlier versions did not say it.
    if content.get("precision", facts.get("precision")) != facts.get("precision"):
        harmless.append(f"precision: {content['precision']} in the checkpoint, {facts['precision']} now")
    if content["dataset"] != facts["dataset"]:
        serious.append(f"dataset: {content['dataset'][:12]} in the checkpoint, {facts['dataset'][:12]} now")
    if serious:
        lines = "".join(f"\n  {line}" for line in serious)
        raise UserError(
            f"{source}: the run cannot go on, because what it trains or what it reads has changed:{lines}\n"
            "Restore these, or start in a new folder (with from_cp to begin from these weights)."
        )
    return harmless
