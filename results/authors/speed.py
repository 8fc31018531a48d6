"""Time of 8,192 tokens in the encoders that run.py trains, as passages of each length and in blocks of 512: a training
step without its update, and a prediction; writes speed.json beside this file. `python results/authors/speed.py`, with
nothing beside it.
"""

from dataclasses import asdict
from pathlib import Path

import torch
from run import ATTENTIONS, BLOCKS, KIND, LONGEST, WHOLE, Trained

from nystromformer.benchmark.timing import time_side_by_side
from nystromformer.files import write_json
from nystromformer.machine import machine_facts
from nystromformer.model import ClassificationModel
from nystromformer.paths import EXPERIMENTS
from nystromformer.tasks.experiment.folder import open_experiment

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
AUTHORS = 18
REPEATS = 3


class Way:
    """One encoder, and as many passages without padding as a training step has."""

    def __init__(self, trained: Trained) -> None:
        flags = [word for word in ATTENTIONS[trained.attention].split() if word != "--set"]
        # The longest, as in fine-tuning: positions beyond the pretrained ones repeat.
        settings = [*flags, f"model.max_seq_len={trained.length}", "model.pooling=mean"]
        config = open_experiment(EXPERIMENTS / KIND, settings).config.model
        torch.manual_seed(0)
        self.model = ClassificationModel(config, AUTHORS)
        rows = LONGEST // trained.length
        self.tokens_BN = torch.randint(5, config.vocab_size, (rows, trained.length))
        self.mask_BN = torch.ones(rows, trained.length, dtype=torch.bool)
        passages = LONGEST // trained.passage
        self.rows_I = torch.full((passages,), rows // passages)

    def predict(self) -> None:
        with torch.no_grad():
            self.model.eval()(self.tokens_BN, self.mask_BN, None, self.rows_I)

    def train(self) -> None:
        self.model.zero_grad(set_to_none=True)
        self.model.train()(self.tokens_BN, self.mask_BN, None, self.rows_I).sum().backward()


def main() -> None:
    every = [*WHOLE, Trained("softmax", LONGEST, LONGEST), *BLOCKS]
    ways = {trained.name: Way(trained) for trained in every}
    rows = []
    train = time_side_by_side({name: way.train for name, way in ways.items()}, REPEATS)
    predict = time_side_by_side({name: way.predict for name, way in ways.items()}, REPEATS)
    for trained in every:
        told = {"attention": trained.attention, "passage": trained.passage, "length": trained.length}
        rows.append(told | {"train_ms": asdict(train[trained.name]), "predict_ms": asdict(predict[trained.name])})
    settings = {"tokens": LONGEST, "repeats": REPEATS}
    write_json(HERE / "speed.json", {"machine": machine_facts(), "settings": settings, "rows": rows})


if __name__ == "__main__":
    main()
