"""The attentions' configurations: names, parameters and their errors."""

from typing import Any, get_args

import pytest
from small import LENGTH, small_config

from nystromformer.config import ATTENTIONS, SoftmaxConfig
from nystromformer.config.attention import AttentionName, AttentionSpec, attention_config


def test_the_attentions_are_the_models_of_the_package() -> None:
    assert list(ATTENTIONS) == sorted(ATTENTIONS)
    assert set(ATTENTIONS) == set(get_args(get_args(AttentionName)[0]))
    assert set(ATTENTIONS.values()) == set(get_args(get_args(AttentionSpec)[0])), "what a config.json may hold"
    assert all(attention_config(name) == cls() and cls().name == name for name, cls in ATTENTIONS.items())
    assert attention_config("softmax") == SoftmaxConfig(conv_kernel_size=None)


def test_unknown_name_lists_the_valid_ones_and_the_nearest() -> None:
    with pytest.raises(ValueError, match=r'"nystrm"; valid names: .*nystrom.*softmax.*; did you mean nystrom\?'):
        attention_config("nystrm")


def test_bad_parameters_are_all_listed() -> None:
    with pytest.raises(ValueError, match="cannot be configured") as caught:
        attention_config("nystrom", num_landmark=3, pinv_iterations="2", conv_kernel_size=4, segments="valdi")
    assert str(caught.value).splitlines()[1:] == [
        "  conv_kernel_size: expected an odd number, found 4",
        '  pinv_iterations: expected a valid integer, found "2"',
        "  segments: expected 'valid', 'padded' or 'padded_unmasked', found \"valdi\"; did you mean valid?",
        "  num_landmark: unknown key; did you mean num_landmarks?",
    ]


@pytest.mark.parametrize(
    ("name", "parameters", "length", "text"),
    [
        ("nystrom", {"segments": "padded", "num_landmarks": 50}, 256, "expected a divisor of max_seq_len = 256"),
        ("nystrom", {"num_landmarks": 256}, 256, "expected fewer landmarks than max_seq_len = 256"),
        ("nystrom", {"num_landmarks": 255}, 256, None),
        ("mra", {}, 64, None),
    ],
)
def test_landmarks_fit_the_length_and_blocks_need_not(
    name: str, parameters: dict[str, object], length: int, text: str | None
) -> None:
    problems = attention_config(name, **parameters).impossible_at(length)
    assert [key for key, _ in problems] == ([] if text is None else ["num_landmarks"])
    assert text is None or problems[0][1].startswith(text)


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("nystrom", {"num_landmarks": 0}, "num_landmarks: expected greater than or equal to 1, found 0"),
        ("nystrom", {"num_landmarks": True}, "num_landmarks: expected a valid integer, found true"),
        ("nystrom", {"ignore_mask": True}, 'segments: expected "padded" with ignore_mask = true, found "valid"'),
        ("nystrom", {"landmarks": "strided", "segments": "padded"}, 'landmarks: expected "segment_means" with'),
        ("nystrom", {"segments": "padded", "implementation": "triton"}, 'implementation: expected "torch" or "auto"'),
        ("nystrom", {"pinv_start": "batch", "implementation": "triton"}, 'implementation: expected "torch" or "auto"'),
        ("softmax", {"num_landmarks": 64}, "num_landmarks: unknown key; valid ones: name, conv_kernel_size"),
        ("bigbird", {"num_window_blocks": 4}, "num_window_blocks: expected an odd number"),
        ("longformer", {"window": 3}, "window: expected a multiple of 2, found 3"),
        ("mra", {"num_blocks": 4, "neighbours": 2}, "num_blocks: expected at least 5"),
        ("sinkhorn", {"temperature": float("nan")}, "temperature: expected a finite number, found NaN"),
    ],
    ids=str,
)
def test_impossible_values_are_refused(name: str, parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"\n  {words}"):
        attention_config(name, **parameters)


def test_the_one_length_of_an_attention_that_does_not_take_any() -> None:
    assert small_config().model.fixed_length is None
    padded = {"name": "nystrom", "segments": "padded"}
    assert small_config(model__attn_type=padded).model.fixed_length == LENGTH
