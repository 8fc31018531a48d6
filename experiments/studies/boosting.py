"""scikit-learn's gradient boosting on counts, means and shares of a client's events, and what networks differ by from
it: lines of transactions.py.

Shapes: n clients, N events, F numbers and C categories of an event, A aggregates.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from nystromformer.command_line import cli
from nystromformer.files.writing import write_text
from nystromformer.report.transactions import Tested, clients_tested_in, difference_of
from nystromformer.tables import markdown
from nystromformer.tasks.transactions.store import open_stored
from nystromformer.tasks.transactions.task import ClientExamples

SEEDS = (0, 1, 2)
RECENT = (10, 50)
"""Newest events that have aggregates of their own."""
VALUES = 16
"""Ids of a category whose shares are counted: the most frequent ones."""


def aggregates(examples: ClientExamples) -> NDArray[np.float32]:
    """Of the same events as the networks see, (n, A): how many there are; of each number mean, deviation, least,
    greatest, sum and the newest one; of each category the shares of its most frequent values, how many there are, and
    the newest one; mean numbers and shares of the newest events, too.
    """
    return np.stack([_of_client(examples, row) for row in range(len(examples))])


def _of_client(examples: ClientExamples, row: int) -> NDArray[np.float32]:
    places, stored = examples.places(row), examples.stored
    values_NF, codes_NC = np.asarray(stored.numbers[places]), np.asarray(stored.categories[places])
    ids = [each.ids_of(codes_NC[:, column]) for column, each in enumerate(stored.manifest.categories)]
    known_NF = np.ma.masked_invalid(values_NF.astype(np.float64))
    found = [np.array([len(values_NF)], dtype=np.float64)]
    for part in (known_NF.mean(0), known_NF.std(0), known_NF.min(0), known_NF.max(0), known_NF.sum(0)):
        found.append(np.ma.filled(part, np.nan))
    found.append(values_NF[-1].astype(np.float64))
    found += [np.ma.filled(known_NF[-recent:].mean(0), np.nan) for recent in RECENT]
    for events in (slice(None), *(slice(-recent, None) for recent in RECENT)):
        for each, ids_N in zip(stored.manifest.categories, ids, strict=True):
            width = min(each.size, VALUES)
            counts = np.bincount(np.minimum(ids_N[events], width), minlength=width + 1)[:width]
            found.append(counts / len(ids_N[events]))
    found.append(np.array([len(np.unique(ids_N)) for ids_N in ids], dtype=np.float64))
    found.append(np.array([ids_N[-1] for ids_N in ids], dtype=np.float64))
    return np.concatenate(found).astype(np.float32)


def fit(
    data: Annotated[Path, typer.Argument(help="Folder of prepared clients.")],
    out: Annotated[Path, typer.Argument(help="CSV file: a probability of label 1 for each seed.")],
    length: Annotated[int, typer.Option(help="Newest events of a client that are read.")],
) -> None:
    """Train on the training clients, and predict the test clients."""
    stored = open_stored(data)
    train, test = (ClientExamples(split, stored, stored.clients_of(split), length) for split in ("train", "test"))
    learned, asked, columns = aggregates(train), aggregates(test), {}
    for seed in SEEDS:  # each draws its own tenth, by which it stops early
        model = HistGradientBoostingClassifier(learning_rate=0.05, max_iter=500, early_stopping=True, random_state=seed)
        columns[f"probability_{seed}"] = model.fit(learned, train.labels).predict_proba(asked)[:, 1]
    table = pd.DataFrame({"client": test.names(), "label": test.labels, **columns})
    write_text(out, table.to_csv(index=False))


def compare(
    boosted: Annotated[Path, typer.Argument(help="What `fit` wrote.")],
    folders: Annotated[list[Path], typer.Argument(help="Experiments with finished runs.")],
    out: Annotated[Path, typer.Option(help="Markdown file.")],
) -> None:
    """Differences in Gini, paired over the clients."""
    table = pd.read_csv(boosted, dtype={"client": str})
    chances = [table[column].to_numpy() for column in table.columns if column.startswith("probability")]
    base = Tested(list(table["client"]), table["label"].to_numpy(), chances)
    lines = [["boosting", f"{100 * base.mean():.1f}", "", ""]]
    for folder in folders:
        own = clients_tested_in(folder)
        if found := difference_of(own, base):
            lines.append([folder.name, f"{100 * own.mean():.1f}", str(found), f"{100 * found.smallest:.1f}"])
    header = ["", "Gini, %", "difference from boosting, points (95 %)", "detectable, points"]
    write_text(out, markdown(header, lines) + "\n")


if __name__ == "__main__":
    cli.run_one_of(fit, compare)
