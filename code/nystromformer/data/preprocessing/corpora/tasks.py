"""A unified folder that the tasks of another program fill, one file each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nystromformer.data.preprocessing.corpora.text import MAX_DOCUMENT, MAX_SENTENCE, Tally, documents_of
from nystromformer.data.preprocessing.corpora.unify import corpus_of
from nystromformer.data.preprocessing.corpus import line_of
from nystromformer.data.preprocessing.unified import CORPUS_FILE, FORMAT_VERSION, shard_name, write_corpus
from nystromformer.errors import UserError
from nystromformer.files.parts import PARTS, open_parts
from nystromformer.files.writing import NewFile
from nystromformer.wording import counted, number_of

Add = Callable[[str, str], int]
"""Adds a text under its id to a task's file; returns how many documents it became, none of an empty text."""

_SETTINGS: dict[str, Any] = {"min_words": 0, "max_document": MAX_DOCUMENT, "max_sentence": MAX_SENTENCE}
_ADVICE = (
    "give every run the same number of tasks, or choose another folder, or remove this one to start from the beginning"
)


@contextmanager
def open_task(corpora: Path, name: str, task: int, tasks: int) -> Iterator[Add]:
    """Write the file of one task in `<corpora>/<name>/unified`; the task that ends last also writes `corpus.json`.

    The file gets its name when the block ends without an error. A text is a document and a group of its own. Its lines
    are paragraphs, as in a data set of the hub.

    Args:
        task: from 0 to tasks - 1.
        tasks: their number, the same for all tasks of a folder.

    Raises:
        UserError: the folder is that of another number of tasks or of another command; another run is writing this
            file; a text holds half of a surrogate pair; or no task had a document.
    """
    folder = corpora / name / "unified"
    facts = {"format_version": FORMAT_VERSION, "corpus": name, **_SETTINGS, "tasks": tasks}
    shards = [folder / shard_name(number) for number in range(tasks)]
    results = [*shards, folder / CORPUS_FILE]
    with open_parts(folder / PARTS, "UnifiedWriter", facts, results, "share", advice=_ADVICE) as parts:
        with parts.alone(shards[task].stem):
            tally = Tally()
            with NewFile(shards[task]) as file:

                def add(id: str, text: str) -> int:
                    before = tally.documents
                    for document in documents_of(id, text.split("\n"), 0, tally):
                        tally.count(document)
                        file.write(line_of(document))
                    # As many as there are texts, and not kept.
                    tally.groups.clear()
                    return tally.documents - before

                yield add
            parts.add(shards[task].stem, {file.path: file.stamp}, tally.as_dict())
        # Two tasks may end at the same moment.
        with parts.alone("corpus", wait=True):
            made = [parts.find(shard.stem) for shard in shards]
            finished = [part for part in made if part is not None]
            if len(finished) == tasks:
                corpus = corpus_of(name, _SETTINGS, finished)
                if not corpus.documents:
                    raise UserError(
                        f"{folder}: no document is left in {number_of(tasks, 'task')}. "
                        f"Dropped: {counted(corpus.dropped)}"
                    )
                write_corpus(folder, corpus)
