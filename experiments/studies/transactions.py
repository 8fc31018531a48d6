"""Clients' events: the lecture's experiments on clients who are drawn, and the same models on UCI's.

`python experiments/studies/transactions.py run --data DIR [STAGE ...]`, then `collect`. DIR holds
uci_credit_default/UCI_Credit_Card.csv. What is drawn follows from the generator's constants and a seed, both of which
are in the commit that the stage `clients` names.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from nystromformer import studies
from nystromformer.files.writing import write_json, write_text
from nystromformer.report.transactions import Tested, clients_tested_in, difference_of, write_transactions
from nystromformer.runs.record import find_runs
from nystromformer.studies import Job, Stages, job
from nystromformer.tables import markdown

RESULTS = studies.RESULTS / "transactions"
SHORT, LONG = 350, 1500
"""Events of a row."""
CLIENTS = 10_000
LONG_CLIENTS, LONG_TESTED = 5000, 0.6
"""With long histories, and the share of them to test on: a Gini of few clients shows little."""
SEEDS, EPOCHS = "0,1,2", 3
LONG_EPOCHS, BEGUN_EPOCHS, FEW_EPOCHS = 10, 5, 20
"""Of the long histories and of few labelled clients, about as many steps as on the short ones; and of longer rows that
begin with the encoder of shorter ones.
"""
BATCH, RATES = 16, "1e-3,2e-3,4e-3"
ATTENTIONS: Mapping[str, str] = {
    "softmax": "softmax",
    "nystrom": "nystrom",
    "near_far": "near_far",
    "longformer": "longformer",
    "linformer": "linformer",
    "conv_linformer": "conv_linformer",
}
PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "nystrom": {"num_landmarks": 64},
    "near_far": {"block_size": 32, "num_landmarks": 16, "num_blocks": 2},
    "longformer": {"window": 128, "num_global_tokens": 1},
    "linformer": {"projected_length": 128},
    "conv_linformer": {"stride": 4},
}
MODELS = ("lstm", *ATTENTIONS)
RATED = ("lstm", "softmax")
"""Whose learning rate is chosen; other attentions have softmax's."""
UCI_MODELS = ("lstm", "softmax", "nystrom", "linformer", "conv_linformer")
"""Longformer and near_far are softmax at six events."""
UCI_LENGTH = 8
OF_UCI: Mapping[str, Mapping[str, Any]] = {
    "nystrom": {"num_landmarks": 4},
    "linformer": {"projected_length": 4},
    "conv_linformer": {"stride": 2},
}
LONG_MODELS = ("lstm", "softmax", "nystrom", "near_far", "conv_linformer")
BEGUN = ("conv_linformer", "near_far")
"""Trained on short rows first, too."""
SHIFTED = ("linformer", "conv_linformer", "nystrom")
"""Trained with the cycle shift, too."""
MORE_EPOCHS, LONGER_TRAINED = 10, ("lstm", "softmax", "conv_linformer", "linformer")
"""Of more epochs on the short rows."""
UNMATCHED = "--of_loan 0 --intercept -2.2"
UNMATCHED_MODELS = ("lstm", "softmax", "conv_linformer", "linformer")
"""Clients of whom as many default, but whatever loans they paid back: no event needs to be matched with another."""
PRETRAINED = ("nystrom", "lstm")
LABELLED = 1000
"""Clients to train on where pretraining is compared."""
SEARCH: Sequence[Mapping[str, Any]] = (
    {"num_head": 8, "head_dim": 16, "embedding_dim": 128, "transformer_dim": 128, "num_layers": 1},
    {"num_head": 8, "head_dim": 8, "num_layers": 1},
    {"num_head": 8, "head_dim": 8, "num_layers": 2},
    {"num_head": 8, "head_dim": 8, "num_layers": 2, "window": 256},
    {"num_head": 8, "head_dim": 8, "num_layers": 2, "window": 64},
    {"num_head": 4, "head_dim": 16, "num_layers": 4, "dropout_prob": 0.3},
    {"num_head": 4, "head_dim": 8, "embedding_dim": 32, "transformer_dim": 32, "num_layers": 4, "dropout_prob": 0.3},
    {"num_head": 4, "head_dim": 16, "num_layers": 4, "dropout_prob": 0.5},
    {"num_head": 2, "head_dim": 32, "num_layers": 4, "dropout_prob": 0.5},
)
"""Of Longformer, after the lecture's twelve rows, no deeper than four layers."""
MILLION = 1_000_000
NAMED = "--client client --time time --target default --date date --truth truth"


