"""What `run_predict.py` does: it predicts a table, clients, or a folder of Parquet files, into a folder with a file for
each.

The order of the parts' computation, and who computes them, changes no byte. Each finished part has a record with its
checksum in the folder of finished parts; at the end they become one manifest, and that folder is removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from nystromformer.errors import UserError
from nystromformer.files.parts import MARK, PARTS, Parts, open_parts
from nystromformer.files.writing import NewFile, write_json
from nystromformer.prediction.on_ray import each_on_ray
from nystromformer.prediction.outputs import ENDINGS, Output
from nystromformer.prediction.predictor import Predictor, tell
from nystromformer.prediction.tables import COMMAND, Job, job_of, predict_table, progress_bar
from nystromformer.tabular.formats import open_parquet, parquet_file
from nystromformer.tabular.reading import Reading
from nystromformer.tabular.table import open_table
from nystromformer.tasks.transactions.declaration import TASK as CLIENTS
from nystromformer.tasks.transactions.predict import predict_clients
from nystromformer.wording import number_of

logger = logging.getLogger(__name__)

MANIFEST = "_manifest.json"
"""What reads a folder of Parquet files passes over names that begin so."""


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
    """Predict a table, a folder of Parquet files or, with a run on clients' events, a prepared folder."""
    own, source = predictor, Path(place).absolute()
    # Hidden files and those that begin with an underscore are somebody's bookkeeping.
    names = tuple(sorted(path.name for path in source.glob("[!._]*.parquet")))
    if own.run is not None and own.run.kind == CLIENTS.command:
        if text or id_column or own.embed or on_ray or part:
            raise UserError(f"{own.folder}: reads clients' events: expected only --input, --out and --device")
        predict_clients(own.run, Path(place), out, own.device)
    elif names:
        first = job_of(predictor, open_parquet(source / names[0], reading), text, id_column)
        predict_folder(first, source, names, out.absolute(), reading, on_ray, part)
    elif on_ray or part is not None:
        flag = "--engine ray" if on_ray else "--array_index"
        raise UserError(f"{flag}: expected --input to be a folder of Parquet files, found {place}")
    else:
        predict_table(predictor, open_table(place, reading), out, text, id_column)


def predict_folder(
    job: Job,
    source: Path,
    names: tuple[str, ...],
    out: Path,
    reading: Reading,
    on_ray: bool,
    part: slice | None,
) -> None:
    """Predict the Parquet files of a folder, a part for each; finished parts stay, whatever fails.

    Args:
        on_ray: have a Ray cluster predict them.
        part: of the files, beside other processes that have other parts; the folder is finished by a process that has
            all of them. None: all.
    """
    if out.suffix.lower() in ENDINGS:
        raise UserError(f"--out {out}: expected a folder, as --input {source} is one, found the name of a file")
    manifest = out / MANIFEST
    # Another process may have made the folder of finished parts and nothing in it yet.
    is_free = not out.exists() or {path.name for path in out.iterdir()} <= {PARTS}
    if not (is_free or (out / PARTS / MARK).is_file()):
        raise UserError(f"--out {out}: is there already: name a new folder, or an empty one")
    rows, digest = _described(source, names, job.columns)
    facts, chosen = {"input": digest, **job.facts}, names[part or slice(None)]
    with open_parts(out / PARTS, COMMAND, facts, [manifest], part is not None) as parts:
        if not manifest.exists():
            # A worker takes the device that Ray gives it, of the kind that was found here.
            kind = job.predictor.network.device.device.type
            own = replace(job, predictor=replace(job.predictor, device=kind)) if on_ray else job
            work = partial(predict_part, own, source, out, reading, parts)
            with progress_bar(sum(rows[name] for name in chosen)) as bar:
                for name in each_on_ray(work, chosen, kind) if on_ray else map(work, chosen):
                    bar.update(rows[name])
            made = {name: found for name in names if (found := parts.find(name)) is not None}
            tell(found.figures for found in made.values())
        if part is not None:
            logger.info(
                "predictions: %s of %d in %s; without --array_index and --array_size the command finishes the folder",
                *(number_of(len(chosen), "part"), len(names), out),
            )
            return
        if not manifest.exists():
            files = [
                {"name": name, **found.figures, "bytes": stamp.size, "sha256": stamp.sha256}
                for name, found in made.items()
                for stamp in found.files.values()
            ]
            facts |= {"columns": ["id", *job.predictor.columns], "rows": sum(rows.values()), "parts": files}
            write_json(manifest, {"command": COMMAND, **facts})
        parts.remove()
    logger.info("predictions: %s in %s", number_of(len(names), "part"), out)


def _described(source: Path, names: Sequence[str], columns: Sequence[str]) -> tuple[dict[str, int], str]:
    """Rows of each file, and a digest of all names, sizes and footers, which hold where every column of a file is and
    its bounds.
    """
    expected: list[str] = []
    rows: dict[str, int] = {}
    digest = hashlib.sha256()
    for name in names:
        with parquet_file(source / name) as content:
            schema, metadata = content.schema_arrow, content.metadata
        found = [f"{column}: {schema.field(column).type}" for column in columns if column in schema.names]
        if (expected := expected or found) != found:
            raise UserError(
                f"{source / name}: expected the columns of {names[0]} ({', '.join(expected)}), found "
                f"{', '.join(found) or 'none of them'}: write the files with one schema, or put them into folders of "
                "their own"
            )
        rows[name] = metadata.num_rows
        size = (source / name).stat().st_size
        digest.update(json.dumps([name, size, metadata.to_dict()], default=str).encode())
    return rows, digest.hexdigest()


def predict_part(job: Job, source: Path, out: Path, reading: Reading, parts: Parts, name: str) -> str:
    """Predict a file of a folder, unless its part is finished; one that is damaged is computed again, and the log says
    so. Gives its name.
    """
    target = out / name
    with parts.alone(name):
        if parts.find(name, verify=True) is not None:
            return name
        if os.path.lexists(target):
            if name not in parts.names():
                raise UserError(f"{target}: is there already, and this command did not write it: move it away")
            target.unlink()
        table, own, counts = open_parquet(source / name, reading), job.predictor, Counter[str]()
        with NewFile(parts.folder / name) as file:
            output = Output(file, own.network.recipe)
            for _, window, found in job.score((name, each) for each in job.windows(table)):
                output.write(window.ids, own.results(found))
                counts.update(found.counts)
            output.close()
        parts.finish(name, file, target, **counts)
    return name
