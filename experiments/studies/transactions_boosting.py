"""Boosting's chances of test clients, to compare with those of models.

`python experiments/studies/transactions_boosting.py DATA OUT --length N`: a column for each of three seeds.
"""

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from nystromformer.studies import run_commands, write_table
from nystromformer.tasks.transactions.boosting import boosted_chances
from nystromformer.tasks.transactions.examples import ClientExamples
from nystromformer.tasks.transactions.store import open_stored

SEEDS = (0, 1, 2)


def main(
    data: Annotated[Path, typer.Argument(help="Folder of prepared clients.")],
    out: Annotated[Path, typer.Argument(help="CSV file.")],
    length: Annotated[int, typer.Option(help="Newest events of a client that are read.")],
) -> None:
    """Train on the training clients, and write chances of the test clients."""
    stored = open_stored(data)
    train, test = (
        ClientExamples(split, stored, stored.clients_of(split, labelled=True), length) for split in ("train", "test")
    )
    chances = boosted_chances(train, {"test": test}, SEEDS)["test"]
    columns = {f"probability_{seed}": of_seed[:, 1] for seed, of_seed in zip(SEEDS, chances, strict=True)}
    write_table(out, pd.DataFrame({"client": test.names(), "label": test.labels, **columns}))


if __name__ == "__main__":
    run_commands(main)