class Transactions(Stages):
    """The runs."""

    study = "transactions"
    needs = "uci_credit_default"

    def clients(self) -> None:
        """Draw and prepare all clients."""
        self._draw("short", 300 if self.rehearse else CLIENTS, 24 if self.rehearse else SHORT)
        more = f"--out_of_time {LONG_TESTED}"
        self._draw("long", 300 if self.rehearse else LONG_CLIENTS, 48 if self.rehearse else LONG, more)
        self._draw("unmatched", 300 if self.rehearse else CLIENTS, 24 if self.rehearse else SHORT, world=UNMATCHED)
        source = self.data / "uci_credit_default" / "UCI_Credit_Card.csv"
        self.run([self._prepared("uci", f"uci --source {source}")])

    def rates(self) -> None:
        """The learning rates of the LSTM and of softmax, on the same data, for as many epochs, with another seed."""
        flags = f"--lr {RATES} --seed 7 --epoch {EPOCHS}"
        self.run(self._training("rates-short", model, "short", flags) for model in RATED)
        self.run(self._of_uci("rates-uci", model, flags) for model in RATED)

    def short(self) -> None:
        """All models on the newest 350 events, three seeds, and boosting."""
        self.run(self._training("short", model, "short", self._flags(model)) for model in MODELS)

    def boosting(self) -> None:
        """Its chances of the test clients, to compare with."""
        jobs = []
        for data, length in (("short", SHORT), ("unmatched", SHORT), ("uci", UCI_LENGTH)):
            out = self.out / f"boosting-{data}.csv"
            place = (self.out / "data" / data, out, f"--length {length}")
            jobs.append(job(f"boosting-{data}", "experiments/studies/transactions_boosting.py", *place, result=out))
        self.run(jobs)

    def epochs(self) -> None:
        """Some on the same rows for more epochs, one seed."""
        self.run(
            self._training("epochs", model, "short", self._flags(model, "0", epochs=MORE_EPOCHS))
            for model in LONGER_TRAINED
        )

    def unmatched(self) -> None:
        """Some on clients of whom no events need to be matched, three seeds."""
        self.run(self._training("unmatched", model, "unmatched", self._flags(model)) for model in UNMATCHED_MODELS)

    def long(self) -> None:
        """Some on the newest 350 and the newest 1,500 of longer histories, one seed."""
        self.run(
            self._training("long", model, "long", self._flags(model, "0", epochs=LONG_EPOCHS), length=length)
            for length in (SHORT, LONG)
            for model in LONG_MODELS
        )

    def shifted(self) -> None:
        """Three with rows turned in training."""
        self.run(self._training("shifted", model, "short", f"{self._flags(model)} --cycle_shift") for model in SHIFTED)

    def projections(self) -> None:
        """Other sizes of the two projections, one seed."""
        sizes = [("linformer", "projected_length", size) for size in (32, 64, 256)]
        sizes += [("conv_linformer", "stride", size) for size in (2, 8)]
        self.run(
            self._training("projections", model, "short", self._flags(model, "0"), {name: size}, f"-{size}")
            for model, name, size in sizes
        )

    def curriculum(self) -> None:
        """Rows of 1,500 begun with the encoder of rows of 350, for half the epochs of a run from initial weights; of
        one also the convolution alone is trained.
        """
        jobs = []
        for model in BEGUN:
            (found,) = find_runs(self.out / "long" / f"{model}-{SHORT}" / "model", "transactions")
            start = f"{self._flags(model, '0', epochs=BEGUN_EPOCHS)} --from_run {found.folder}"
            jobs.append(self._training("curriculum", model, "long", start, length=LONG))
            if model == "conv_linformer":
                alone = f"{start} --train_only attention"
                jobs.append(self._training("curriculum", model, "long", alone, end="-attention", length=LONG))
        self.run(jobs)

    def search(self) -> None:
        """Longformer with other heads, widths, windows, layers and dropout, one seed."""
        jobs = []
        for number, changed in enumerate(SEARCH):
            keys = dict(changed)
            attention = {"window": keys.pop("window", 128)}
            jobs.append(
                self._training(
                    "search", "longformer", "short", self._flags("longformer", "0"), attention, f"-{number}", keys
                )
            )
        self.run(jobs)

    def pretrained(self) -> None:
        """Few labelled clients, with and without masked events of all before, one seed."""
        ways = {"": "", "-pretrained": f"--pretrain_epoch {EPOCHS}"}
        few = {model: f"{self._flags(model, '0', epochs=FEW_EPOCHS)} --train_rows {LABELLED}" for model in PRETRAINED}
        self.run(
            self._training("pretrained", model, "short", f"{flags} {more}", end=end)
            for model, flags in few.items()
            for end, more in ways.items()
        )

    def uci(self) -> None:
        """All models on UCI's clients, three seeds, and boosting."""
        self.run(self._of_uci("uci", model, self._flags(model, data="uci")) for model in UCI_MODELS)

    def streamed(self) -> None:
        """A million clients of 50 events in the mean, drawn and prepared; what memory that takes."""
        out = self.out / "streamed.json"
        flags = f"--clients {300 if self.rehearse else MILLION} --length 50"
        self.run([job("streamed", "experiments/studies/transactions_streamed.py", self.out, flags, result=out)])

    def _draw(self, name: str, clients: int, length: int, more: str = "", world: str = "") -> None:
        tables = self.out / "tables" / name
        if not (tables / "clients.csv").exists():
            shutil.rmtree(tables, ignore_errors=True)  # of an interrupted call
        flags = f"draw --clients {clients} --length {length} {world} --out"
        script = "experiments/transactions/prepare.py"
        self.run([job(f"draw-{name}", script, flags, tables, result=tables / "clients.csv")])
        place = ("long --events", tables / "events", "--clients", tables / "clients.csv", NAMED, more)
        self.run([self._prepared(name, *place)])

    def _prepared(self, name: str, *flags: object) -> Job:
        folder = self.out / "data" / name
        script = "experiments/transactions/prepare.py"
        return job(f"prepare-{name}", script, *flags, "--out", folder, result=folder / "manifest.json")

    def _flags(self, model: str, seeds: str = SEEDS, data: str = "short", epochs: int = EPOCHS) -> str:
        """Of runs that count. Longer rows and other shapes of a model have the rate of the model on the short ones."""
        baselines = "--baselines" if model == "lstm" else ""
        return f"--lr {best_rate(self.out, model, data)} --seed {seeds} --epoch {epochs} {baselines}"

    def _of_uci(self, use: str, model: str, flags: str) -> Job:
        return self._training(use, model, "uci", flags, OF_UCI.get(model, {}), length=UCI_LENGTH)

    def _training(
        self,
        use: str,
        model: str,
        data: str,
        flags: str,
        attention: Mapping[str, Any] = {},
        end: str = "",
        keys: Mapping[str, Any] = {},
        length: int = SHORT,
    ) -> Job:
        name = f"{model}-{length}{end}"
        # A recurrent network has no attention.
        chosen = {"name": ATTENTIONS.get(model, "softmax"), **PARAMETERS.get(model, {}), **attention}
        changed = {"max_seq_len": length, **keys, "attn_type": chosen}
        folder = studies.write_experiment(self.out / use / name, "transactions/encoder", changed)
        network = "" if model in ATTENTIONS else f"--architecture {model}"
        fewer = "--epoch 1 --seed 0 --train_rows 32" if self.rehearse else ""
        place = ("--model", folder, "--data", self.out / "data" / data, "--task", data, flags, network)
        kept = "" if use in ("long", "pretrained") else "--discard_weights"
        return job(
            f"{use}-{name}", "code/run_transactions.py", *place, f"--batch_size {BATCH} {kept} --device cpu", fewer
        )


