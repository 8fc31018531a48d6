"""What the README says is so."""

import re

import torch
from small import ROOT

from nystromformer.config import NystromConfig, load_config
from nystromformer.model import PretrainingModel, count_parameters
from nystromformer.report.exceptions import exceptions_table

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_nothing_is_left_to_fill_in() -> None:
    assert "@@" not in README


def test_the_table_of_exceptions_is_current() -> None:
    assert exceptions_table() in README


def test_the_library_example_runs() -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    names: dict[str, torch.Tensor] = {}
    exec(code[1], names)  # our own text
    assert names["out"].shape == (2, 12, 1000, 64)
    assert not names["out"][1, :, 37:].any()


def test_the_authors_protocol_is_the_line_it_names() -> None:
    (override,) = re.findall(r"--pad_to 512 --set '(model\.attn_type=.*?)'", README)
    model = load_config(ROOT / "nystrom-512" / "config.json", [override]).model
    wanted = NystromConfig(
        num_landmarks=64, conv_kernel_size=33, segments="padded", pinv_start="batch", ignore_mask=True
    )
    assert set(model.attentions) == {wanted}


def test_the_disk_that_checkpoints_take() -> None:
    config = load_config(ROOT / "nystrom-512" / "config.json")
    with torch.device("meta"):
        parameters = count_parameters(PretrainingModel(config.model, config.pretraining_setting.objectives))
    epochs, state, weights = config.pretraining_setting.epoch, 12 * parameters, 4 * parameters
    sizes = f"{state / 1e9:.2f} GB and {weights / 1e9:.2f} GB, and {epochs * (state + weights) / 1e9:.0f} GB"
    assert f"for the {parameters / 1e6:.0f} million of\n`nystrom-512` {sizes} for its {epochs} epochs" in README


def test_every_command_it_names_exists() -> None:
    scripts = set(re.findall(r"python ((?:code|data-preprocessing)/[\w/-]+\.py)", README))
    assert len(scripts) >= 5
    for script in scripts:
        assert (ROOT / script).is_file(), script
    for folder in re.findall(r"`((?:nystrom|softmax)-[\w-]+)`", README):
        assert (ROOT / folder / "config.json").is_file(), folder
