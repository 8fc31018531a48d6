"""A model as one program for any batch and length: torch.export's, and ONNX.

Shapes: B batch, N tokens, V vocabulary, C classes.
"""

import importlib
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nystromformer.errors import UserError
from nystromformer.files.writing import write_json
from nystromformer.interop.experiments.export_model import write_tokenizer
from nystromformer.interop.experiments.folders import write_folder
from nystromformer.interop.experiments.open_model import Opened
from nystromformer.model import ClassificationModel, PretrainingModel

OPSET = 18
"""onnxruntime refuses the attention of opset 23 with a mask for each row; 18 to 20 agree."""
TOLERANCE = 1e-4
"""Of the largest logit: float32 sums in another order."""
ONNX_FILE, TORCH_FILE = "model.onnx", "model.pt2"


class Exported(nn.Module):
    """`module(input_ids, attention_mask, token_type_ids)`, int64 (B, N) each: logits (B, N, V) or (B, C).

    token_type_ids are an input of models that tell the sentences of a row apart.
    """

    def __init__(self, model: PretrainingModel | ClassificationModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        keep_BN = attention_mask != 0
        if isinstance(self.model, ClassificationModel):
            classified: Tensor = self.model(input_ids, keep_BN, token_type_ids)
            return classified
        encoder = self.model.encoder
        guessed: Tensor = self.model.mlm(encoder(input_ids, keep_BN, token_type_ids), encoder.embeddings.word.weight)
        return guessed


def inputs(opened: Opened, batch: int, length: int) -> dict[str, Tensor]:
    """Random input: the first row full, the others padded."""
    generator = torch.Generator().manual_seed(batch * 100_003 + length)
    tokens_BN = torch.randint(opened.config.vocab_size, (batch, length), generator=generator)
    lengths_B1 = torch.randint(1, length + 1, (batch, 1), generator=generator)
    lengths_B1[0] = length
    places_N = torch.arange(length)
    given = {"input_ids": tokens_BN, "attention_mask": (places_N < lengths_B1).long()}
    if opened.config.num_sen_type > 1:
        given["token_type_ids"] = (places_N >= lengths_B1 // 2).long()
    return given


def export_program(opened: Opened) -> torch.export.ExportedProgram:
    """The model as a torch.export program with dynamic batch and length."""
    if opened.config.reversible:
        raise UserError(f"{opened.path}: reversible layers cannot be exported")
    model, most = opened.build(), opened.config.max_seq_len
    for number, core in enumerate(model.encoder.cores()):
        if not core.holds.export:
            raise UserError(
                f"{opened.path}: layer {number}'s attention ({core.config.name}, in this configuration) cannot be "
                "exported for any batch and length: docs/library.md lists those that can"
            )
    example = inputs(opened, 2, min(most, 7))
    shape = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("length", min=1, max=most)}
    module = Exported(model).eval()
    with warnings.catch_warnings(action="ignore"), torch.no_grad():  # which speak of the tracer's own
        program = torch.export.export(module, (), kwargs=example, dynamic_shapes=dict.fromkeys(example, shape))
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                node.meta.pop("stack_trace", None)  # lines of code, with their files on this machine
    return program


def export_checked(opened: Opened, dest: Path, form: str) -> float:
    """Write model.pt2 ("torch") or model.onnx ("onnx"), and the tokenizer; returns the largest difference of the
    program's logits from the model's on rows of several lengths."""
    program = export_program(opened)

    def write(folder: Path) -> float:
        if form == "torch":
            torch.export.save(program, folder / TORCH_FILE)
            module = program.module()
            difference = largest_difference(opened, lambda given: module(**given))
        else:
            _convert_to_onnx(opened, program).save(str(folder / ONNX_FILE), external_data=False)
            difference = largest_difference(opened, _in_onnxruntime(folder / ONNX_FILE))
        if opened.tokenizer is not None:
            write_tokenizer(opened, opened.tokenizer, folder)
        about = {
            "inputs": list(inputs(opened, 1, 1)),
            "max_length": opened.longest,
            "labels": None if opened.labels is None else list(opened.labels),
        }
        write_json(folder / "about.json", about)
        return difference

    return write_folder(dest, write)


def _convert_to_onnx(opened: Opened, program: torch.export.ExportedProgram) -> Any:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision, which nothing here needs
    with warnings.catch_warnings(action="ignore"):
        made: Any = torch.onnx.export(
            program,
            input_names=list(inputs(opened, 1, 1)),
            output_names=["logits"],
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
            custom_translation_table={torch.ops.aten.sort.stable: _stable_sort},
        )
    if opened.config.positions == "learned":
        # A file of ONNX's has no other way to refuse an input: onnxruntime names the node at which it stops.
        graph = made.model.graph
        (table,) = [value for name, value in graph.initializers.items() if name.endswith("embeddings.position.weight")]
        for cut in table.consumers():
            for addition in cut.outputs[0].consumers():
                addition.name = f"the input has more tokens than the model's {opened.config.max_seq_len} positions"
    return made


def _stable_sort(x: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """`torch.sort(stable=True)` in ONNX, whose TopK puts the earlier of two equal values first."""
    op: Any = importlib.import_module("onnxscript").opset18
    size = op.Gather(op.Shape(x), op.Constant(value_ints=[dim]))
    return op.TopK(x, size, axis=dim, largest=int(descending), sorted=1)


def largest_difference(opened: Opened, run: Callable[[dict[str, Tensor]], Tensor]) -> float:
    """How far a program's logits are from the model's, at tokens that count, as a share of the largest logit."""
    module, differences = Exported(opened.build()).eval(), []
    most = opened.config.max_seq_len
    for batch, length in ((1, 1), (1, most), (3, max(1, most // 3))):
        given = inputs(opened, batch, length)
        with torch.no_grad():
            expected, found = module(**given), run(given)
        if opened.labels is None:
            keep_BN = given["attention_mask"] != 0
            expected, found = expected[keep_BN], found[keep_BN]
        differences.append((found - expected).abs().max() / expected.abs().max().clamp(min=1))
    # A maximum of torch's, which a NaN is not lost in.
    worst = float(torch.stack(differences).max())
    if not worst <= TOLERANCE:
        raise UserError(
            f"{opened.path}: the exported program's logits differ from the model's by {worst:.1e} of the largest "
            f"({TOLERANCE:g} is allowed), so it was not written. Please report it, with torch's and onnxruntime's "
            "versions"
        )
    return worst


def _in_onnxruntime(path: Path) -> Callable[[dict[str, Tensor]], Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(given: dict[str, Tensor]) -> Tensor:
        (logits,) = session.run(None, {name: value.numpy() for name, value in given.items()})
        return torch.from_numpy(logits)

    return run
