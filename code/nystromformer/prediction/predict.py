"""What `run_predict.py` does: it predicts a table, clients, or a folder of Parquet files, which may lie in an S3 object
store, into a folder with a file for each.

The order of the parts' computation, and who computes them, changes no byte. Each finished part has a record with its
checksum in the folder of finished parts; at the end they become one manifest, and that folder is removed.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nystromformer.errors import UserError, first_line
from nystromformer.files.parts import MARK, PARTS, Parts, open_parts
from nystromformer.files.writing import NewFile, write_json
from nystromformer.prediction.on_ray import each_on_ray
from nystromformer.prediction.outputs import KINDS, output_kind
from nystromformer.prediction.predictor import Predictor, tell
from nystromformer.prediction.tables import COMMAND, Job, job_of, predict_table, progress_bar
from nystromformer.tabular.formats import parquet_refusal, parquet_table
from nystromformer.tabular.reading import Reading
from nystromformer.tabular.table import Table, open_place
from nystromformer.tasks.transactions.declaration import TASK as CLIENTS
from nystromformer.tasks.transactions.predict import predict_clients
from nystromformer.wording import number_of

logger = logging.getLogger(__name__)

REMOTE = "s3://"
MANIFEST = "_manifest.json"
"""What reads a folder of Parquet files passes over names that begin so."""
_AT_ONCE = 16
"""Files whose ends are read: of an object store each takes a few round trips."""


def run_predict(
    predictor: Predictor,
    place: str,
    out: Path,
    text: str | None,
    id_column: str | None,
    reading: Reading,
    on_ray: bool,
    part: slice | None,
) -> None:
    """Predict a table, a folder of Parquet files or, with a run on clients' events, a prepared folder.

    Args:
        place, reading: of what is predicted, as `open_place` or `parquet_folder` takes it.
        text, id_column, on_ray, part: as of predict_folder.

    Raises:
        UserError: the run cannot predict, or the table is none that it can; nothing is written then.
    """
    own = predictor
    if own.run is not None and own.run.kind == CLIENTS.command:
        if text or id_column or own.skip_empty or own.embed or own.baseline or on_ray or part:
            raise UserError(f"{own.folder}: reads clients' events: expected only --input, --out and --device")
        predict_clients(own.run, Path(place), out, own.device)
    elif (source := parquet_folder(place, reading)) is not None:
        predict_folder(predictor, source, out, text, id_column, on_ray, part)
    elif on_ray or part is not None:
        flag = "--engine ray" if on_ray else "--array_index"
        raise UserError(f"{flag}: expected --input to be a folder of Parquet files, found {place}")
    else:
        table = open_place(place, Path(), "test", reading)
        predict_table(predictor, table, out, text, id_column)


@dataclass(frozen=True)
class ParquetFolder:
    """The Parquet files of a folder; pickles. Each process opens them with its own credentials.

    Args:
        place: an absolute path, or s3://BUCKET/PREFIX.
        names: of the files, sorted.
    """

    place: str
    names: tuple[str, ...]
    reading: Reading = Reading()  # noqa: RUF009  # immutable

    def where(self, name: str) -> str:
        """What messages call a file."""
        return f"{self.place.rstrip('/')}/{name}"

    def table(self, name: str) -> Table:
        """A file as a table.

        Raises:
            UserError: it is no Parquet file, or cannot be read.
        """
        return parquet_table(self.where(name), partial(self._open, name), self.reading)

    def described(self, columns: Sequence[str]) -> tuple[list[int], str]:
        """Rows of each file, and a digest of all names, sizes and footers, which hold where every column of a file is
        and its bounds.

        Raises:
            UserError: one is no Parquet file, or has other columns than the first one.
        """
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")

        def footer(name: str) -> tuple[int, Any, Any]:
            try:
                with self._open(name) as file, parquet.ParquetFile(file) as content:
                    return file.size(), content.schema_arrow, content.metadata
            except (arrow.ArrowException, OSError) as error:
                raise parquet_refusal(self.where(name), error) from None

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            footers = list(pool.map(footer, self.names))
        expected: list[str] = []
        digest = hashlib.sha256()
        for name, (size, schema, metadata) in zip(self.names, footers, strict=True):
            found = [f"{column}: {schema.field(column).type}" for column in columns if column in schema.names]
            if (expected := expected or found) != found:
                raise UserError(
                    f"{self.where(name)}: expected the columns of {self.names[0]} ({', '.join(expected)}), found "
                    f"{', '.join(found) or 'none of them'}: write the files with one schema, or put them into folders "
                    "of their own"
                )
            digest.update(json.dumps([name, size, metadata.to_dict()], default=str).encode())
        return [metadata.num_rows for _, _, metadata in footers], digest.hexdigest()

    def _open(self, name: str) -> Any:
        files, base = _files_of(self.place)
        return files.open_input_file(f"{base}/{name}")


def parquet_folder(place: str, reading: Reading = Reading()) -> ParquetFolder | None:  # noqa: B008  # immutable
    """The folder at a place; None where there is no folder with Parquet files on this machine. Hidden files and those
    that begin with an underscore are somebody's bookkeeping.

    Raises:
        UserError: an object store cannot be read, or has no such files there.
    """
    is_remote = place.startswith(REMOTE)
    if not is_remote:
        if not Path(place).is_dir():
            return None
        place = str(Path(place).absolute())
    arrow, fs = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.fs")
    try:
        files, base = _files_of(place)
        found = files.get_file_info(fs.FileSelector(base))
    except (OSError, arrow.ArrowException) as error:
        raise UserError(
            f"--input {place}: cannot be read: {first_line(error)}. Credentials, region and endpoint are "
            "those of the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, "
            "AWS_ENDPOINT_URL), of ~/.aws, or of the machine's role"
        ) from None
    names = (each.base_name for each in found if each.type == fs.FileType.File)
    parts = sorted(name for name in names if name.endswith(".parquet") and not name.startswith((".", "_")))
    if not parts and is_remote:
        raise UserError(f"--input {place}: expected Parquet files (.parquet) directly in it, found none")
    return ParquetFolder(place, tuple(parts), reading) if parts else None


@lru_cache(maxsize=4)
def _files_of(place: str) -> tuple[Any, str]:
    """The file system of a place, and what the place is called in it; a client of an object store serves all files."""
    fs = importlib.import_module("pyarrow.fs")
    if place.startswith(REMOTE):
        # A prefix may have characters that mean something in an address.
        base = place.removeprefix(REMOTE).rstrip("/")
        return fs.FileSystem.from_uri(f"{REMOTE}{quote(base)}")[0], base
    return fs.LocalFileSystem(), place


@dataclass(frozen=True)
class FolderJob(Job):
    """A folder to predict, a part for each of its files, by this process or by others."""

    source: ParquetFolder
    out: Path
    parts: Parts


def predict_folder(
    predictor: Predictor,
    source: ParquetFolder,
    out: Path,
    text: str | None,
    id_column: str | None,
    on_ray: bool,
    part: slice | None,
) -> None:
    """Predict the Parquet files of a folder.

    Args:
        text, id_column: as of job_of.
        on_ray: have a Ray cluster predict them.
        part: of the files, beside other processes that have other parts; the folder is finished by a process that has
            all of them. None: all.

    Raises:
        UserError: the run cannot predict, a file or a text is invalid, files have other columns than the first one, the
            output folder is another's, or Ray fails; finished parts stay.
    """
    if out.suffix.lower() in KINDS:
        raise UserError(f"--out {out}: expected a folder, as --input {source.place} is one, found the name of a file")
    if out.parts and out.parts[0].endswith(":"):  # as pathlib has s3://BUCKET
        raise UserError(f"--out {out}: expected a folder on this machine, such as one to be copied to the store")
    out = out.absolute()
    manifest = out / MANIFEST
    # Another process may have made the folder of finished parts and nothing in it yet.
    is_free = not out.exists() or {path.name for path in out.iterdir()} <= {PARTS}
    if not (is_free or (out / PARTS / MARK).is_file()):
        raise UserError(f"--out {out}: is there already: name a new folder, or an empty one")
    first = job_of(predictor, source.table(source.names[0]), text, id_column)
    rows, digest = source.described(first.columns)
    facts = {"input": digest, **first.facts}
    numbers = range(len(source.names))[part or slice(None)]
    with open_parts(out / PARTS, COMMAND, facts, [manifest], "refuse" if part is None else "share") as parts:
        if not manifest.exists():
            job = FolderJob(predictor, first.text, first.id, source, out, parts)
            with progress_bar(sum(rows[number] for number in numbers)) as bar:
                for number in _on_ray(job, numbers) if on_ray else map(partial(predict_part, job), numbers):
                    bar.update(rows[number])
            made = {name: found for name in source.names if (found := parts.find(name)) is not None}
            tell(found.figures for found in made.values())
        if part is not None:
            logger.info(
                "predictions: %s of %d in %s; without --array_index and --array_size the command finishes the folder",
                *(number_of(len(numbers), "part"), len(source.names), out),
            )
            return
        if not manifest.exists():
            files = [
                {"name": name, **found.figures, "bytes": stamp.size, "sha256": stamp.sha256}
                for name, found in made.items()
                for stamp in found.files.values()
            ]
            columns = ["id", *predictor.columns]
            write_json(manifest, {"command": COMMAND, **facts, "columns": columns, "rows": sum(rows), "parts": files})
        parts.remove()
    logger.info("predictions: %s in %s", number_of(len(source.names), "part"), out)


def _on_ray(job: FolderJob, numbers: Sequence[int]) -> Iterator[int]:
    # A worker takes the device that Ray gives it, of the kind that was found here.
    kind = job.predictor.opened.facts.get("device", "cpu")
    places = {number: job.source.where(job.source.names[number]) for number in numbers}
    own = replace(job, predictor=replace(job.predictor, device=kind))
    return each_on_ray(partial(predict_part, own), places, kind)


def predict_part(job: FolderJob, number: int) -> int:
    """Predict a part, unless it is finished; one that is damaged is computed again, and the log says so. Gives its
    number.

    Raises:
        UserError: the file or a text is invalid, texts are empty, or a file that this command did not write has the
            part's name.
    """
    name = job.source.names[number]
    target = job.out / name
    with job.parts.alone(name, wait=True):
        if job.parts.find(name, verify=True) is not None:
            return number
        if os.path.lexists(target):
            if name not in job.parts.names():
                raise UserError(f"{target}: is there already, and this command did not write it: move it away")
            target.unlink()
        table, own, counts = job.source.table(name), job.predictor, Counter[str]()
        with NewFile(job.parts.folder / name) as file:
            output = output_kind(target)(file, own.opened.recipe)
            for _, window, found in job.score(((name, each) for each in job.windows(table)), independent=True):
                if not own.skip_empty and any(window.empty):
                    row = counts["rows"] + window.empty.index(True) + 1
                    raise UserError(f"{table.place(row)}: the text is empty: fill it in, or add --skip_empty")
                output.write(window.ids, own.results(found, window.empty), window.empty)
                counts.update(found.counts)
            output.close()
        job.parts.finish(name, file, target, **counts)
    return number