def tried_rates(runs: Path, model: str, data: str) -> dict[str, dict[str, list[float]]]:
    """Log loss and Gini on validation clients after each epoch with each learning rate, of runs here or gathered
    earlier.
    """
    length = SHORT if data == "short" else UCI_LENGTH
    found = find_runs(runs / f"rates-{data}" / f"{model}-{length}" / "model", "transactions")
    path = RESULTS / "rates.json"
    known: dict[str, dict[str, list[float]]] = studies.read_json(path)[data].get(model, {}) if path.exists() else {}
    return known | {
        f"{run.settings.learning_rate:g}": {
            name: [epoch.metrics[name] for epoch in run.epochs] for name in ("log_loss", "gini")
        }
        for run in found
    }


def best_rate(runs: Path, model: str, data: str) -> str:
    """The learning rate of the lowest log loss on validation clients, of the network or of softmax."""
    tried = tried_rates(runs, model if model in RATED else "softmax", data)
    if len(tried) != len(RATES.split(",")):
        raise SystemExit(f"{model}: expected {len(RATES.split(','))} runs of the stage rates, found {len(tried)}")
    return min(tried, key=lambda rate: min(tried[rate]["log_loss"]))


BESIDE = dict.fromkeys(("shifted", "projections", "search", "epochs"), "short") | {"curriculum": "long"}
"""Tables in which the runs of another use stand, too, to compare with."""
USES = ("short", "epochs", "unmatched", "shifted", "projections", "search", "pretrained", "long", "curriculum", "uci")
_CURRICULUM = f"curriculum/conv_linformer-{LONG}"
PAIRS: Mapping[str, Sequence[tuple[str, str]]] = {
    "short": [
        *((f"short/{model}-{SHORT}", "boosting-short") for model in MODELS),
        *((f"short/{model}-{SHORT}", f"short/softmax-{SHORT}") for model in ATTENTIONS if model != "softmax"),
    ],
    "epochs": [
        *((f"epochs/{model}-{SHORT}", f"short/{model}-{SHORT}") for model in LONGER_TRAINED),
        *((f"epochs/{model}-{SHORT}", f"epochs/lstm-{SHORT}") for model in LONGER_TRAINED[1:]),
        *((f"epochs/{model}-{SHORT}", "boosting-short") for model in LONGER_TRAINED),
    ],
    "unmatched": [(f"unmatched/{model}-{SHORT}", "boosting-unmatched") for model in UNMATCHED_MODELS],
    "shifted": [(f"shifted/{model}-{SHORT}", f"short/{model}-{SHORT}") for model in SHIFTED],
    "projections": [
        *((f"projections/linformer-{SHORT}-{size}", f"short/linformer-{SHORT}") for size in (32, 64, 256)),
        *((f"projections/conv_linformer-{SHORT}-{size}", f"short/conv_linformer-{SHORT}") for size in (2, 8)),
    ],
    "search": [  # more layers, a wider and a narrower window, more dropout
        (f"search/longformer-{SHORT}-{one}", f"search/longformer-{SHORT}-{other}")
        for one, other in ((2, 1), (3, 2), (4, 2), (7, 5))
    ],
    "pretrained": [(f"pretrained/{model}-{SHORT}-pretrained", f"pretrained/{model}-{SHORT}") for model in PRETRAINED],
    "long": [
        *((f"long/{model}-{LONG}", f"long/{model}-{SHORT}") for model in LONG_MODELS),
        *((f"long/{model}-{LONG}", f"long/lstm-{LONG}") for model in LONG_MODELS[1:]),
    ],
    "curriculum": [
        *((f"curriculum/{model}-{LONG}", f"long/{model}-{LONG}") for model in BEGUN),
        *((f"curriculum/{model}-{LONG}", f"long/{model}-{SHORT}") for model in BEGUN),
        (f"{_CURRICULUM}-attention", f"long/conv_linformer-{LONG}"),
        (_CURRICULUM, f"{_CURRICULUM}-attention"),
    ],
    "uci": [(f"uci/{model}-{UCI_LENGTH}", "boosting-uci") for model in UCI_MODELS],
}
"""Experiments, or boosting's chances, to compare; folders in that of the runs."""


