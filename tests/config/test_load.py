"""Reading config.json: bad files, all errors at once, overrides."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nystromformer.config import ATTENTIONS, experiment_config, load_config
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
    assert load_config(write_config(valid)) == experiment_config(valid, "here")


def test_byte_order_mark_is_no_mistake(valid: Data, write_config: WriteConfig) -> None:
    load_config(write_config("\ufeff" + json.dumps(valid)))


class TestFile:
    def test_missing(self, tmp_path: Path) -> None:
        message = refusal(tmp_path / "config.json")
        assert "no such file" in message
        assert "copy nystrom-512/config.json" in message
        assert "--model" in message

    def test_of_a_model_of_transformers(self, write_config: WriteConfig) -> None:
        message = refusal(write_config({"model_type": "bert", "hidden_size": 768}))
        assert "first import it with run_export.py import" in message

    def test_not_utf8(self, write_config: WriteConfig) -> None:
        assert "line 2: not UTF-8" in refusal(write_config(b'{\n"data_folder": "\xfc"}'))

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", "not JSON: line 1, column 1: Expecting value"),
            ('{\n  "model": 1\n  "a": 2}', "line 3, column 3: Expecting ',' delimiter, found '\"a\": 2}'"),
            ('{"a": True}', "line 1, column 7: Expecting value, found 'True}'"),
            ("[1]", "expected an object {...}, found [1]"),
        ],
    )
    def test_not_json(self, write_config: WriteConfig, text: str, expected: str) -> None:
        assert expected in refusal(write_config(text))


class TestDuplicates:
    def test_at_any_depth_with_values(self, valid: Data, write_config: WriteConfig) -> None:
        text = json.dumps(valid)
        text = text.replace('"epoch": 3', '"epoch": 3, "epoch": 4')
        text = text.replace('"softmax"', '["softmax", {"name": "softmax", "name": "nystrom", "num_landmarks": 8}]')
        text = text[:-1] + ', "data_folder": "/a", "data_folder": "/a", "data_folder": "/b"}'
        assert problems(write_config(text)) == [
            'model.attn_type[1].name: given 2 times ("softmax", "nystrom"); keep one',
            "pretraining_setting.epoch: given 2 times (3, 4); keep one",
            'data_folder: given 3 times ("/a", "/a", "/b"); keep one',
        ]


class TestKeys:
    def test_unknown_names_the_nearest(self, valid: Data, write_config: WriteConfig) -> None:
        valid["model"]["num_layer"] = 2
        assert problems(write_config(valid)) == ["model.num_layer: unknown key; did you mean num_layers?"]

    def test_unknown_without_a_near_one_lists_the_valid(self, valid: Data, write_config: WriteConfig) -> None:
        valid["gpu_setting"]["zzz"] = 2
        assert problems(write_config(valid)) == ["gpu_setting.zzz: unknown key; valid ones: inst_per_gpu, parallel"]

    def test_missing(self, valid: Data, write_config: WriteConfig) -> None:
        del valid["model"]["vocab_size"], valid["gpu_setting"]
        assert problems(write_config(valid)) == ["model.vocab_size: missing", "gpu_setting: missing"]


def test_paths_have_no_tags_of_unions(valid: Data, write_config: WriteConfig) -> None:
    valid["model"]["attn_type"] = [
        {"name": "nystrom", "num_landmark": 3, "pinv_iterations": 0},
        {"name": "Nystrom"},
        {"num_landmarks": 3},
        5,
        "softmx",
        {"name": "softmax", "num_landmarks": 3},
    ]
    names = ", ".join(f"'{name}'" for name in ATTENTIONS)
    *others, last = (f"'{name}'" for name in ATTENTIONS)
    assert problems(write_config(valid)) == [
        "model.attn_type[0].pinv_iterations: expected greater than or equal to 1, found 0",
        "model.attn_type[0].num_landmark: unknown key; did you mean num_landmarks?",
        f'model.attn_type[1].name: expected {names}, found "Nystrom"; did you mean nystrom?',
        "model.attn_type[2].name: missing",
        'model.attn_type[3]: expected the name of an attention or an object {"name": ..., its parameters}, found 5',
        f'model.attn_type[4]: expected {", ".join(others)} or {last}, found "softmx"; did you mean softmax?',
        "model.attn_type[5].num_landmarks: unknown key; valid ones: name, conv_kernel_size, ignore_mask",
    ]


def test_all_mistakes_at_once(valid: Data, write_config: WriteConfig) -> None:
    valid["model"].update(num_head="3", layers=2)
    del valid["model"]["vocab_size"]
    valid["pretraining_setting"]["objectives"] = ["mlm", "spo"]
    valid["gpu_setting"]["inst_per_gpu"] = 0
    message = refusal(write_config(valid), "pretraining_setting.epochs=3")
    assert message.splitlines()[0].endswith(": 6 problems")
    assert [line.split(":")[0].strip() for line in message.splitlines()[1:]] == [
        "model.vocab_size",
        "model.num_head",
        "model.layers",
        "pretraining_setting.objectives[1]",
        "pretraining_setting.epochs",
        "gpu_setting.inst_per_gpu",
    ]
    assert "pydantic" not in message


class TestOverrides:
    def test_json_and_plain_strings(self, valid: Data, write_config: WriteConfig) -> None:
        overrides = [
            "model.attn_type=nystrom",
            "model.num_landmarks=8",
            "model.embedding_norm=false",
            "pretraining_setting.learning_rate=2e-4",
            'pretraining_setting.objectives=["mlm", "sop"]',
            "data_folder=/a=b",
            "from_cp=null",
        ]
        config = load_config(write_config(valid), overrides)
        assert [layer.name for layer in config.model.attentions] == ["nystrom", "nystrom"]
        assert (config.model.num_landmarks, config.model.embedding_norm) == (8, False)
        assert config.pretraining_setting.learning_rate == 2e-4
        assert config.pretraining_setting.objectives == ("mlm", "sop")
        assert (config.data_folder, config.from_cp) == ("/a=b", None)

    def test_inside_a_list(self, valid: Data, write_config: WriteConfig) -> None:
        valid["model"]["attn_type"] = ["softmax", {"name": "nystrom", "num_landmarks": 4}]
        config = load_config(write_config(valid), ["model.attn_type[1].num_landmarks=5"])
        assert config.model.attentions[1].num_landmarks == 5  # type: ignore[attr-defined]

    def test_mend_what_the_file_has_wrong(self, valid: Data, write_config: WriteConfig) -> None:
        valid["model"]["num_layers"] = "2"
        assert load_config(write_config(valid), ["model.num_layers=2"]).model.num_layers == 2

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
            ("model.num_head[0]=3", "model.num_head[0]: cannot be overridden: model.num_head is 3"),
            ("pretraining_setting.objectives[0]=sop", "cannot be overridden: pretraining_setting.objectives is []"),
            ('model.attn_type={"name": "softmax", "name": "nystrom"}', "model.attn_type.name: given 2 times"),
        ],
    )
    def test_mistakes(self, valid: Data, write_config: WriteConfig, override: str, expected: str) -> None:
        message = refusal(write_config(valid), override)
        assert expected in message
        # The file alone is right: the message must show where the value came from.
        assert json.dumps(override) in message.splitlines()[0]

    def test_twice_is_a_mistake(self, valid: Data, write_config: WriteConfig) -> None:
        said = problems(write_config(valid), "model.num_layers=2", "model.num_layers=3")
        assert said == ["model.num_layers: overridden twice; keep one"]
