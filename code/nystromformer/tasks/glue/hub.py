"""GLUE's splits from the Hugging Face hub, through the datasets library."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nystromformer.data.hub import load_split, reason_of
from nystromformer.errors import UserError
from nystromformer.tasks.finetuning.examples import Labels, Texts
from nystromformer.tasks.glue.catalog import GlueTask
from nystromformer.tasks.glue.tsv import as_labels

NAME = "nyu-mll/glue"
"""GLUE's name on the hub."""


def read_hub_split(task: GlueTask, split: str) -> Texts:
    """Read a split as `tsv.read_split` does, from the hub or the datasets library's cache. A test split has no labels.

    Raises:
        UserError: there is no network, the download fails, or a label is none of the task's.
        ValueError: the task has no such split.
    """
    wanted = task.split(split)
    config, hub_split = wanted.hub
    try:
        rows = load_split(NAME, config, hub_split)
        sentences = [list(map(str, rows[column])) for column in task.hub_sentences]
        labels = list(rows["label"]) if wanted.has_labels else None
    except Exception as error:  # the library raises whatever its network and file system layers raise
        places = " or ".join(f"{task.folder}/{file}".replace(f"{task.folder}/../", "") for file in wanted.files)
        raise UserError(
            f"--glue hub: {task.name} {split} cannot be loaded from {NAME}: {reason_of(error)}. It needs a network; "
            f"without one, give --glue a folder that holds GLUE's own files (gluebenchmark.com), here {places}"
        ) from error
    return Texts(
        name=f"{task.name} {split}",
        first=sentences[0],
        second=sentences[1] if len(sentences) > 1 else None,
        labels=None if labels is None else _labels(task, split, labels),
    )


def _labels(task: GlueTask, split: str, labels: Sequence[float]) -> Labels:
    values = np.array(labels, dtype=np.float64)
    allowed = (values >= 0) & (values <= 5) if task.labels is None else np.isin(values, range(len(task.labels)))
    if not allowed.all():
        expected = "a number from 0 to 5" if task.labels is None else f"0 to {len(task.labels) - 1}"
        row, bad = int(np.argmin(allowed)), int((~allowed).sum())
        raise UserError(
            f"--glue hub: {task.name} {split}: row {row}: expected the label to be {expected}, found {values[row]:g} "
            f"({bad} of {len(values)} rows {'is' if bad == 1 else 'are'} so). Give --glue a folder with GLUE's files"
        )
    return as_labels(task, labels)
