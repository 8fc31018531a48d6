"""Many clients, drawn and prepared: seconds and peak memory of the two commands.

`python experiments/studies/transactions_streamed.py RUNS --clients N --length N` writes RUNS/streamed.json, and the
clients to RUNS/tables/million and RUNS/data/million.
"""

import shutil
import time
from pathlib import Path
from typing import Annotated

import typer
from transactions import NAMED

from nystromformer.files.paths import PROJECT
from nystromformer.files.writing import write_json
from nystromformer.machine import machine_facts, peak_memory
from nystromformer.studies import Job, job, run_commands

SCRIPT = "experiments/transactions/prepare.py"


def main(
    runs: Annotated[Path, typer.Argument(help="Folder of the study's runs.")],
    clients: Annotated[int, typer.Option(help="How many.")],
    length: Annotated[int, typer.Option(help="Events of a client, in the mean.")],
) -> None:
    """Draw clients and prepare them, one command after the other."""
    tables, data = runs / "tables" / "million", runs / "data" / "million"
    for left in (tables, data):  # of an interrupted call
        shutil.rmtree(left, ignore_errors=True)
    place = ("--events", tables / "events", "--clients", tables / "clients.csv", NAMED, "--out", data)
    found = {
        "draw": _measured(job("draw", SCRIPT, f"draw --clients {clients} --length {length} --out", tables)),
        "prepare": _measured(job("prepare", SCRIPT, "long", *place)),
    }
    sizes = {name: sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / (1 << 20)
             for name, folder in (("draw", tables), ("prepare", data))}  # fmt: skip
    commands = {name: {**figures, "written_mib": sizes[name]} for name, figures in found.items()}
    write_json(runs / "streamed.json", {**machine_facts(), "clients": clients, "length": length, "commands": commands})


def _measured(command: Job) -> dict[str, float]:
    """Seconds, and the peak of the command's largest process."""
    begin = time.perf_counter()
    peak = peak_memory(command.words, PROJECT)
    return {"seconds": time.perf_counter() - begin, "peak_memory_mib": peak}


if __name__ == "__main__":
    run_commands(main)
