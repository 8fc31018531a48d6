"""What the sections accept, resolve and refuse."""

from typing import Any

import pytest
from pydantic import ValidationError

from nystromformer.config import AttentionConfig, ModelConfig, NystromConfig, SoftmaxConfig, experiment_config
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
    config = experiment_config(set_value(valid, "pretraining_setting.warmup", 0.25), "here")
    model, setting = config.model.model_dump(), config.pretraining_setting.model_dump()
    expected = {"mixed_precision": True, "dropout_prob": 0.1, "num_sen_type": 1, "compile": False, "norm": "post"}
    expected |= {"activation": "gelu_tanh", "layer_norm_eps": 1e-5, "positions": "learned", "position_offset": 2}
    expected |= {"embedding_norm": True, "pooling": "first"}
    assert {key: model[key] for key in expected} == expected
    expected = {"objectives": ("mlm",), "mask_prob": 0.15, "weight_decay": 0.01, "adam_beta1": 0.9}
    expected |= {"adam_beta2": 0.999, "adam_eps": 1e-6, "max_grad_norm": 1.0, "seed": 0}
    assert {key: setting[key] for key in expected} == expected
    folders = ("/model/model", "/dataset", "/glue")
    assert (config.model_checkpoints, config.data_folder, config.glue_dataset_folder) == folders
    assert (config.from_cp, config.from_cp_resize) == (None, "lossless")
    assert (config.pretraining_setting.num_steps, config.pretraining_setting.warmup_steps) == (15, 4)
    assert hash(config) == hash(experiment_config(valid, "there"))
    with pytest.raises(ValidationError):
        config.model.num_layers = 3


OWN = {"name": "nystrom", "num_landmarks": 64}


@pytest.mark.parametrize(
    ("attn_type", "flat", "layers"),
    [
        ("nystrom", {"num_landmarks": 8}, [NystromConfig(num_landmarks=8)] * 2),
        (OWN, {"conv_kernel_size": 5}, [NystromConfig(num_landmarks=64, conv_kernel_size=5)] * 2),
        (
            ["softmax", {"name": "nystrom", "conv_kernel_size": None}],
            {"num_landmarks": 8, "conv_kernel_size": 5},
            [SoftmaxConfig(conv_kernel_size=5), NystromConfig(num_landmarks=8, conv_kernel_size=None)],
        ),
        ([OWN, "nystrom"], {"num_landmarks": 8}, [NystromConfig(num_landmarks=64), NystromConfig(num_landmarks=8)]),
        ((NystromConfig(num_landmarks=4), "softmax"), {}, [NystromConfig(num_landmarks=4), SoftmaxConfig()]),
    ],
    ids=str,
)
def test_each_layer_takes_its_own_parameters_and_the_flat_ones(
    valid: Data, attn_type: object, flat: Data, layers: list[AttentionConfig]
) -> None:
    valid["model"].update(attn_type=attn_type, max_seq_len=128, **flat)
    assert ModelConfig(**valid["model"]).attentions == tuple(layers)


@pytest.mark.parametrize("value", [0, -1, 10**9 + 1, 64.0, "64", True, None, [], float("nan")], ids=repr)
@pytest.mark.parametrize("path", ["model.vocab_size", "model.num_layers", "pretraining_setting.epoch"])
def test_sizes_are_positive_integers(valid: Data, path: str, value: object) -> None:
    (problem,) = problems(set_value(valid, path, value))
    assert problem.startswith(f"{path}: expected "), problem


@pytest.mark.parametrize(
    ("path", "wrong", "right"),
    [
        ("model.mixed_precision", ["bf8", None], ["bf16", True]),
        ("model.compile", [1, "auto", None], [True]),
        ("model.dropout_prob", [1, 0.999, -0.1, True, "0.1", float("inf")], [0, 0.95]),
        ("model.conv_kernel_size", [32, -1, "33", 10**6 + 1], [1, None]),
        ("model.attn_type", [5, None, ""], ["linear"]),
        ("pretraining_setting.learning_rate", [0, "1e-4", 11], [1, 1e-12]),
        ("pretraining_setting.seed", [-1, 2**63], [2**63 - 1]),
        ("pretraining_setting.objectives", [["sop"], ["mlm", "mlm"], "mlm"], [["sop", "mlm"]]),
        ("pretraining_setting.max_grad_norm", [0, "1"], [None]),
        ("data_folder", ["", None, 3], ["../data"]),
        ("from_cp_resize", [True, "exact"], ["lossy"]),
        ("$schema", [1], ["config.schema.json"]),
        ("model", [[], None], []),
    ],
)
def test_values_are_taken_or_refused_with_what_was_found(
    valid: Data, path: str, wrong: list[object], right: list[object]
) -> None:
    for value in wrong:
        (problem,) = problems(set_value(valid, path, value))
        assert problem.startswith(path), problem
        assert ", found " in problem
    for value in right:
        experiment_config(set_value(valid, path, value), "here")


