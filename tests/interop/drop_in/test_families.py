"""Families of transformers' encoders under `attn_implementation="nystrom"`, as the table in docs/at-home.md says.

Tiny random models, on batches of one and two rows, with padding in families that take a mask. Nyström attention has
more landmarks here than any row has tokens, with which it is exact: a model in which it works gives what it gives
without it.

Shapes: B batch, N tokens.
"""

import contextlib
import re

import pytest
import torch
from small import ROOT
from theirs import SPEECH, build
from torch import Tensor
from transformers import PreTrainedModel

from nystromformer.interop.drop_in import check, register

NAME, LANDMARKS, TOKENS, TOLERANCE = "nystrom", 512, 24, 1e-4
PAGE = (ROOT / "docs" / "at-home.md").read_text()
STATES = {
    family: state
    for state in ("works", "refuses", "ignores", "fails")
    for names in re.findall(rf"^\| {state} \|[^|]*\|([^|]*)\|$", PAGE, re.MULTILINE)
    for family in names.strip().split(", ")
}
QUICK = (
    *("megatron-bert", "deberta-v2", "timesformer", "wavlm", "electra", "wav2vec2"),
    *("albert", "layoutlm", "eurobert"),  # layers called twice, a mask of numbers, heads that share keys and values
)
VIDEOS = ("timesformer", "videomae", "vivit")
IMAGES = (
    *("beit", "clip_vision_model", "data2vec-vision", "deit", "dinov2", "ijepa", "siglip_vision_model", "swin"),
    *("vit", "vit_msn", "yolos", *VIDEOS),
)


def batch(family: str, rows: int) -> dict[str, Tensor]:
    """Inputs; of two rows the last is full."""
    generator = torch.Generator().manual_seed(rows)
    if family in IMAGES:
        frames = (4,) if family in VIDEOS else ()
        return {"pixel_values": torch.randn(rows, *frames, 3, 32, 32, generator=generator)}
    lengths_B1 = torch.tensor([[TOKENS - 7], [TOKENS]])[:rows]
    if family in SPEECH:
        mask_BN = (torch.arange(TOKENS * 40) < lengths_B1 * 40).long()
        return {"input_values": torch.randn(mask_BN.shape, generator=generator), "attention_mask": mask_BN}
    mask_BN = (torch.arange(TOKENS) < lengths_B1).long()
    inputs = {
        "input_ids": torch.randint(2, 60, mask_BN.shape, generator=generator) * mask_BN,
        "attention_mask": mask_BN,
    }
    if family == "bros":
        inputs["bbox"] = torch.rand(*mask_BN.shape, 4, generator=generator)
    return inputs


def valid(model: PreTrainedModel, inputs: dict[str, Tensor], out: Tensor) -> Tensor:
    """The output's vectors that have a meaning."""
    if "attention_mask" not in inputs:
        return out
    lengths_B = inputs["attention_mask"].sum(1)
    if "input_values" in inputs:
        lengths_B = model._get_feat_extract_output_lengths(lengths_B)
    return out[torch.arange(out.shape[1]) < lengths_B[:, None]]


def attempt(family: str, rows: int) -> str:
    """What one forward does."""
    inputs, own = batch(family, rows), build(family)
    expected = valid(own, inputs, own(**inputs)[0])
    try:
        model = build(family, NAME)
        found = valid(model, inputs, model(**inputs)[0])
    except Exception as error:
        is_refused = isinstance(error, ValueError) and f'attn_implementation="{NAME}"' in str(error)
        return "refuses" if is_refused else "fails"
    assert float((found - expected).norm() / expected.norm()) <= TOLERANCE
    with contextlib.suppress(ValueError):
        return "works" if check(model, inputs) else "nothing"
    return "ignores"


@pytest.mark.parametrize(
    "family", [pytest.param(each, marks=[] if each in QUICK else pytest.mark.slow) for each in STATES]
)
def test_a_family_does_what_the_page_says(family: str) -> None:
    register(num_landmarks=LANDMARKS)
    with torch.no_grad():
        assert {attempt(family, rows) for rows in (1, 2)} == {STATES[family]}
