"""Clients' events: networks on clients who are drawn, and on UCI's, beside gradient boosting (docs/transactions.md).

DIR holds uci_credit_default/UCI_Credit_Card.csv. What is drawn follows from the generator's constants and a seed. The
learning rates were chosen by the stage `rates`, by the log loss of the validation clients; the other attentions have
softmax's. Some five core-hours.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from study import Line, Stage, main

SHORT, UCI = 350, 8
"""Events of a row."""
Parameters = Mapping[str, Mapping[str, Any]]
ATTENTIONS: Parameters = {
    "softmax": {},
    "nystrom": {"num_landmarks": 64},
    "near_far": {"block_size": 32, "num_landmarks": 16, "num_blocks": 2},
    "longformer": {"window": 128, "num_global_tokens": 1},
    "linformer": {"projected_length": 128},
    "conv_linformer": {"stride": 4},
}
OF_UCI: Parameters = {
    "softmax": {},
    "nystrom": {"num_landmarks": 4},
    "linformer": {"projected_length": 4},
    "conv_linformer": {"stride": 2},
}
"""Longformer and near_far are softmax at six events."""
COMPARED = ("lstm", "softmax", "conv_linformer", "linformer")
"""Of more epochs, and of clients whose loans do not matter: no event needs to be matched with another."""
SEEDS = "--seed 0,1,2 --epoch 3"
RATES = ("1e-3", "2e-3", "4e-3")
COLUMNS = "--client client --time time --target default --date date --truth truth"
BOOSTING = "experiments/studies/boosting.py"
PREPARE = "experiments/transactions/prepare.py"


def prepare(name: str) -> Line:
    """Drawn clients, in {out}/data/NAME."""
    tables = f"{{out}}/tables/{name}"
    place = f"--events {tables}/events --clients {tables}/clients.csv --out {{out}}/data/{name}"
    return Line(name, f"{PREPARE} long {place} {COLUMNS}")


def train(model: str, data: str, flags: str, name: str = "") -> Line:
    """A recurrent network has no attention."""
    length, attentions = (UCI, OF_UCI) if data == "uci" else (SHORT, ATTENTIONS)
    network = "" if model in attentions else f"--architecture {model}"
    chosen = {"name": model, **attentions[model]} if model in attentions else "softmax"
    place = f"code/run_transactions.py --model {{here}} --data {{out}}/data/{data} --task {data} {network}"
    config = {"model": {"max_seq_len": length, "attn_type": chosen}}
    return Line(name or model, f"{place} {flags} --batch_size 16 --device cpu", "transactions/encoder", config)


def stage(name: str, data: str, models: Sequence[str], flags: str) -> Stage:
    """Runs, their table with the differences from the LSTM, and those from boosting."""
    lines = [train(model, data, flags) for model in models]
    folders = " ".join(f"{{out}}/{name}/{line.name}" for line in lines)
    boosted = f"{{out}}/boosting/{data}.csv"
    return Stage(
        lines,
        reports=[
            f"code/run_report.py transactions {folders} --out {{results}}/{name}.md",
            f"{BOOSTING} compare {boosted} {folders} --out {{results}}/{name}-boosting.md",
        ],
    )


STAGES = {
    "tables": Stage([
        Line(name, f"{PREPARE} draw --clients 10000 --length {SHORT} {flags} --out {{out}}/tables/{name}")
        for name, flags in (("short", ""), ("unmatched", "--of_loan 0 --intercept -2.2"))
    ]),
    "clients": Stage([
        *map(prepare, ("short", "unmatched")),
        Line("uci", f"{PREPARE} uci --source {{data}}/uci_credit_default/UCI_Credit_Card.csv --out {{out}}/data/uci"),
    ]),
    "rates": Stage([
        train(model, data, f"--lr {rate} --seed 7 --epoch 3", f"{data}-{model}-{rate}")
        for data in ("short", "uci")
        for model in ("lstm", "softmax")
        for rate in RATES
    ], ("log_loss", "gini")),
    "boosting": Stage([
        Line(data, f"{BOOSTING} fit {{out}}/data/{data} {{out}}/boosting/{data}.csv --length {size}")
        for data, size in (("short", SHORT), ("unmatched", SHORT), ("uci", UCI))
    ]),
    "short": stage("short", "short", ("lstm", *ATTENTIONS), f"--lr 2e-3 {SEEDS}"),
    "unmatched": stage("unmatched", "unmatched", COMPARED, f"--lr 2e-3 {SEEDS}"),
    "epochs": stage("epochs", "short", COMPARED, "--lr 2e-3 --seed 0 --epoch 10"),
    "uci": stage("uci", "uci", ("lstm", *OF_UCI), f"--lr 1e-3 {SEEDS}"),
}  # fmt: skip

if __name__ == "__main__":
    main(STAGES)
