"""Pretraining: from an experiment to the end of its run."""

import math
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nystromformer.config import ExperimentConfig
from nystromformer.config.attention import what_decides
from nystromformer.config.attention_text import attention_text
from nystromformer.config.network import NO_EFFECT
from nystromformer.data.dataset import Dataset, verify
from nystromformer.errors import UserError
from nystromformer.model import PretrainingModel, count_parameters
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.run import checkpoint_facts, training_settings
from nystromformer.tasks.experiment.start import initial_model, keep_tokenizer, load_start_weights
from nystromformer.tasks.pretraining.trainable import Pretraining
from nystromformer.training import Device, Group, fit
from nystromformer.training.group import place
from nystromformer.wording import warn_of_unknown

_MAY_CHANGE = {
    "model": NO_EFFECT
    | {"mixed_precision", "dropout_prob", "embedding_dropout_prob", "attention_dropout_prob", "hidden_dropout_prob"},
    "pretraining_setting": {
        *("learning_rate", "schedule", "decay", "warmup", "weight_decay", "max_grad_norm", "validation_mask_prob"),
        *("optimizer", "adam_beta1", "adam_beta2", "adam_eps", "batches_per_report", "epoch"),
        *("validate_batches_per_epoch", "keep_epochs", "minutes_per_checkpoint"),
    },
    # Another micro-batch draws other dropout masks.
    "gpu_setting": {"inst_per_gpu"},
}
"""What may change between two starts of one run. Everything else decides what the model is or which rows it sees."""
_LOOKED_AT = 1000
"""Rows whose unknown tokens are counted."""


def pretrain(
    experiment: Experiment,
    dataset_folder: Path | None,
    device: Device,
    group: Group = Group(),  # noqa: B008  # immutable
) -> signal.Signals | None:
    """Run or resume the pretraining of an experiment folder; returns the signal that stopped it, if one did.

    Args:
        dataset_folder: None: config.json's `data_folder`.
        group: the processes that train together; each calls this.
    """
    config, folder = experiment.config, experiment.checkpoints
    smallest = config.pretraining_setting.smallest_batch
    if smallest % group.size:
        raise UserError(
            f"{group.size} processes cannot share batches of {smallest} rows equally: start a number of processes that "
            f"divides them, such as {math.gcd(smallest, group.size)}"
        )
    dataset = group.check(lambda: experiment.dataset(dataset_folder))
    if not len(dataset.train):
        raise UserError(
            f"{dataset.folder}: a dataset for validation only (--validation 1) has no rows to train on: make one with "
            "another --validation, or score checkpoints on this one with code/run_validation.py"
        )
    data = config.model_dump(mode="json", by_alias=True)
    data["model"]["attn_type"] = what_decides(data["model"]["attn_type"])
    asked = {f"{section}.{key}": value for section in _MAY_CHANGE for key, value in data[section].items()}
    # What mixed_precision true amounts to depends on the device.
    asked |= {"dataset": dataset.manifest.fingerprint, "precision": device.precision}

    def open_model(begins: bool) -> tuple[PretrainingModel, dict[str, Any]]:
        """The model with its first weights, and what checkpoints say about it; rows and folder are ready then."""
        model = initial_model(config)
        origin = {"started_from": load_start_weights(model, experiment, dataset, group)} if begins else {}
        facts = checkpoint_facts(config, dataset.manifest.fingerprint, dataset.manifest.tokenizer_sha256) | origin
        if group.local_rank == 0:
            verify(dataset)
        if group.is_main:
            keep_tokenizer(dataset.tokenizer_folder, folder)
        return model, facts

    def build(begins: bool) -> tuple[Pretraining, Mapping[str, Any]]:
        model, facts = group.check(lambda: open_model(begins))
        for line in (f"{count_parameters(model):,} parameters, {device}", *_notes(config, dataset)):
            group.say("%s", line)
        module = place(model, list(model.encoder.layers), config.model.compile, device, group)
        return Pretraining(module, config, dataset, device, group), facts

    attentions = [attention.model_dump(mode="json") for attention in config.model.attentions]
    title = f"{experiment.name}, {attention_text(attentions)} attention, on {dataset.folder}"
    may_change = {f"{section}.{key}" for section, keys in _MAY_CHANGE.items() for key in keys} | {"precision"}
    return fit(build, training_settings(config), folder, device, asked, title, may_change, group).stopped_by


def _notes(config: ExperimentConfig, dataset: Dataset) -> Iterator[str]:
    """What of a model a run on these rows will not train, and what the tokenizer does not know."""
    model, rows, special = config.model, dataset.train.tokens, dataset.manifest.special
    if dataset.manifest.vocab_size < model.vocab_size:
        yield (
            f"the tokenizer has {dataset.manifest.vocab_size:,} tokens, model.vocab_size is {model.vocab_size:,}: the "
            "embeddings of the others are not trained. It cannot be changed once there is a checkpoint"
        )
    if dataset.manifest.length < model.max_seq_len and model.positions == "learned":
        yield (
            f"rows have {dataset.manifest.length:,} tokens, model.max_seq_len is {model.max_seq_len:,}: the positions "
            "from there on are not trained"
        )
    sample = np.asarray(rows[np.arange(0, len(rows), 1 + len(rows) // _LOOKED_AT)])
    unknown, tokens = int((sample == special.unk).sum()), int((sample != special.pad).sum())
    yield from (f"warning: {each}" for each in warn_of_unknown("training rows", unknown, tokens))
