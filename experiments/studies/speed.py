"""Time of what other studies train, and of what is handed to others; alone on a machine.

`python experiments/studies/speed.py tiny` writes results/tiny/speed.json: a row of 512 to 2,048 tokens in the tiny
encoders. `... authors` writes results/authors/speed.json: 8,192 tokens as passages of each length and in blocks of 512.
`... exports --model runs/tiny/seed0/nystrom-tiny-conv` writes results/home/speed.json: the attention that is put in
softmax's place in a RoBERTa of base width, and an exported ONNX file beside PyTorch. `... allocator` writes
results/attention-cpu/allocator.json: training steps and predictions where freed memory goes back to the system, and
where the process keeps it, as all commands do.
"""

import copy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from authors import ATTENTIONS, AUTHORS, BLOCKS, KIND, LONGEST, WHOLE, Encoder

import nystromformer
from nystromformer import studies
from nystromformer.benchmark.timing import Timing, peak_memory, repeats_at, time_side_by_side
from nystromformer.command_line.runtime import keep_freed_memory
from nystromformer.files.paths import EXPERIMENTS, PROJECT
from nystromformer.model import ClassificationModel
from nystromformer.studies import RESULTS
from nystromformer.tasks.experiment.folder import open_experiment

LANDMARKS = (8, 16, 32, 64, 128)
LENGTHS = (512, 1024, 2048)
BATCH, REPEATS = 4, 5
AUTHORS_REPEATS = 3
EXPORT_LENGTHS, EXPORT_REPEATS = (512, 1024, 2048, 4096, 8192), 15
ALLOCATING = ("nystrom", "near_far", "local", "longformer")
ALLOCATING_SIZES = {"tiny": 4096, "small": 8192}
"""Sizes of encoders, and tokens of a row. glibc returns what is larger than 32 MiB: nothing of the tiny one's is."""
ALLOCATING_REPEATS, ALLOCATING_ROUNDS = 3, 2
REPLACED = {"softmax (SDPA)": "sdpa", "nystrom, 64 strided": "strided-64", "nystrom, 64 segment means": "means-64"}


