"""`run_lra.py --as_published` beside the authors' model, written out from their code."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import authors
import pytest
import torch
from arena import SCRIPT, TINY, experiment, write_task
from small import run_here
from torch import Tensor, nn

from nystromformer.attention.nystrom import NystromAttention
from nystromformer.files.checked_json import write_checked
from nystromformer.model import SequenceModel
from nystromformer.runs.record import read_run
from nystromformer.tasks.lra.store import MANIFEST_FILE, open_stored
from nystromformer.tasks.lra.task import SequenceClasses

LENGTH, PADDED = 25, 32
SMALLER = {
    "nystrom": ["num_landmarks=8", "conv_kernel_size=5"],
    "softmax": [],
}


def theirs(core: nn.Module) -> authors.Mix:
    """The attention of a layer of theirs, with the numbers of ours."""
    if isinstance(core, NystromAttention):
        assert core.skip is not None
        weight = core.skip.weight.double()
        return lambda q, k, v, mask: authors.nystrom(q, k, v, mask, weight, 8)
    return authors.softmax


def run(
    folder: Path, task: str, attention: str, monkeypatch: pytest.MonkeyPatch, *more: object, last: bool = True
) -> tuple[int, list[tuple[SequenceModel, dict[str, Tensor], Tensor]]]:
    """The command's exit status, and model, batch and logits of what it validated and tested, with large weights."""
    data = write_task(folder / "data", task, 2 if task == "retrieval" else 1)
    manifest = open_stored(data, task).manifest
    write_checked(data / MANIFEST_FILE, asdict(replace(manifest, settings={"validate_on_last": last})))
    experiment(folder / "e", task=task)
    seen: list[tuple[SequenceModel, dict[str, Tensor], Tensor]] = []
    scores = SequenceClasses.scores

    def watched(target: SequenceClasses, model: nn.Module, batch: Any) -> Tensor:
        assert isinstance(model, SequenceModel)
        if not seen:
            generator = torch.Generator().manual_seed(0)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.6)
        out = scores(target, model, batch)
        seen.append((model, dict(batch), out.detach()))
        return out

    monkeypatch.setattr(SequenceClasses, "scores", watched)
    own = [override for override in TINY if "attn_type" not in override]
    own += [f"model.attn_type.{each}" for each in SMALLER[attention]]
    settings = [flag for override in own for flag in ("--set", override)]
    base = ("--task", task, "--model", folder / "e", "--data", data, "--device", "cpu", "--attention", attention)
    steps = ("--steps", 1, "--every", 1, "--length", LENGTH)
    return run_here(monkeypatch, SCRIPT, *base, *steps, *settings, *more), seen


@pytest.mark.parametrize(
    ("task", "attention"),
    [*(("image", attention) for attention in SMALLER), ("listops", "nystrom"), ("retrieval", "softmax")],
)
def test_logits_are_the_authors(task: str, attention: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, seen = run(tmp_path, task, attention, monkeypatch, "--as_published")
    assert status == 0
    model, batch, logits = seen[0]
    tokens_BN = batch["tokens_BN"]
    assert tokens_BN.shape[1] == PADDED
    # Theirs is `ids != 0`; ours begin at 1, so that of pictures 1 is a black pixel.
    mask_BN = (tokens_BN > (task == "image")).double()
    assert torch.equal(mask_BN.bool(), batch["mask_BN"])
    assert task != "image" or not mask_BN[:, 0].all()
    weights = {name: weight.double() for name, weight in model.state_dict().items()}
    mixes = [theirs(layer.attention.core) for layer in model.encoder.layers]
    expected = authors.arena_logits(weights, tokens_BN, mask_BN, mixes, heads=2, towers=1 + (task == "retrieval"))
    exact = [authors.softmax] * len(mixes)
    others = authors.arena_logits(weights, tokens_BN, mask_BN, exact, heads=2, towers=1 + (task == "retrieval"))
    assert attention == "softmax" or (others - expected).abs().max() > 0.02
    torch.testing.assert_close(logits.double(), expected, rtol=1e-3, atol=1e-4)


def test_runs_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named apart; what is not published has the landmarks of valid tokens."""
    assert run(tmp_path / "a", "listops", "nystrom", monkeypatch, "--as_published")[0] == 0
    status, seen = run(tmp_path / "b", "listops", "nystrom", monkeypatch)
    assert status == 0
    core = seen[0][0].encoder.layers[0].attention.core
    assert (core.config.segments, core.config.pinv_start, core.config.num_landmarks) == ("valid", "matrix", 8)
    (published,), (other,) = ((tmp_path / each / "e").glob("model/lra/*/*/run.json") for each in "ab")
    assert published.parents[1].name == "listops-as-published"
    assert other.parents[1].name == "listops"
    assert published.parent.name != other.parent.name
    assert read_run(published.parent) is not None


def test_a_parameter_that_is_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--as_published", "--set", "model.attn_type.segments=valid")
    status, seen = run(tmp_path, "listops", "nystrom", monkeypatch, *flags)
    assert status == 0
    core = seen[0][0].encoder.layers[0].attention.core
    assert (core.config.segments, core.config.pinv_start) == ("valid", "batch")


def test_pictures_are_validated_on_the_last_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "image", "softmax", monkeypatch, "--as_published", last=False)[0] == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "expected the last tenth of the training pictures as validation data" in error
    assert "--validate_on_last" in error
    assert not (tmp_path / "e" / "model").exists()
