"""What the sections accept, resolve and refuse."""

from typing import Any

import pytest
from pydantic import ValidationError

from nystromformer.config import ModelConfig, NystromConfig, SoftmaxConfig, experiment_config
from nystromformer.errors import UserError

Data = dict[str, Any]


def set_value(data: Data, path: str, value: object) -> Data:
    *sections, key = path.split(".")
    node = data
    for section in sections:
        node = node[section]
    node[key] = value
    return data


def problems(data: object) -> list[str]:
    with pytest.raises(UserError) as caught:
        experiment_config(data, "here")
    first, *rest = str(caught.value).splitlines()
    assert first.startswith("here: ")
    return [line.removeprefix("  ") for line in rest]


def test_defaults_are_the_authors(valid: Data) -> None:
    config = experiment_config(valid, "here")
    model, setting = config.model, config.pretraining_setting
    assert (model.mixed_precision, model.dropout_prob, model.num_sen_type) == (True, 0.1, 1)
    assert model.compile is False
    assert (model.norm, model.activation, model.layer_norm_eps) == ("post", "gelu_tanh", 1e-5)
    assert (model.positions, model.position_offset) == ("learned", 2)
    assert (model.embedding_norm, model.pooling) == (True, "first")
    assert (setting.objectives, setting.mask_prob, setting.weight_decay) == (("mlm",), 0.15, 0.01)
    assert (setting.adam_beta1, setting.adam_beta2, setting.adam_eps) == (0.9, 0.999, 1e-6)
    assert (setting.max_grad_norm, setting.seed, setting.keep_checkpoints) == (1.0, 0, 2)
    assert (setting.minutes_per_checkpoint, setting.batches_per_report, setting.keep_epochs) == (10, 10, None)
    assert (config.model_checkpoints, config.data_folder) == ("/model/model", "/dataset")
    assert (config.glue_dataset_folder, config.wikihop_dataset_folder) == ("/glue", "/wikihop")
    assert (config.from_cp, config.from_cp_resize) == (None, "lossless")


def test_steps(valid: Data) -> None:
    setting = experiment_config(set_value(valid, "pretraining_setting.warmup", 0.25), "here").pretraining_setting
    assert (setting.num_steps, setting.warmup_steps) == (15, 4)


class TestAttentions:
    def resolve(self, valid: Data, **model: object) -> tuple[object, ...]:
        valid["model"].update(model)
        return experiment_config(valid, "here").model.attentions

    def test_name_with_flat_defaults(self, valid: Data) -> None:
        layers = self.resolve(valid, attn_type="nystrom", num_landmarks=8, conv_kernel_size=5)
        assert layers == (NystromConfig(num_landmarks=8, conv_kernel_size=5),) * 2

    def test_object_keeps_its_own_and_takes_the_rest(self, valid: Data) -> None:
        own = {"name": "nystrom", "num_landmarks": 4, "pinv_iterations": 3}
        layers = self.resolve(valid, attn_type=own, conv_kernel_size=5)
        assert layers == (NystromConfig(num_landmarks=4, pinv_iterations=3, conv_kernel_size=5),) * 2

    def test_list_has_an_item_a_layer(self, valid: Data) -> None:
        items = ["softmax", {"name": "nystrom", "conv_kernel_size": None}]
        layers = self.resolve(valid, attn_type=items, num_landmarks=8, conv_kernel_size=5)
        assert layers == (SoftmaxConfig(conv_kernel_size=5), NystromConfig(num_landmarks=8, conv_kernel_size=None))

    def test_own_value_equal_to_the_attentions_default_beats_the_flat_one(self, valid: Data) -> None:
        items = [{"name": "nystrom", "num_landmarks": 64}, "nystrom"]
        layers = self.resolve(valid, attn_type=items, num_landmarks=8, max_seq_len=128)
        assert [layer.num_landmarks for layer in layers] == [64, 8]  # type: ignore[attr-defined]

    def test_python_objects_serve_as_well(self, valid: Data) -> None:
        model = ModelConfig(**{**valid["model"], "attn_type": (NystromConfig(num_landmarks=4), "softmax")})
        assert model.attentions == (NystromConfig(num_landmarks=4), SoftmaxConfig())

    def test_configs_are_equal_only_if_they_mean_the_same(self, valid: Data) -> None:
        valid["model"].update(num_landmarks=8, max_seq_len=128)
        one = ModelConfig(**{**valid["model"], "attn_type": [{"name": "nystrom"}, "nystrom"]})
        other = ModelConfig(**{**valid["model"], "attn_type": [{"name": "nystrom", "num_landmarks": 64}, "nystrom"]})
        assert one != other


