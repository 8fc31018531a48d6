"""Pretraining: from an experiment to the end of its run."""

import math
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nystromformer.config import ExperimentConfig
from nystromformer.config.attention import what_decides
from nystromformer.config.attention_text import attention_text
from nystromformer.data.dataset import Dataset, verify
from nystromformer.errors import UserError
from nystromformer.model import PretrainingModel, count_parameters
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.run import checkpoint_facts, training_settings
from nystromformer.tasks.experiment.start import initial_model, keep_tokenizer, load_start_weights
from nystromformer.tasks.pretraining.batches import BatchSizes
from nystromformer.tasks.pretraining.trainable import Pretraining
from nystromformer.training import Device, Group, fit
from nystromformer.training.distributed import place
from nystromformer.wording import say_unknown, warn_of_unknown

_MAY_CHANGE = {
    "model": (
        *(
            "mixed_precision",
            "attention_grad_checkpointing",
            "gelu_grad_checkpointing",
            "feed_forward_chunk",
            "compile",
        ),
        *("dropout_prob", "embedding_dropout_prob", "attention_dropout_prob", "hidden_dropout_prob"),
    ),
    "pretraining_setting": (
        *("learning_rate", "schedule", "decay", "warmup", "weight_decay", "max_grad_norm", "validation_mask_prob"),
        *("optimizer", "adam_beta1", "adam_beta2", "adam_eps", "batches_per_report", "epoch"),
        *("validate_batches_per_epoch", "keep_epochs", "minutes_per_checkpoint"),
    ),
    # Another micro-batch draws other dropout masks.
    "gpu_setting": ("inst_per_gpu",),
}
"""What may change between two starts of one run. Everything else decides what the model is or which rows it sees."""
_LOOKED_AT = 1000
"""Rows whose unknown tokens are counted."""


def pretrain(
    experiment: Experiment,
    dataset_folder: Path | None,
    device: Device,
    workers: int = 0,
    group: Group = Group(),  # noqa: B008  # immutable
) -> signal.Signals | None:
    """Run or resume the pretraining of an experiment folder; returns the signal that stopped it, if one did.

    Args:
        dataset_folder: None: config.json's `data_folder`.
        workers: processes that prepare batches; 0: a thread of this one.
        group: the processes that train together; each calls this.

    Raises:
        UserError: anything in the folder, the dataset or the checkpoints that does not fit.
    """
    config, folder = experiment.config, experiment.checkpoints
    _check_shared_equally(config, group.size)
    dataset = group.check(lambda: _open_rows(experiment, dataset_folder))
    data = config.model_dump(mode="json", by_alias=True)
    data["model"]["attn_type"] = what_decides(data["model"]["attn_type"])
    asked = {f"{section}.{key}": value for section in _MAY_CHANGE for key, value in data[section].items()}
    # What mixed_precision true amounts to depends on the device.
    asked |= {"dataset": dataset.fingerprint, "precision": device.precision}

    def open_model(begins: bool) -> tuple[PretrainingModel, dict[str, Any]]:
        """The model with its first weights, and what checkpoints say about it; rows and folder are ready then."""
        model = initial_model(config)
        origin = {"started_from": load_start_weights(model, experiment, dataset, group)} if begins else {}
        facts = checkpoint_facts(config, dataset.fingerprint, dataset.manifest.tokenizer_sha256) | origin
        if group.local_rank == 0:
            verify(dataset)
        if group.is_main:
            keep_tokenizer(dataset.tokenizer_folder, folder)
        return model, facts

    def build(begins: bool) -> tuple[Pretraining, Mapping[str, Any]]:
        model, facts = group.check(lambda: open_model(begins))
        group.say("%s parameters, %s", f"{count_parameters(model):,}", device)
        for note in _notes(config, dataset):
            group.say("%s", note)
        if are_fast:
            group.say("float32 matrix products use oneDNN: it is faster on this processor and equally exact")
        module = place(model, list(model.encoder.layers), config.model.compile, device, group)
        return Pretraining(module, config, dataset, device, workers, group), facts

    setting = training_settings(config)
    attentions = [attention.model_dump(mode="json") for attention in config.model.attentions]
    title = f"{experiment.name}, {attention_text(attentions)} attention, on {dataset.folder}"
    may_change = {f"{section}.{key}" for section, keys in _MAY_CHANGE.items() for key in keys} | {"precision"}
    with device.products(config.model.transformer_dim) as are_fast:
        return fit(build, setting, folder, device, asked, title, may_change, group).stopped_by


def _check_shared_equally(config: ExperimentConfig, processes: int) -> None:
    """Check that so many processes can share a batch; names a number that can."""
    setting = config.pretraining_setting
    key = "batch_size" if setting.batch_size_start is None else "batch_size_start"
    smallest = setting.smallest_batch
    if smallest % processes:
        raise UserError(
            f"{processes} processes cannot share batches of {smallest} rows equally: start a number of processes "
            f"that divides pretraining_setting.{key}, such as {math.gcd(smallest, processes)}"
        )


def _open_rows(experiment: Experiment, folder: Path | None) -> Dataset:
    """The dataset to train on.

    Raises:
        UserError: it does not fit the model, or has no rows to train on.
    """
    dataset = experiment.dataset(folder)
    if not len(dataset.train):
        raise UserError(
            f"{dataset.folder}: a dataset for validation only (--validation 1) has no rows to train on: make one with "
            "another --validation, or score checkpoints on this one with code/run_validation.py"
        )
    return dataset


def _notes(config: ExperimentConfig, dataset: Dataset) -> list[str]:
    """What of a model or a config a run on these rows will not reach."""
    model, setting, notes = config.model, config.pretraining_setting, []
    if dataset.vocab_size < model.vocab_size:
        notes.append(
            f"the tokenizer has {dataset.vocab_size:,} tokens, model.vocab_size is {model.vocab_size:,}: the "
            "embeddings of the others are not trained. It cannot be changed once there is a checkpoint"
        )
    if dataset.length < model.max_seq_len and model.positions == "learned":
        notes.append(
            f"rows have {dataset.length:,} tokens, model.max_seq_len is {model.max_seq_len:,}: the positions from "
            "there on are not trained"
        )
    rows, special = dataset.train.tokens, dataset.special
    sample = np.asarray(rows[np.arange(0, len(dataset.train), 1 + len(dataset.train) // _LOOKED_AT)])
    unknown, tokens = int((sample == special.unk).sum()), int((sample != special.pad).sum())
    said = say_unknown(unknown, tokens)
    warned = [f"warning: {each}" for each in warn_of_unknown("training rows", unknown, tokens)]
    notes += warned or ([f"training rows: {said}"] if said else [])
    grown = BatchSizes.of(setting, dataset.length)
    if grown.first_steps[-1] >= setting.num_steps:
        _, last = grown.of_step(setting.num_steps - 1)
        notes.append(
            f"batches do not reach batch_size: the last step has {last} rows of {grown.sizes[-1]}, because the run "
            "reads fewer tokens than batch_growth_tokens"
        )
    return notes
