"""ONNX files and torch.export programs: one serves any batch and length, padded or not."""

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from exported import MADE, experiment
from finetuning import pretrained
from small import LENGTH, ROOT
from torch import Tensor

from nystromformer.errors import UserError
from nystromformer.interop.experiments import programs
from nystromformer.interop.experiments.export_model import export_model
from nystromformer.interop.experiments.open_model import Opened, open_model
from nystromformer.interop.experiments.programs import ONNX_FILE, OPSET, TOLERANCE, TORCH_FILE, Exported, inputs

LENGTHS, BATCHES = (1, 7, 8, 21, LENGTH), (1, 3)
# Most of the time is the conversion of each layer's graph.
ONE_LAYER = {"model__num_layers": 1}
ROTARY = {"model__norm": "pre", "model__positions": "rotary", "model__pooling": "mean"}
ONNX = {"nystrom": ONE_LAYER, "near and far, rotary": MADE["near and far"] | ROTARY | ONE_LAYER}


def assert_serves_all(opened: Opened, run: Any) -> None:
    """Five lengths and two batch sizes, with padding and without, equal to 1e-4 of the largest logit."""
    module = Exported(opened.build()).eval()
    for batch in BATCHES:
        for length in LENGTHS:
            for padded in (True, False):
                given = inputs(opened, batch, length)
                if not padded:
                    given["attention_mask"] = torch.ones_like(given["attention_mask"])
                with torch.no_grad():
                    expected: Tensor = module(**given)
                    found: Tensor = run(given)
                if opened.labels is None:
                    keep = given["attention_mask"] != 0
                    expected, found = expected[keep], found[keep]
                assert found.shape == expected.shape
                assert float((found - expected).abs().max()) <= TOLERANCE * float(expected.abs().max().clamp(min=1))


@pytest.mark.slow
@pytest.mark.parametrize("case", ONNX)
def test_onnx(tmp_path: Path, dataset_folder: Path, case: str) -> None:
    import onnx

    made = experiment(tmp_path / "ours", dataset_folder, **ONNX[case])
    said = export_model(made.folder, "last", "onnx", tmp_path / "onnx")
    assert "its logits differ from the model's by" in said
    path = tmp_path / "onnx" / ONNX_FILE
    assert {each.version for each in onnx.load(path).opset_import if each.domain == ""} == {OPSET}
    assert_serves_all(open_model(made.folder), programs._in_onnxruntime(path))
    if made.config.model.positions == "learned":
        longer = inputs(open_model(made.folder), 2, LENGTH + 1)
        with pytest.raises(Exception, match=f"the input has more tokens than the model's {LENGTH} positions"):
            programs._in_onnxruntime(path)(longer)
    names = sorted(each.name for each in (tmp_path / "onnx").iterdir())
    assert names == ["about.json", ONNX_FILE, "tokenizer.json", "tokenizer_config.json"]


def test_a_program(tmp_path: Path, dataset_folder: Path) -> None:
    made = experiment(tmp_path / "ours", dataset_folder, **MADE["softmax"])
    export_model(made.folder, "last", "torch", tmp_path / "torch")
    with zipfile.ZipFile(tmp_path / "torch" / TORCH_FILE) as file:
        for name in file.namelist():
            content = file.read(name)
            assert not any(str(folder).encode() in content for folder in (ROOT, Path(torch.__file__).parent))
    module = torch.export.load(tmp_path / "torch" / TORCH_FILE).module()
    assert_serves_all(open_model(made.folder), lambda given: module(**given))


def test_what_has_no_program(tmp_path: Path, dataset_folder: Path) -> None:
    made = pretrained(tmp_path / "ours", dataset_folder, model__attn_type={"name": "nystrom", "segments": "padded"})
    for form in ("torch", "onnx"):
        with pytest.raises(UserError, match=r"layer 0's attention .nystrom, in this configuration. cannot be exported"):
            export_model(made.folder, "last", form, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_program_that_computes_something_else_is_not_written(tmp_path: Path, dataset_folder: Path) -> None:
    made = pretrained(tmp_path / "ours", dataset_folder, **MADE["softmax"])
    opened = open_model(made.folder)
    with pytest.raises(UserError, match=r"logits differ from the model's by .*it was not written"):
        programs.largest_difference(opened, lambda given: Exported(opened.build())(**given) + 0.1)
    with pytest.raises(UserError, match="by nan"):
        programs.largest_difference(opened, lambda given: Exported(opened.build())(**given) * float("nan"))
