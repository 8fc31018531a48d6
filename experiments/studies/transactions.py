"""Clients' events: networks on UCI's clients beside gradient boosting (docs/transactions.md).

DIR holds uci_credit_default/UCI_Credit_Card.csv. The learning rate was chosen by the stage `rates`, by the log loss of
the validation clients; the other attentions have softmax's. Some ten minutes.
"""

from collections.abc import Mapping
from typing import Any

from study import Line, Stage, main

LENGTH = 8
"""Events of a row."""
ATTENTIONS: Mapping[str, Mapping[str, Any]] = {
    "softmax": {},
    "nystrom": {"num_landmarks": 4},
    "linformer": {"projected_length": 4},
    "conv_linformer": {"stride": 2},
}
"""Longformer and near_far are softmax at six events."""
RATES = ("1e-3", "2e-3", "4e-3")
BOOSTING = "experiments/studies/boosting.py"


def train(model: str, flags: str, name: str = "") -> Line:
    """A recurrent network has no attention."""
    network = "" if model in ATTENTIONS else f"--architecture {model}"
    chosen = {"name": model, **ATTENTIONS[model]} if model in ATTENTIONS else "softmax"
    place = f"code/run_transactions.py --model {{here}} --data {{out}}/clients/uci --task uci {network}"
    config = {"model": {"max_seq_len": LENGTH, "attn_type": chosen}}
    return Line(name or model, f"{place} {flags} --batch_size 16 --device cpu", "transactions/encoder", config)


TRAINED = [train(model, "--lr 1e-3 --seed 0,1,2 --epoch 3") for model in ("lstm", *ATTENTIONS)]
FOLDERS = " ".join(f"{{out}}/uci/{line.name}" for line in TRAINED)
STAGES = {
    "clients": Stage([
        Line(
            "uci",
            "experiments/transactions/prepare.py uci --source {data}/uci_credit_default/UCI_Credit_Card.csv "
            "--out {here}",
        ),
    ]),
    "rates": Stage([
        train(model, f"--lr {rate} --seed 7 --epoch 3", f"{model}-{rate}")
        for model in ("lstm", "softmax")
        for rate in RATES
    ], ("log_loss", "gini")),
    "boosting": Stage([
        Line("uci", f"{BOOSTING} fit {{out}}/clients/uci {{out}}/boosting/uci.csv --length {LENGTH}"),
    ]),
    "uci": Stage(TRAINED, reports=[
        f"code/run_report.py transactions {FOLDERS} --out {{results}}/uci.md",
        f"{BOOSTING} compare {{out}}/boosting/uci.csv {FOLDERS} --out {{results}}/uci-boosting.md",
    ]),
}  # fmt: skip

if __name__ == "__main__":
    main(STAGES)
