"""What must agree before an experiment is worked on."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nystromformer.config import ExperimentConfig
from nystromformer.config.attention import what_decides
from nystromformer.data.dataset import Dataset
from nystromformer.errors import UserError
from nystromformer.training import Group
from nystromformer.wording import listed

# What may change between two starts of one run. Everything else decides what the model is or which rows it sees.
_FREE = {
    "model": {
        "mixed_precision",
        "attention_grad_checkpointing",
        "gelu_grad_checkpointing",
        "feed_forward_chunk",
        "dropout_prob",
        "embedding_dropout_prob",
        "attention_dropout_prob",
        "hidden_dropout_prob",
        "compile",
    },
    "pretraining_setting": {
        "learning_rate",
        "schedule",
        "decay",
        "warmup",
        "validation_mask_prob",
        "optimizer",
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


def check_shared_equally(config: ExperimentConfig, processes: int) -> None:
    """Check that so many processes can share a batch.

    Raises:
        UserError: they cannot; names a number that can.
    """
    setting = config.pretraining_setting
    key = "batch_size" if setting.batch_size_start is None else "batch_size_start"
    smallest = setting.smallest_batch
    if smallest % processes:
        raise UserError(
            f"{processes} processes cannot share batches of {smallest} rows equally: start a number of processes "
            f"that divides pretraining_setting.{key}, such as {math.gcd(smallest, processes)}"
        )


def check_has_training_rows(dataset: Dataset, advice: str) -> None:
    """Check that a dataset is not one for validation only.

    Args:
        advice: what to do where it is.

    Raises:
        UserError: it is.
    """
    if not len(dataset.train):
        raise UserError(
            f"{dataset.folder}: a dataset for validation only (--validation 1) has no rows to train on: {advice}"
        )


def check_same_run(facts: Mapping[str, Any], group: Group) -> None:
    """Check that all processes read the same config.json and dataset.

    Raises:
        UserError: names each key that differs.
    """
    sections = {section: part for section, part in facts["config"].items() if isinstance(part, dict)}
    values = {f"{section}.{key}": value for section, part in sections.items() for key, value in part.items()}
    group.same(**values, dataset=facts["dataset"])


_OF_A_RUN = ("config", "tokenizer", "step", "epoch")


def check_is_of_a_run(content: Mapping[str, Any], source: Path) -> None:
    """Check that a checkpoint has what every run of this project writes.

    Raises:
        UserError: names what it lacks.
    """
    if absent := [key for key in _OF_A_RUN if key not in content]:
        raise UserError(f"{source}: not a checkpoint of a run: it has no {', '.join(absent)}")


def check_same_tokenizer(content: Mapping[str, Any], dataset: Dataset, source: Path) -> None:
    """Refuse weights that were trained with another tokenizer.

    Raises:
        UserError: the two differ.
    """
    expected = dataset.manifest.tokenizer_sha256
    if content["tokenizer"] != expected:
        raise UserError(
            f"{source}: trained with another tokenizer (sha256 {content['tokenizer'][:12]}…) than the dataset's "
            f"({expected[:12]}…): its token ids stand for other words. Use the dataset that it was trained on, or one "
            "made with the same tokenizer."
        )


def _comparable(config: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {key: what_decides(value) if key == "attn_type" else value for key, value in config[section].items()}


def check_resumable(content: Mapping[str, Any], facts: Mapping[str, Any], source: Path) -> list[str]:
    """Refuse to go on with another model or other rows than the checkpoint's; returns the other differences.

    Raises:
        UserError: lists each difference that matters.
    """
    serious: list[str] = []
    harmless: list[str] = []
    for section, free in _FREE.items():
        before, now = (_comparable(each["config"], section) for each in (content, facts))
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key):
                line = f"{section}.{key}: {before.get(key)!r} in the checkpoint, {now.get(key)!r} now"
                (harmless if key in free else serious).append(line)
    # What mixed_precision true amounts to depends on the device.
    if content.get("precision") != facts.get("precision"):
        harmless.append(f"precision: {content.get('precision')} in the checkpoint, {facts['precision']} now")
    if (dataset := str(content.get("dataset"))) != facts["dataset"]:
        serious.append(f"dataset: {dataset[:12]} in the checkpoint, {facts['dataset'][:12]} now")
    if serious:
        lines = listed(serious)
        raise UserError(
            f"{source}: the run cannot resume, because what it trains or what it reads has changed:{lines}\n"
            "Restore these, or start in a new folder (with from_cp to begin from these weights)."
        )
    return harmless
