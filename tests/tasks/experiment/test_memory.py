"""What a model would take, against what there is."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from attention_cases import CASES
from small import CPU, SHIPPED, small_config, small_data, write_dataset, write_experiment

from nystromformer import resources
from nystromformer.config import ExperimentConfig, load_config
from nystromformer.config.size import encoder_weights
from nystromformer.errors import UserError
from nystromformer.model import Encoder, count_parameters
from nystromformer.tasks.experiment import checks
from nystromformer.tasks.experiment.checks import check_room_to_compute, check_room_to_train
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.experiment.opening import open_pretraining
from nystromformer.tasks.finetuning.start import finetuning_config
from nystromformer.training import Group

ALONE = {"model__num_landmarks": None, "model__conv_kernel_size": None}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"model__embedding_dim": 24},
    {"model__norm": "pre", "model__embedding_norm": False, "model__position_offset": 0},
    {"model__attn_type": ["softmax", {"name": "nystrom", "conv_kernel_size": 3}]},
    {"model__conv_kernel_size": None, "model__num_sen_type": 5},
    {
        "model__attn_type": {"name": "linformer", "projected_length": 5, "sharing": "model"},
        "model__num_landmarks": None,
    },
    {"model__positions": "rotary", "model__embedding_dim": 24},
    *({"model__attn_type": {"name": case.name, **case.parameters}} | ALONE for case in CASES),
]


def counted(config: ExperimentConfig) -> int:
    with torch.device("meta"):
        return count_parameters(Encoder(config.model))


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_the_weights_are_counted_exactly(changes: dict[str, Any]) -> None:
    config = small_config(**changes)
    assert sum(encoder_weights(config.model).values()) == counted(config)


@pytest.mark.parametrize("path", SHIPPED.values(), ids=lambda path: path.parent.name)
def test_those_of_shipped_experiments_too(path: Path) -> None:
    config = load_config(path)
    assert sum(encoder_weights(config.model).values()) == counted(config)


def allowed(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    monkeypatch.setattr(checks, "free_memory", lambda device=None, swap=False: size)


def test_what_fits_exactly_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config()
    weights = 4 * counted(config)
    allowed(monkeypatch, weights)
    check_room_to_compute(Path("config.json"), config.model, CPU.device)
    allowed(monkeypatch, 4 * weights + 8)
    check_room_to_train(Path("config.json"), config.model, CPU.device, 1, 1, batch=1)
    allowed(monkeypatch, 4 * weights - 1)
    with pytest.raises(UserError, match=r"config\.json: training this model takes at least .* layers with gradients"):
        check_room_to_train(Path("config.json"), config.model, CPU.device, 1, 1, batch=1)


def test_activations_count_instead_of_the_gradients_that_come_as_they_go(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config()
    weights, activations = 4 * counted(config), 2 * 1000 * 32 * 16 * 4
    assert activations > weights
    allowed(monkeypatch, 3 * weights + activations)
    check_room_to_train(Path("config.json"), config.model, CPU.device, 1000, 32)
    allowed(monkeypatch, 3 * weights + activations - 1)
    with pytest.raises(UserError, match=r"activations of 1,000 rows of 32 tokens 3\.9 MiB\), and .* are available on"):
        check_room_to_train(Path("config.json"), config.model, CPU.device, 1000, 32)


def test_processes_of_a_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config()
    allowed(monkeypatch, 4 * counted(config))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UserError, match="this model in 2 processes takes"):
        check_room_to_compute(Path("config.json"), config.model, CPU.device)


LARGE: list[dict[str, Any]] = [
    {"model__vocab_size": 10**9},
    {"model__max_seq_len": 10**9},
    {"model__num_sen_type": 10**9},
    {"model__transformer_hidden_dim": 10**9},
    {"model__embedding_dim": 10**9},
    {"model__num_head": 10**6, "model__transformer_dim": 8 * 10**6},
    {"model__num_layers": 10_000, "model__num_head": 500, "model__transformer_dim": 4000},
    {"pretraining_setting__batch_size": 10**9, "gpu_setting__inst_per_gpu": 10**9},
    {"pretraining_setting__batch_size": 10**9, "gpu_setting__inst_per_gpu": 1},
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


@pytest.mark.parametrize("changes", LARGE, ids=str)
def test_what_cannot_fit_is_refused_before_there_is_any_of_it(
    changes: dict[str, Any], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed(monkeypatch, 8 * 2**30)
    experiment = write_experiment(tmp_path / "run", **changes)
    with ExitStack() as held, pytest.raises(UserError, match=r"at least [\d,.]+ GiB of memory .* and 8\.0 GiB are"):
        open_pretraining(experiment, data, CPU, False, Group(), held)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.json"]


def test_longer_rows_for_finetuning_are_answered_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = write_experiment(tmp_path)
    config = finetuning_config(experiment, 10**9, 300)
    allowed(monkeypatch, 8 * 2**30)
    with pytest.raises(UserError, match=r"position embeddings with gradients and Adam's two moments 238\.4 GiB"):
        check_room_to_train(experiment.config_file, config.model, CPU.device, 1, 1)


def test_a_length_that_fixed_segments_take_is_computed(tmp_path: Path) -> None:
    fixed = [{"name": "nystrom", "segments": "padded", "num_landmarks": count} for count in (8, 16)]
    small = write_experiment(tmp_path, model__attn_type=fixed, model__num_landmarks=None)
    with pytest.raises(UserError, match=r"does not accept rows of 1 token: .* \(such as --pad_to 1000000000\)"):
        finetuning_config(small, 10**9 - 3, 300)


def test_free_memory_of_a_limited_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resources.resource, "getrlimit", lambda kind: (2**30, -1))
    assert resources.free_memory(root=tmp_path) == 2**30
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/statm").write_text("100 1 1")
    assert resources.free_memory(root=tmp_path) == 2**30 - 100 * resources.resource.getpagesize()


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "x/" * 3000], ids=["NUL", "long name", "long path"])
def test_a_folder_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    data = small_data() | {"model_checkpoints": name}
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(UserError, match="model_checkpoints: expected a path"):
        open_experiment(tmp_path)


def test_processes_are_bounded_by_the_cores() -> None:
    most = 16 * resources.usable_cores()
    resources.check_processes("--workers", most)
    with pytest.raises(UserError, match=f"--workers {most + 1}: expected at most {most}, 16 for each of the"):
        resources.check_processes("--workers", most + 1)