@pytest.mark.parametrize("value", [0, -1, 10**9 + 1, 64.0, "64", True, None, [], float("nan")], ids=repr)
@pytest.mark.parametrize("path", ["model.vocab_size", "model.num_layers", "pretraining_setting.epoch"])
def test_sizes_are_positive_integers(valid: Data, path: str, value: object) -> None:
    (problem,) = problems(set_value(valid, path, value))
    assert problem.startswith(f"{path}: expected "), problem


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("model.mixed_precision", [1, "bf8", None]),
        ("model.compile", [1, "auto", None]),
        ("model.dropout_prob", [1, 0.999, -0.1, True, "0.1", NAN, INF]),
        ("model.layer_norm_eps", [0, 1e30]),
        ("model.position_offset", [-1, 2.0]),
        ("model.positions", ["sinusoidal", None]),
        ("model.conv_kernel_size", [32, -1, "33", 10**6 + 1]),
        ("model.attn_type", [5, None, ""]),
        ("pretraining_setting.learning_rate", [0, NAN, INF, "1e-4", 11]),
        ("pretraining_setting.warmup", [-0.1, 1.1]),
        ("pretraining_setting.seed", [-1, 2**63]),
        ("pretraining_setting.minutes_per_checkpoint", [0, 1e300, None]),
        ("pretraining_setting.objectives", [["sop"], ["mlm", "mlm"], "mlm"]),
        ("data_folder", ["", None, 3]),
        ("from_cp_resize", [True, "exact"]),
        ("model", [[], None]),
    ],
)
def test_wrong_values_are_refused_with_what_was_found(valid: Data, path: str, values: list[object]) -> None:
    for value in values:
        (problem,) = problems(set_value(valid, path, value))
        assert problem.startswith(path), problem
        assert ", found " in problem


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.mixed_precision", "bf16"),
        ("model.dropout_prob", 0.95),
        ("model.conv_kernel_size", 1),
        ("pretraining_setting.learning_rate", 1),
        ("pretraining_setting.learning_rate", 1e-12),
        ("pretraining_setting.epoch", 10**9),
        ("pretraining_setting.warmup", 1),
        ("pretraining_setting.max_grad_norm", None),
        ("pretraining_setting.seed", 2**63 - 1),
        ("pretraining_setting.objectives", ["sop", "mlm"]),
        ("from_cp", "../nystrom-512/model/cp-0099.model"),
        ("$schema", "config.schema.json"),
    ],
)
def test_values_on_the_border_are_taken(valid: Data, path: str, value: object) -> None:
    experiment_config(set_value(valid, path, value), "here")


