"""GLUE's splits from the Hugging Face hub, through the datasets library."""

from __future__ import annotations

from nystromformer.data.hub import load_split
from nystromformer.errors import UserError, first_line
from nystromformer.tasks.finetuning.examples import Texts
from nystromformer.tasks.glue.read import as_labels
from nystromformer.tasks.glue.table_task import GlueTask


def read_hub_split(task: GlueTask, split: str) -> Texts:
    """Read a split as `read_split` does, from the hub or the datasets library's cache. A test split has no labels.

    Raises:
        UserError: there is no network, or the download fails.
    """
    wanted = task.split(split)
    if wanted.hub is None:
        raise UserError(f"--glue hub: {task.name} has no copy on the hub: give --glue a folder with its files")
    config, hub_split = wanted.hub
    try:
        rows = load_split(task.hub_name, config, hub_split)
        sentences = [list(map(str, rows[column])) for column in task.hub_sentences]
        labels = as_labels(task, rows["label"]) if wanted.has_labels else None
    except Exception as error:  # the library raises whatever its network and file system layers raise
        places = " or ".join(f"{task.name}/{file}".replace(f"{task.name}/../", "") for file in wanted.files)
        raise UserError(
            f"--glue hub: {task.name} {split} cannot be loaded from {task.hub_name}: {first_line(error)}. It needs a "
            f"network; without one, give --glue a folder that holds GLUE's own files (gluebenchmark.com), here {places}"
        ) from error
    return Texts(f"{task.name} {split}", sentences[0], sentences[1] if len(sentences) > 1 else None, labels)
