"""Time of what is handed to others: the attention that is put in softmax's place in a RoBERTa of base width, and an
exported ONNX file beside PyTorch. Writes speed.json beside this file.

`python results/home/speed.py --model runs/tiny/seed0/nystrom-tiny-conv`, with nothing beside it: the model is what is
exported to ONNX.
"""

import argparse
import copy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from transformers import RobertaConfig, RobertaModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import nystromformer
from nystromformer.benchmark.timing import repeats_at, time_side_by_side
from nystromformer.exchange.programs import Exported
from nystromformer.files import write_json
from nystromformer.interop.drop_in import register
from nystromformer.machine import machine_facts

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LENGTHS = (512, 1024, 2048, 4096, 8192)
NAMES = {"softmax (SDPA)": "sdpa", "nystrom, 64 strided": "strided-64", "nystrom, 64 segment means": "means-64"}
REPEATS = 15


def replaced() -> list[dict[str, Any]]:
    """Forward, float32, one row without padding: the attention of a layer alone, and a whole encoder of two layers."""
    register("nystrom", name="strided-64", num_landmarks=64)
    register("nystrom", name="means-64", num_landmarks=64, landmarks="segment_means")
    torch.manual_seed(0)
    config = RobertaConfig(num_hidden_layers=2, max_position_embeddings=max(LENGTHS) + 2)
    # A config each: a model asks its config which attention it runs.
    models = {
        name: RobertaModel._from_config(copy.deepcopy(config), attn_implementation=name).eval()
        for name in NAMES.values()
    }
    rows = []
    for length in LENGTHS:
        tokens = torch.randint(5, config.vocab_size, (1, length))
        q, k, v = torch.randn(3, 1, 12, length, 64)
        works: dict[str, Callable[[], object]] = {}
        for said, name in NAMES.items():
            layer = models[name].encoder.layer[0].attention.self
            function = ALL_ATTENTION_FUNCTIONS[name]
            works[f"attention: {said}"] = lambda layer=layer, function=function, inputs=(q, k, v): function(
                layer, *inputs, None, dropout=0.0, scaling=layer.scaling
            )
            works[f"encoder: {said}"] = lambda model=models[name], tokens=tokens: model(tokens)
        with torch.no_grad():
            timings = time_side_by_side(works, repeats_at(length, REPEATS))
        rows += [{"what": what, "tokens": length, **asdict(timing)} for what, timing in timings.items()]
    return rows


def exported(model_folder: Path) -> list[dict[str, Any]]:
    """Logits of rows without padding by the model in PyTorch, and by its ONNX file in onnxruntime: equal threads."""
    model, _ = nystromformer.from_pretrained(model_folder)
    whole = Exported(model.eval())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "onnx"
        words = ["code/run_export.py", "export", str(model_folder), "--format", "onnx", "--out", str(made)]
        subprocess.run([sys.executable, *words], cwd=ROOT, check=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(made / "model.onnx", options, providers=["CPUExecutionProvider"])
        for batch, length in ((1, 128), (1, 512), (8, 128), (8, 512)):
            tokens_BN = torch.randint(5, 8000, (batch, length))
            given = {"input_ids": tokens_BN, "attention_mask": torch.ones_like(tokens_BN)}
            if "token_type_ids" in [each.name for each in session.get_inputs()]:
                given["token_type_ids"] = torch.zeros_like(tokens_BN)
            arrays = {name: tensor.numpy() for name, tensor in given.items()}
            works = {
                "PyTorch": lambda given=given: whole(**given),
                "onnxruntime": lambda arrays=arrays: session.run(None, arrays),
            }
            with torch.no_grad():
                timings = time_side_by_side(works, REPEATS)
            rows += [
                {"what": what, "batch": batch, "tokens": length, **asdict(timing)} for what, timing in timings.items()
            ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    flags = parser.parse_args()
    parts = {"replaced": replaced(), "onnx": exported(flags.model.resolve())}
    write_json(HERE / "speed.json", {"machine": machine_facts(), "repeats": REPEATS, **parts})


if __name__ == "__main__":
    main()