class TestImpossible:
    def check(self, valid: Data, expected: str, **model: object) -> None:
        valid["model"].update(model)
        (problem,) = problems(valid)
        assert problem.startswith(expected), problem

    def test_heads(self, valid: Data) -> None:
        expected = "model.transformer_dim: expected num_head x head_dim = 3 x 5 = 15, found 12"
        self.check(valid, expected, head_dim=5)

    def test_list_of_the_wrong_length(self, valid: Data) -> None:
        expected = "model.attn_type: expected 2 items, one for each of the num_layers, found "
        self.check(valid, f"{expected}3", attn_type=["softmax"] * 3)
        self.check(valid, f"{expected}0", attn_type=[], conv_kernel_size=3)

    @pytest.mark.parametrize("landmarks", [32, 33])
    def test_as_many_landmarks_as_tokens(self, valid: Data, landmarks: int) -> None:
        text = f"expected fewer landmarks than max_seq_len = 32, found {landmarks}"
        self.check(valid, f"model.num_landmarks: {text}", attn_type="nystrom", num_landmarks=landmarks)
        valid["model"].pop("num_landmarks")
        own = {"name": "nystrom", "num_landmarks": landmarks}
        self.check(valid, f"model.attn_type.num_landmarks: {text}", attn_type=own)
        self.check(valid, f"model.attn_type[1].num_landmarks: {text}", attn_type=["softmax", own])

    def test_more_landmarks_than_tokens_by_default(self, valid: Data) -> None:
        text = "expected fewer landmarks than max_seq_len = 32, found 64"
        self.check(valid, f"model.attn_type: {text}", attn_type="nystrom")
        self.check(valid, f"model.attn_type[0]: {text}", attn_type=["nystrom", "softmax"])

    def test_flat_default_that_no_layer_has(self, valid: Data) -> None:
        expected = "model.num_landmarks: no layer uses it: attn_type is softmax, which has no num_landmarks"
        self.check(valid, expected, num_landmarks=8)

    @pytest.mark.parametrize("key", ["num_landmarks", "conv_kernel_size"])
    def test_flat_default_that_every_layer_overrules(self, valid: Data, key: str) -> None:
        own = {"name": "nystrom", "num_landmarks": 4, "conv_kernel_size": 3}
        expected = f"model.{key}: no layer uses it: each layer that has {key} sets its own"
        self.check(valid, expected, attn_type=own, **{key: 9})

    def test_batch_that_is_no_multiple_of_what_a_device_takes(self, valid: Data) -> None:
        valid["gpu_setting"]["inst_per_gpu"] = 3
        expected = "pretraining_setting.batch_size: expected a multiple of gpu_setting.inst_per_gpu = 3, found 8"
        assert problems(valid) == [expected]

    @pytest.mark.parametrize(
        ("setting", "expected"),
        [
            ({"decay": 0.5}, 'decay: expected schedule "wsd" with it'),
            ({"schedule": "wsd", "warmup": 0.8, "decay": 0.5}, "decay: expected at most 1 together with warmup = 0.8"),
            ({"batch_size_start": 4}, "batch_growth_tokens: missing"),
            (
                {"batch_size_start": 8, "batch_growth_tokens": 9},
                "batch_size_start: expected a smaller number that",
            ),
            ({"mask_replace_prob": 0.9, "random_replace_prob": 0.2}, "random_replace_prob: expected at most 1"),
            ({"mask_replace_prob": 0, "random_replace_prob": 0}, "mask_replace_prob: expected mask_replace_prob or"),
        ],
        ids=str,
    )
    def test_schedules_batches_and_masks(self, valid: Data, setting: Data, expected: str) -> None:
        valid["pretraining_setting"].update(setting)
        (problem,) = problems(valid)
        assert problem.startswith(f"pretraining_setting.{expected}"), problem

    def test_all_at_once(self, valid: Data) -> None:
        valid["model"].update(head_dim=5, attn_type=["softmax"], num_landmarks=8)
        valid["pretraining_setting"]["seed"] = -1
        assert [problem.split(":")[0] for problem in problems(valid)] == [
            "model.transformer_dim",
            "model.attn_type",
            "model.num_landmarks",
            "pretraining_setting.seed",
        ]


def test_configs_are_frozen(valid: Data) -> None:
    config = experiment_config(valid, "here")
    with pytest.raises(ValidationError):
        config.model.num_layers = 3
    assert hash(config) == hash(experiment_config(valid, "there"))