class Classifier:
    """A tiny encoder with a classification head, and a batch for it, B rows of N tokens without padding.

    Args:
        experiment: the shipped one's name.
        settings: of its config that differ.
        passages: that the rows are blocks of; None: each row is classified.
    """

    def __init__(
        self,
        experiment: str,
        settings: Sequence[str],
        classes: int,
        rows: int,
        length: int,
        passages: int | None = None,
    ) -> None:
        own = [*settings, f"model.max_seq_len={length}"]
        config = open_experiment(EXPERIMENTS / experiment, own).config.model
        torch.manual_seed(0)
        self.model = ClassificationModel(config, classes)
        self.tokens_BN = torch.randint(5, config.vocab_size, (rows, length))
        self.mask_BN = torch.ones(rows, length, dtype=torch.bool)
        self.rows_I = torch.full((passages,), rows // passages) if passages else None

    def predict(self) -> None:
        with torch.no_grad():
            self.model.eval()(self.tokens_BN, self.mask_BN, None, self.rows_I)

    def train(self) -> None:
        """A step without its update."""
        self.model.zero_grad(set_to_none=True)
        self.model.train()(self.tokens_BN, self.mask_BN, None, self.rows_I).sum().backward()


def time_classifiers(
    classifiers: Mapping[str, Classifier], repeats: int
) -> tuple[dict[str, Timing], dict[str, Timing]]:
    """Of each a training step and a prediction, all in turn."""
    train = time_side_by_side({name: each.train for name, each in classifiers.items()}, repeats)
    predict = time_side_by_side({name: each.predict for name, each in classifiers.items()}, repeats)
    return train, predict


def tiny() -> None:
    """Softmax, and Nyström with 8 to 128 landmarks, each with the convolution and without."""
    rows = []
    for length in LENGTHS:
        # All at one length in turn; the numbers of landmarks are compared at 512, where accuracy was measured.
        counts = (None, *LANDMARKS) if length == LENGTHS[0] else (None, 64)
        keys = {f"{end} {count}": (end, count) for end in ("conv", "noconv") for count in counts}
        classifiers = {}
        for name, (end, count) in keys.items():
            experiment = f"{'softmax' if count is None else 'nystrom'}-tiny-{end}"
            settings = [] if count is None else [f"model.num_landmarks={count}"]
            classifiers[name] = Classifier(experiment, settings, 2, BATCH, length)
        train, predict = time_classifiers(classifiers, REPEATS)
        for name, (end, count) in keys.items():
            classifiers[name].model.zero_grad(set_to_none=True)
            rows.append({
                "convolution": end == "conv",
                "landmarks": count,
                "tokens": length,
                "test_ms": {key: value / BATCH for key, value in asdict(predict[name]).items()},
                "train_ms": {key: value / BATCH for key, value in asdict(train[name]).items()},
                "train_mib": peak_memory(classifiers[name].train),
            })  # fmt: skip
    conditions = {"batch": BATCH, "repeats": REPEATS, "landmarks": "null: softmax (SDPA)"}
    studies.write_figures(RESULTS / "tiny" / "speed.json", settings=conditions, rows=rows)


def authors() -> None:
    """What experiments/studies/authors.py trains, with as many passages as a training step has."""
    every = {each.name: each for each in (*WHOLE, Encoder("softmax", LONGEST, LONGEST), *BLOCKS)}
    classifiers = {}
    for name, each in every.items():
        settings = [*(word for word in ATTENTIONS[each.attention].split() if word != "--set"), "model.pooling=mean"]
        rows, passages = LONGEST // each.length, LONGEST // each.passage
        classifiers[name] = Classifier(KIND, settings, AUTHORS, rows, each.length, passages)
    train, predict = time_classifiers(classifiers, AUTHORS_REPEATS)
    found = [
        {"attention": each.attention, "passage": each.passage, "length": each.length}
        | {"train_ms": asdict(train[name]), "predict_ms": asdict(predict[name])}
        for name, each in every.items()
    ]
    studies.write_figures(
        RESULTS / "authors" / "speed.json", settings={"tokens": LONGEST, "repeats": AUTHORS_REPEATS}, rows=found
    )


def allocator() -> None:
    """Encoders with several attentions, in processes of which every second one keeps what is freed."""
    rows = []
    for number in range(ALLOCATING_ROUNDS):
        for keeps in (False, True):
            with get_context("spawn").Pool(1, keep_freed_memory if keeps else None) as pool:
                for size, length in ALLOCATING_SIZES.items():
                    known = {"round": number, "keeps_freed": keeps, "size": size, "tokens": length}
                    rows += [known | row for row in pool.apply(_time_attentions, (size, length))]
    settings = {"repeats": ALLOCATING_REPEATS}
    studies.write_figures(RESULTS / "attention-cpu" / "allocator.json", settings=settings, rows=rows)


def _time_attentions(size: str, length: int) -> list[dict[str, Any]]:
    classifiers = {
        name: Classifier(f"softmax-{size}-noconv", [f"model.attn_type={name}"], 2, 1, length) for name in ALLOCATING
    }
    train, predict = time_classifiers(classifiers, ALLOCATING_REPEATS)
    return [
        {"attention": name, "train_ms": asdict(train[name]), "predict_ms": asdict(predict[name])} for name in ALLOCATING
    ]


def exports(model: Annotated[Path, typer.Option(help="What is exported to ONNX.")]) -> None:
    """The attention in softmax's place in transformers, and an ONNX file."""
    studies.write_figures(
        RESULTS / "home" / "speed.json",
        repeats=EXPORT_REPEATS,
        replaced=time_replaced(),
        onnx=time_exported(model.resolve()),
    )


def time_replaced() -> list[dict[str, Any]]:
    """Forward, float32, one row without padding: the attention of a layer alone, and a whole encoder of two layers."""
    from transformers import RobertaConfig, RobertaModel
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from nystromformer.interop.drop_in import register

    register("nystrom", name="strided-64", num_landmarks=64)
    register("nystrom", name="means-64", num_landmarks=64, landmarks="segment_means")
    torch.manual_seed(0)
    config = RobertaConfig(num_hidden_layers=2, max_position_embeddings=max(EXPORT_LENGTHS) + 2)
    # A config each: a model asks its config which attention it runs.
    models = {
        name: RobertaModel._from_config(copy.deepcopy(config), attn_implementation=name).eval()
        for name in REPLACED.values()
    }
    rows = []
    for length in EXPORT_LENGTHS:
        tokens = torch.randint(5, config.vocab_size, (1, length))
        q, k, v = torch.randn(3, 1, 12, length, 64)
        works: dict[str, Callable[[], object]] = {}
        for title, name in REPLACED.items():
            layer = models[name].encoder.layer[0].attention.self
            function, scaling = ALL_ATTENTION_FUNCTIONS[name], layer.scaling
            works[f"attention: {title}"] = partial(function, layer, q, k, v, None, dropout=0.0, scaling=scaling)
            works[f"encoder: {title}"] = partial(models[name], tokens)
        with torch.no_grad():
            timings = time_side_by_side(works, repeats_at(length, EXPORT_REPEATS))
        rows += [{"what": what, "tokens": length, **asdict(timing)} for what, timing in timings.items()]
    return rows


def time_exported(model_folder: Path) -> list[dict[str, Any]]:
    """Logits of rows without padding by the model in PyTorch, and by its ONNX file in onnxruntime: equal threads."""
    import onnxruntime

    from nystromformer.exchange.programs import Exported

    model, _ = nystromformer.from_pretrained(model_folder)
    whole = Exported(model.eval())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "onnx"
        words = ["code/run_export.py", "export", str(model_folder), "--format", "onnx", "--out", str(out)]
        subprocess.run([sys.executable, *words], cwd=PROJECT, check=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(out / "model.onnx", options, providers=["CPUExecutionProvider"])
        for batch, length in ((1, 128), (1, 512), (8, 128), (8, 512)):
            tokens_BN = torch.randint(5, 8000, (batch, length))
            inputs = {"input_ids": tokens_BN, "attention_mask": torch.ones_like(tokens_BN)}
            if "token_type_ids" in [each.name for each in session.get_inputs()]:
                inputs["token_type_ids"] = torch.zeros_like(tokens_BN)
            arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
            works = {"PyTorch": partial(whole, **inputs), "onnxruntime": partial(session.run, None, arrays)}
            with torch.no_grad():
                timings = time_side_by_side(works, EXPORT_REPEATS)
            row = {"batch": batch, "tokens": length}
            rows += [{"what": what, **row, **asdict(timing)} for what, timing in timings.items()]
    return rows


if __name__ == "__main__":
    studies.run_commands(tiny, authors, allocator, exports)
