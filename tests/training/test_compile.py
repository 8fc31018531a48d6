"""`"compile": "auto"`: layers are compiled where it pays, tried before the run, and else run as they are.

`"compile": true`: the same training where there is a compiler, a warning where there is none.
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from finetuning import copy_of, pretrained, sweep, write_sst2
from functorch.compile import make_boxed_func
from run_files import assert_same_weights, records, weights
from small import CPU, small_config, write_experiment
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

from nystromformer.data.dataset import open_dataset
from nystromformer.model import PretrainingModel
from nystromformer.model.dropout import Dropout
from nystromformer.tasks.finetuning.sweep import finetune
from nystromformer.tasks.glue.catalog import find_tasks
from nystromformer.tasks.glue.task import Glue
from nystromformer.tasks.pretraining import compiled
from nystromformer.tasks.pretraining.batches import PretrainingSteps
from nystromformer.tasks.pretraining.compiled import compiled_where_it_pays
from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.tasks.pretraining.trainable import Pretraining
from nystromformer.training import Group, Step, Trainer, choose_device
from nystromformer.training import compile as compiling

SHORT = {
    "pretraining_setting__batches_per_epoch": 4,
    "pretraining_setting__epoch": 2,
    "model__dropout_prob": 0.0,
    "model__num_layers": 1,
    # Tracing takes most of the time, and goes by these.
    "model__attn_type": "softmax",
    "model__num_landmarks": None,
}
NYSTROM = {"model__attn_type": {"name": "nystrom", "pinv_iterations": 1}, "model__num_landmarks": 8}
LAST = "cp-0001.model"
Compiler = Callable[..., Any]


class Counting:
    """A compiler that leaves graphs as they are and counts how many it gets and how often they run."""

    def __init__(self) -> None:
        self.graphs = 0
        self.calls = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1

        def run(*args: Any) -> Any:
            self.calls += 1
            return graph(*args)

        return make_boxed_func(run)


def failing(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("no such instruction\nand more of it")


def wrong(graph: Any, inputs: Any) -> Any:
    def run(*args: Any) -> Any:
        return [x * 1.01 if isinstance(x, Tensor) and x.is_floating_point() else x for x in graph(*args)]

    return make_boxed_func(run)


def failing_later(graph: Any, inputs: Any) -> Any:
    def run(*args: Any) -> Any:
        raise RuntimeError("misaligned address")

    return make_boxed_func(run)


def backend(forward: Compiler, backward: Compiler) -> Any:
    return aot_autograd(fw_compiler=forward, bw_compiler=backward)


@pytest.fixture
def paying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    """A CPU that counts as a device on which compiling pays, with a compiler that counts."""
    monkeypatch.setattr(compiling, "_PAYS_ON", ("cpu",))
    monkeypatch.setattr(compiling, "missing_compiler", lambda device: None)
    monkeypatch.setattr(compiled, "_WORTHWHILE", 0)
    counting = Counting()
    monkeypatch.setattr(compiling, "_BACKEND", backend(counting, counting))
    torch.compiler.reset()
    yield counting
    torch.compiler.reset()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Path:
    """A run that was never compiled."""
    folder = tmp_path_factory.mktemp("plain")
    assert pretrain(write_experiment(folder, **SHORT, model__compile=False), dataset_folder, CPU) is None
    return folder


def test_auto_compiles_nothing_on_a_cpu(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dataset_folder: Path, plain: Path
) -> None:
    def never(self: nn.Module, *args: Any, **options: Any) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(nn.Module, "compile", never)
    with caplog.at_level(logging.INFO):
        pretrain(write_experiment(tmp_path, **SHORT), dataset_folder, CPU)
    assert "layers" not in caplog.text
    assert_same_weights(tmp_path, plain, LAST)


@pytest.fixture
def every_other_step_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    made = PretrainingSteps.__getitem__

    def masked(self: PretrainingSteps, number: int) -> Step:
        step = made(self, number)
        for batch in step.micro_batches:
            assert isinstance(batch, dict)
            batch.pop("mask_BN", None)
            if number % 2:
                keep = torch.arange(batch["tokens_BN"].shape[1]) < torch.tensor([[30]])
                batch["mask_BN"] = keep.expand(batch["tokens_BN"].shape).clone()
        return step

    monkeypatch.setattr(PretrainingSteps, "__getitem__", masked)


@pytest.mark.usefixtures("every_other_step_masked")
@pytest.mark.parametrize(
    ("attention", "dropout"),
    [
        pytest.param({}, 0.1, id="softmax"),
        pytest.param(NYSTROM, 0.0, id="nystrom, no dropout", marks=pytest.mark.slow),
        pytest.param(NYSTROM, 0.1, id="nystrom", marks=pytest.mark.slow),
    ],
)
def test_every_step_runs_what_was_compiled_before_the_first(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    paying: Counting,
    tmp_path: Path,
    dataset_folder: Path,
    attention: dict[str, Any],
    dropout: float,
) -> None:
    seen: list[tuple[int, int]] = []
    tried: list[int] = []
    step = Trainer._step

    def counted(trainer: Trainer, *args: Any) -> Tensor:
        before = paying.graphs, paying.calls
        tried.append(paying.graphs)
        norm = step(trainer, *args)
        seen.append((paying.graphs - before[0], paying.calls - before[1]))
        return norm

    monkeypatch.setattr(Trainer, "_step", counted)
    changes = {**SHORT, **attention, "model__num_layers": 2, "model__dropout_prob": dropout}
    with caplog.at_level(logging.INFO):
        pretrain(write_experiment(tmp_path, **changes), dataset_folder, CPU)
    assert "layers compiled in" in caplog.text
    # 2 micro-batches, 2 layers, forward and backward.
    assert seen == [(0, 8)] * 8
    assert paying.graphs == tried[0], "the validations compile nothing either"


@pytest.mark.usefixtures("paying")
def test_compiled_where_it_pays_it_is_the_same_training(tmp_path: Path, dataset_folder: Path) -> None:
    runs = tmp_path / "auto", tmp_path / "never"
    for run, choice in zip(runs, ("auto", False), strict=True):
        pretrain(write_experiment(run, **SHORT, model__compile=choice), dataset_folder, CPU)
    torch.testing.assert_close(*(weights(run, LAST) for run in runs), rtol=0, atol=1e-5)
    curves = [[r["loss"] for r in records(run, "train", "validation")] for run in runs]
    torch.testing.assert_close(torch.tensor(curves[0]), torch.tensor(curves[1]), rtol=0, atol=1e-4)


MISTAKES: dict[str, tuple[Any, str]] = {
    "forward": (backend(failing, failing), "no such instruction"),
    "backward": (backend(Counting(), failing), "no such instruction"),
    "at work": (backend(Counting(), failing_later), "misaligned address"),
    "wrong output": (backend(wrong, Counting()), "compute something else"),
    "wrong gradient": (backend(Counting(), wrong), "compute something else"),
    "no backend": ("a compiler that nobody knows", "Invalid backend"),
}


@pytest.mark.usefixtures("paying")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_compiler_that_fails_or_is_wrong_ends_no_run(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    dataset_folder: Path,
    plain: Path,
    name: str,
) -> None:
    compiler, reason = MISTAKES[name]
    monkeypatch.setattr(compiling, "_BACKEND", compiler)
    pretrain(write_experiment(tmp_path, **SHORT), dataset_folder, CPU)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    (said,) = [text for text in warnings if text.startswith("layers run uncompiled")]
    assert reason in said
    assert_same_weights(tmp_path, plain, LAST)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("auto", True), (False, "auto"), (True, "auto"), ("auto", False)])
def test_a_run_goes_on_with_another_choice(
    monkeypatch: pytest.MonkeyPatch,
    paying: Counting,
    tmp_path: Path,
    dataset_folder: Path,
    plain: Path,
    before: Any,
    after: Any,
) -> None:
    compile_module = nn.Module.compile

    def counted(module: nn.Module, **options: Any) -> None:
        compile_module(module, **options | {"backend": backend(paying, paying)})

    monkeypatch.setattr(nn.Module, "compile", counted)
    half = SHORT | {"pretraining_setting__epoch": 1, "pretraining_setting__warmup": 0.0}
    pretrain(write_experiment(tmp_path, **half, model__compile=before), dataset_folder, CPU)
    assert (paying.calls > 0) == (before is not False)
    calls = paying.calls
    pretrain(write_experiment(tmp_path, **SHORT, model__compile=after), dataset_folder, CPU)
    assert (paying.calls > calls) == (after is not False)
    assert weights(tmp_path, LAST).keys() == weights(plain, LAST).keys()


@pytest.mark.parametrize("name", ["right", "backward"])
def test_a_trial_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch, paying: Counting, dataset_folder: Path, name: str
) -> None:
    if name == "backward":
        monkeypatch.setattr(compiling, "_BACKEND", MISTAKES[name][0])
    config = small_config(model__attn_type="softmax", model__num_landmarks=None, model__num_layers=1)
    torch.manual_seed(3)
    model = PretrainingModel(config.model, ["mlm", "sop"])
    pretraining = Pretraining(model, config, open_dataset(dataset_folder), CPU)
    before, state = {n: x.clone() for n, x in model.state_dict().items()}, torch.get_rng_state()
    layers, steps = list(model.encoder.layers), pretraining.some_steps(0)
    stance = compiled_where_it_pays(layers, pretraining, config, CPU, Group(), steps, 100)
    assert stance == ("eager_on_recompile" if name == "right" else "force_eager")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert {module.p for module in model.modules() if isinstance(module, (Dropout, nn.Dropout))} == {0.1, 0.0}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_trial_on_a_gpu_leaves_its_memory(monkeypatch: pytest.MonkeyPatch, dataset_folder: Path) -> None:
    monkeypatch.setattr(compiled, "_WORTHWHILE", 0)
    config, device = small_config(), choose_device("cuda", False)
    model = PretrainingModel(config.model, ["mlm", "sop"]).to(device.device)
    pretraining = Pretraining(model, config, open_dataset(dataset_folder), device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.max_memory_allocated()
    layers, steps = list(model.encoder.layers), pretraining.some_steps(0)
    compiled_where_it_pays(layers, pretraining, config, device, Group(), steps, 100)
    # The libraries' workspaces stay; 64 MiB are more than these have.
    assert torch.cuda.max_memory_allocated() < before + 2**26


@pytest.mark.parametrize(
    ("part", "value", "reason"),
    [
        ("missing_compiler", lambda device: "found no C++ compiler", "found no C++ compiler"),
        ("_WORTHWHILE", 9, "does not pay off for 8 steps"),
    ],
)
def test_why_nothing_is_compiled_is_said(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    paying: Counting,
    tmp_path: Path,
    dataset_folder: Path,
    part: str,
    value: Any,
    reason: str,
) -> None:
    monkeypatch.setattr(compiled if part == "_WORTHWHILE" else compiling, part, value)
    with caplog.at_level(logging.INFO):
        pretrain(write_experiment(tmp_path, **SHORT), dataset_folder, CPU)
    assert caplog.text.count(reason) == 1
    assert paying.graphs == 0


def test_without_a_compiler_layers_that_were_to_be_compiled_run_as_they_are(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    dataset_folder: Path,
    plain: Path,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with caplog.at_level(logging.INFO):
        pretrain(write_experiment(tmp_path / "run", **SHORT, model__compile=True), dataset_folder, CPU)
    assert "found no C++ compiler" in caplog.text
    assert_same_weights(tmp_path / "run", plain, LAST)


@pytest.mark.slow
@pytest.mark.skipif(compiling.missing_compiler(CPU.device) is not None, reason="no C++ compiler here")
def test_compiled_training_is_the_same_training(tmp_path: Path, dataset_folder: Path) -> None:
    runs = tmp_path / "compiled", tmp_path / "plain"
    for run, choice in zip(runs, (True, False), strict=True):
        pretrain(write_experiment(run, **(SHORT | NYSTROM), model__compile=choice), dataset_folder, CPU)
    curves = [[(r["loss"], r["gradient_norm"]) for r in records(run, "train")] for run in runs]
    torch.testing.assert_close(torch.tensor(curves[0]), torch.tensor(curves[1]), rtol=0, atol=1e-4)
    one, other = (weights(run, LAST) for run in runs)
    assert one.keys() == other.keys(), "either goes on from the other's checkpoint"


def test_finetuning_compiles_nothing_by_itself(paying: Counting, tmp_path: Path, dataset_folder: Path) -> None:
    experiment = pretrained(tmp_path / "pretrained", dataset_folder, model__compile=False)
    copy = copy_of(experiment.folder, tmp_path / "copy", "model.compile=auto")
    finetune(copy, Glue(find_tasks("SST-2")[0], write_sst2(tmp_path / "glue")), sweep(epochs=1), CPU)
    assert paying.graphs == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("attention", [{}, NYSTROM], ids=["softmax", "nystrom"])
@pytest.mark.parametrize("precision", [False, "bf16", "fp16"], ids=["float32", "bf16", "fp16"])
def test_on_a_gpu_auto_compiles_and_the_curve_is_the_same(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    dataset_folder: Path,
    precision: bool | str,
    attention: dict[str, Any],
) -> None:
    monkeypatch.setattr(compiled, "_WORTHWHILE", 0)
    device, curves, step = choose_device("cuda", precision), [], Trainer._step

    def strict(trainer: Trainer, *args: Any) -> Tensor:
        with torch.compiler.set_stance("fail_on_recompile"):
            return step(trainer, *args)

    with caplog.at_level(logging.INFO):
        for choice in ("auto", False):
            monkeypatch.setattr(Trainer, "_step", strict if choice == "auto" else step)
            folder = tmp_path / str(choice)
            pretrain(write_experiment(folder, **(SHORT | attention), model__compile=choice), dataset_folder, device)
            curves.append([r["loss"] for r in records(folder, "train")])
    assert "layers compiled in" in caplog.text
    torch.testing.assert_close(torch.tensor(curves[0]), torch.tensor(curves[1]), rtol=0.02, atol=0)
