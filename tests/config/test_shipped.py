"""The configs that the repository ships, and the JSON schema for editors."""

import json
from typing import Any

import pytest
from small import SHIPPED

from nystromformer.config import ATTENTIONS, json_schema, load_config
from nystromformer.config.load import SCHEMA_FILE

SIZES = ("small", "tiny", "demo")


def kinds_of(size: str) -> list[tuple[str, str]]:
    """Attentions, and whether with the convolution."""
    third = ("near_far", "noconv") if size == "demo" else ("softmax", "conv")
    return [("nystrom", "conv"), ("nystrom", "noconv"), ("softmax", "noconv"), third]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_configs_load(name: str) -> None:
    path = SHIPPED[name]
    config = load_config(path)
    assert name.startswith((config.model.attentions[0].name, "modern-"))
    assert config.schema_url is not None
    assert (path.parent / config.schema_url).resolve() == SCHEMA_FILE


ATTENTION: dict[str, Any] = {"schema_url": True, "model": {"attn_type", "num_landmarks", "conv_kernel_size"}}


@pytest.mark.parametrize("size", SIZES)
def test_the_four_kinds_of_a_size_differ_in_what_their_names_say_alone(size: str) -> None:
    kinds = {(name, conv): load_config(SHIPPED[f"{name}-{size}-{conv}"]) for name, conv in kinds_of(size)}
    rest = [config.model_dump(exclude=ATTENTION) for config in kinds.values()]
    assert all(other == rest[0] for other in rest)
    for (name, conv), config in kinds.items():
        assert {layer.name for layer in config.model.attentions} == {name}
        assert {layer.conv_kernel_size for layer in config.model.attentions} == {33 if conv == "conv" else None}
    landmarks = {
        getattr(layer, "num_landmarks", None) for config in kinds.values() for layer in config.model.attentions
    }
    assert landmarks == {None, 32 if size == "demo" else 64}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("linear-small-noconv", "softmax-small-noconv"),
        ("linformer-small-noconv", "softmax-small-noconv"),
        ("nystrom-512", "softmax-512"),
    ],
)
def test_the_papers_pairs_differ_in_the_attention_alone(name: str, other: str) -> None:
    pair = [load_config(SHIPPED[each]) for each in (name, other)]
    assert pair[0].model_dump(exclude=ATTENTION) == pair[1].model_dump(exclude=ATTENTION)
    assert pair[0].model.attentions != pair[1].model.attentions


def test_4096_goes_on_from_512() -> None:
    long, short = (load_config(SHIPPED[f"nystrom-{length}"]) for length in (4096, 512))
    model = long.model
    longer = {"max_seq_len", "conv_kernel_size", "attention_grad_checkpointing", "gelu_grad_checkpointing"}
    assert model.model_dump(exclude=longer) == short.model.model_dump(exclude=longer)
    assert (model.max_seq_len, model.conv_kernel_size) == (4096, 65)
    assert (long.from_cp, long.from_cp_resize) == ("/model/cp-0099.model", "lossless")
    assert long.pretraining_setting.objectives == short.pretraining_setting.objectives


def test_schema_file_is_current() -> None:
    text = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    assert SCHEMA_FILE.read_text(encoding="utf-8") == text, "run: python -m nystromformer.config"


def test_schema_has_a_sentence_for_every_key_and_takes_no_others() -> None:
    schema = json_schema()
    objects: list[dict[str, Any]] = [schema, *schema["$defs"].values()]
    assert len(objects) == 4 + len(ATTENTIONS)
    for node in objects:
        assert node["additionalProperties"] is False
        for key, field in node["properties"].items():
            assert field["description"].endswith("."), key
    for name, cls in ATTENTIONS.items():
        node = schema["$defs"][cls.__name__]
        assert node["properties"]["name"]["const"] == name
        assert "name" in node["required"]