def tested_clients(runs: Path, name: str) -> Tested | None:
    """What an experiment's runs, or boosting, said of the test clients; None of one without."""
    if (path := runs / f"{name}.csv").exists():
        table = pd.read_csv(path, dtype={"client": str})
        chances = [table[column].to_numpy() for column in table.columns if column.startswith("probability")]
        return Tested(list(table["client"]), table["label"].to_numpy(), chances, [])
    return clients_tested_in(runs / name) if _is_tested(runs / name) else None


def _is_tested(folder: Path) -> bool:
    return any("gini" in run.test_metrics for run in find_runs(folder / "model", "transactions"))


def differences(runs: Path, use: str) -> list[list[str]]:
    """A row for each of these pairs that has runs: names, seeds, the difference in points with its 95 % interval, and
    the smallest that could have been shown.
    """
    rows = []
    for names in PAIRS.get(use, ()):
        one, other = (tested_clients(runs, name) for name in names)
        if one is not None and other is not None and (found := difference_of(one, other)):
            seeds = " and ".join(str(len(each.chances)) for each in (one, other))
            pair = " − ".join(f"`{name}`" for name in names)
            rows.append([pair, seeds, str(found), f"{100 * found.smallest:.1f}"])
    return rows


def collect(runs: Path = Path("runs/transactions")) -> None:
    """Write a table and its figures for each use that has finished runs, the rates, and the drawn worlds."""
    rates = {data: {model: tried_rates(runs, model, data) for model in RATED} for data in ("short", "uci")}
    write_json(RESULTS / "rates.json", {**rates, "began": studies.read_stages(runs, "clients", "rates")})
    for use in USES:
        folders = sorted(path for path in (runs / use).glob("*") if _is_tested(path))
        if not folders:
            continue
        page = RESULTS / f"{use}.md"
        beside = sorted(path for path in (runs / BESIDE[use]).glob("*") if _is_tested(path)) if use in BESIDE else []
        parts = [write_transactions([*folders, *beside], page).rstrip()]
        if pairs := differences(runs, use):
            header = ["folders of runs", "seeds", "difference in Gini, points (95 %)", "could have been shown"]
            note = "Over clients, paired, and over seeds where one side has several; 80 % power."
            parts += ["## Pairs", markdown(header, pairs), note]
        began = studies.read_stages(runs, "clients", "rates", use)
        write_text(page, "\n\n".join([*parts, studies.describe_machines(began)]) + "\n")
        write_json(page.with_suffix(".json"), {**studies.read_json(page.with_suffix(".json")), "began": began})
        for path in (page, page.with_suffix(".json")):
            studies.shorten_paths(path, runs, "transactions")
    for name in ("short", "unmatched", "long", "uci", "million"):
        manifest = runs / "data" / name / "manifest.json"
        if manifest.exists():
            data = studies.read_json(manifest)
            kept = {key: data[key] for key in ("splits", "ceiling", "notes")}
            drawn = studies.read_stages(runs, "streamed" if name == "million" else "clients")
            write_json(RESULTS / f"{name}-clients.json", {**kept, "began": drawn})
    if (path := runs / "streamed.json").exists():
        write_json(RESULTS / "streamed.json", studies.read_json(path))


if __name__ == "__main__":
    studies.run_commands(studies.command_of(Transactions), collect)