NETWORK = {"norm": "pre", "reversible": True}
NYSTROM = {"name": "nystrom", "num_landmarks": 33}
FEWER = "expected fewer landmarks than max_seq_len = 32, found"
ITEMS = "model.attn_type: expected 2 items, one for each of the num_layers, found"


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"head_dim": 5}, "model.transformer_dim: expected num_head x head_dim = 3 x 5 = 15, found 12"),
        (
            {"positions": "rotary", "head_dim": 5, "transformer_dim": 15},
            'model.head_dim: expected an even number with positions "rotary"',
        ),
        ({"attn_type": ["softmax"] * 3}, f"{ITEMS} 3"),
        ({"attn_type": [], "conv_kernel_size": 3}, f"{ITEMS} 0"),
        ({"attn_type": "nystrom"}, f"model.attn_type: {FEWER} 64"),
        ({"attn_type": ["nystrom", "softmax"]}, f"model.attn_type[0]: {FEWER} 64"),
        ({"attn_type": "nystrom", "num_landmarks": 32}, f"model.num_landmarks: {FEWER} 32"),
        ({"attn_type": NYSTROM}, f"model.attn_type.num_landmarks: {FEWER} 33"),
        ({"attn_type": ["softmax", NYSTROM]}, f"model.attn_type[1].num_landmarks: {FEWER} 33"),
        (
            {"num_landmarks": 8},
            "model.num_landmarks: no layer uses it: attn_type is softmax, which has no num_",
        ),
        (
            {"attn_type": {"name": "softmax", "conv_kernel_size": 3}, "conv_kernel_size": 9},
            "model.conv_kernel_size: no layer uses it: each layer that has it sets its own",
        ),
        ({"attn_type": "longformer,window=4"}, "model.attn_type: expected 'bigbird'"),
        ({"reversible": True}, 'model.reversible: expected norm "pre" with it, found "post"'),
        (NETWORK | {"compile": True}, "model.compile: cannot be combined with reversible layers"),
        (NETWORK | {"gelu_grad_checkpointing": True}, "model.gelu_grad_checkpointing: reversible layers are already"),
        ({"skip_first_prenorm": True}, 'model.skip_first_prenorm: expected norm "pre" and embedding_norm true with it'),
        (
            {"head_transform": False, "embedding_dim": 8},
            "model.head_transform: expected embedding_dim = ",
        ),
        ({"rope_theta": 5.0}, 'model.rope_theta: expected positions "rotary" with it'),
        ({"positions": "rotary", "position_offset": 0}, "model.position_offset: expected nothing or 2, the default"),
        ({"positions": "rotary", "rope_theta_local": 5.0}, "model.rope_theta_local: no layer uses it"),
        ({"positions": "rotary", "attn_type": "synthesizer"}, 'model.positions: expected "learned", found "rotary"'),
        ({"decay": 0.5}, 'decay: expected schedule "wsd" with it'),
        ({"schedule": "wsd", "warmup": 0.8, "decay": 0.5}, "decay: expected at most 1 together with warmup = 0.8"),
        ({"batch_size_start": 4}, "batch_growth_tokens: missing"),
        ({"batch_size_start": 8, "batch_growth_tokens": 9}, "batch_size_start: expected a smaller number that"),
        ({"mask_replace_prob": 0.9, "random_replace_prob": 0.2}, "random_replace_prob: expected at most 1"),
        ({"mask_replace_prob": 0, "random_replace_prob": 0}, "mask_replace_prob: expected mask_replace_prob or"),
        ({"batch_size": 9}, "batch_size: expected a multiple of gpu_setting.inst_per_gpu = 4, found 9"),
    ],
    ids=str,
)
def test_values_that_cannot_be_combined(valid: Data, section: Data, expected: str) -> None:
    name = "model" if expected.startswith("model.") else "pretraining_setting"
    valid[name].update(section)
    (problem,) = problems(valid)
    assert problem.removeprefix("pretraining_setting.").startswith(expected), problem
