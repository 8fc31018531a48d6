"""Reading config.json: bad files, all errors at once, overrides."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nystromformer.config import ATTENTIONS, NystromConfig, experiment_config, load_config
from nystromformer.config.attention_text import attention_overrides, parse_attention
from nystromformer.errors import UserError

Data = dict[str, Any]
WriteConfig = Callable[[object], Path]


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load_config(path, overrides)
    message = str(caught.value)
    assert message.startswith(str(path)), message
    return message


def problems(path: Path, *overrides: str) -> list[str]:
    return [line.removeprefix("  ") for line in refusal(path, *overrides).splitlines()[1:]]


def test_reads_what_was_written(valid: Data, write_config: WriteConfig) -> None:
    config = experiment_config(valid, "here")
    assert load_config(write_config(valid)) == config
    assert load_config(write_config("\ufeff" + json.dumps(valid))) == config, "a byte order mark is no mistake"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"model_type": "bert", "hidden_size": 768}, "first import it with run_export.py import"),
        (b'{\n"data_folder": "\xfc"}', "not JSON: 'utf-8' codec can't decode byte 0xfc in position 18"),
        ("", "not JSON: Expecting value: line 1 column 1"),
        ('{\n  "model": 1\n  "a": 2}', "not JSON: Expecting ',' delimiter: line 3 column 3"),
        ("[1]", "expected an object {...}, found [1]"),
    ],
)
def test_files_that_are_none(write_config: WriteConfig, content: object, expected: str) -> None:
    assert expected in refusal(write_config(content))


def test_no_file_no_folder_and_the_nearest_name(tmp_path: Path) -> None:
    message = refusal(tmp_path / "config.json")
    assert "no such file" in message
    assert "copy a config.json, such as nystrom-512's" in message
    for folder, expected in (
        ("nystrom-smal-conv", "nystrom-smal-conv: no such folder; did you mean nystrom-small-conv?"),
        ("else/where", "else/where: no such folder; expected an experiment folder with config.json"),
        ("/model", "/model: no such folder; outside of a container name the experiment's folder: --model FOLDER"),
    ):
        with pytest.raises(UserError) as caught:
            load_config(Path(folder) / "config.json")
        assert str(caught.value) == expected


def test_duplicates_at_any_depth_with_their_values(valid: Data, write_config: WriteConfig) -> None:
    text = json.dumps(valid)
    text = text.replace('"epoch": 3', '"epoch": 3, "epoch": 4')
    text = text.replace('"softmax"', '["softmax", {"name": "softmax", "name": "nystrom", "num_landmarks": 8}]')
    text = text[:-1] + ', "data_folder": "/a", "data_folder": "/a", "data_folder": "/b"}'
    assert problems(write_config(text)) == [
        'data_folder: given 3 times ("/a", "/a", "/b"); keep one',
        'model.attn_type[1].name: given 2 times ("softmax", "nystrom"); keep one',
        "pretraining_setting.epoch: given 2 times (3, 4); keep one",
    ]


NAMES = [f"'{name}'" for name in ATTENTIONS]


def test_all_mistakes_at_once_with_paths_that_the_file_has(valid: Data, write_config: WriteConfig) -> None:
    valid["model"].update(num_head="3", layers=2, num_layer=2)
    valid["model"]["attn_type"] = [
        {"name": "nystrom", "num_landmark": 3, "pinv_iterations": 0},
        {"name": "Nystrom"},
        {"num_landmarks": 3},
        5,
        "softmx",
        {"name": "softmax", "num_landmarks": 3},
        {"name": "nystrom", "ignore_mask": True},
    ]
    valid["pretraining_setting"]["objectives"] = ["mlm", "spo"]
    valid["gpu_setting"] = {"inst_per_gpu": 0, "zzz": 2}
    del valid["model"]["vocab_size"], valid["pretraining_setting"]["epoch"]
    assert problems(write_config(valid), "pretraining_setting.epochs=3") == [
        "model.vocab_size: missing",
        'model.num_head: expected a valid integer, found "3"',
        "model.attn_type[0].pinv_iterations: expected greater than or equal to 1, found 0",
        "model.attn_type[0].num_landmark: unknown key; did you mean num_landmarks?",
        f'model.attn_type[1].name: expected {", ".join(NAMES)}, found "Nystrom"; did you mean nystrom?',
        "model.attn_type[2].name: missing",
        'model.attn_type[3]: expected the name of an attention or an object {"name": ..., its parameters}, found 5',
        f'model.attn_type[4]: expected {", ".join(NAMES[:-1])} or {NAMES[-1]}, found "softmx"; did you mean softmax?',
        "model.attn_type[5].num_landmarks: unknown key; valid ones: name, conv_kernel_size, ignore_mask",
        'model.attn_type[6].segments: expected "padded" with ignore_mask = true, found "valid": if padding counts like '
        "any token, segments cannot depend on the mask",
        "model.layers: unknown key; did you mean num_layers?",
        "model.num_layer: unknown key; did you mean num_layers?",
        "pretraining_setting.objectives[1]: expected 'mlm' or 'sop', found \"spo\"",
        "pretraining_setting.epoch: missing",
        "pretraining_setting.epochs: unknown key; did you mean epoch?",
        "gpu_setting.inst_per_gpu: expected greater than or equal to 1, found 0",
        "gpu_setting.zzz: unknown key; valid ones: inst_per_gpu",
    ]


def test_overrides_are_json_attentions_or_plain_strings(valid: Data, write_config: WriteConfig) -> None:
    overrides = [
        "model.attn_type=nystrom,num_landmarks=8,landmarks=strided",
        "model.embedding_norm=false",
        "pretraining_setting.learning_rate=2e-4",
        'pretraining_setting.objectives=["mlm", "sop"]',
        "data_folder=/a=b,c=d",
        "from_cp=null",
    ]
    config = load_config(write_config(valid), overrides)
    assert config.model.attentions == (NystromConfig(num_landmarks=8, landmarks="strided"),) * 2
    assert config.model.embedding_norm is False
    assert config.pretraining_setting.learning_rate == 2e-4
    assert config.pretraining_setting.objectives == ("mlm", "sop")
    assert (config.data_folder, config.from_cp) == ("/a=b,c=d", None)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.num_layers", '--set "model.num_layers": expected section.key=value'),
        ("=3", '--set "=3": expected section.key=value'),
        ("model.num_layer=3", "model.num_layer: unknown key; did you mean num_layers?"),
        ("modle.num_layers=3", "modle: unknown key; did you mean model?"),
        ("model.num_layers=3x", 'model.num_layers: expected a valid integer, found "3x"'),
        ("model.dropout_prob=NaN", "model.dropout_prob: expected a finite number, found NaN"),
        ("model.attn_type.name=nystrom", 'cannot be overridden: model.attn_type is "softmax"'),
        ("model.attn_type[0]=local", "expected section.key=value"),
        ('model.attn_type={"name": "softmax", "name": "nystrom"}', "model.attn_type.name: given 2 times"),
        ("model.attn_type=nystrom,num_landmark=8", "model.attn_type.num_landmark: unknown key; did you mean"),
    ],
)
def test_mistakes_in_overrides(valid: Data, write_config: WriteConfig, override: str, expected: str) -> None:
    message = refusal(write_config(valid), override)
    assert expected in message
    # The file alone is right: the message must show where the value came from.
    assert json.dumps(override) in message.splitlines()[0]


def test_one_key_overridden_twice(valid: Data, write_config: WriteConfig) -> None:
    said = problems(write_config(valid), "model.num_layers=2", "model.num_layers=3")
    assert said == ["model.num_layers: overridden twice; keep one"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nystrm", "did you mean nystrom?"),
        ("nystrom,num_landmarks", "expected NAME,KEY=VALUE,…"),
        ("nystrom,num_landmarks=8,num_landmarks=9", "num_landmarks: given 2 times (8, 9); keep one"),
        ("nystrom,name=softmax", "expected NAME,KEY=VALUE,…"),
        ('{"num_landmarks": 8}', 'or {"name": …} with an attention and its parameters'),
    ],
)
def test_mistakes_in_attentions_of_flags(text: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_attention(text)
    assert str(caught.value).startswith(f"--attention {text}: ")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("model", "text", "layer"),
    [
        ({"attn_type": "nystrom", "num_landmarks": 8}, "softmax", {"name": "softmax"}),
        (
            {"attn_type": "nystrom", "num_landmarks": 8, "conv_kernel_size": 3},
            "nystrom,num_landmarks=4",
            {"name": "nystrom", "num_landmarks": 4, "conv_kernel_size": 3},
        ),
        (
            {"attn_type": {"name": "nystrom", "pinv_iterations": 3}, "num_landmarks": 8},
            "nystrom",
            {"name": "nystrom", "num_landmarks": 8, "pinv_iterations": 3},
        ),
        ({"attn_type": ["softmax", "linear"], "conv_kernel_size": 3}, "linear", {"name": "linear"}),
        ({}, '{"name": "nystrom", "num_landmarks": 8}', {"name": "nystrom", "num_landmarks": 8}),
    ],
    ids=str,
)
def test_one_flag_gives_all_layers_an_attention(
    valid: Data, write_config: WriteConfig, model: Data, text: str, layer: Data
) -> None:
    valid["model"].update(model)
    path = write_config(valid)
    expected = ATTENTIONS[layer["name"]].model_validate(layer)
    assert load_config(path, attention_overrides(path, text)).model.attentions == (expected,) * 2
