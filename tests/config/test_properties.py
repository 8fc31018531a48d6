"""Open-ended input: whatever stands in a config.json, it is taken whole or refused in words."""

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from small import SHIPPED

from nystromformer.config import ATTENTIONS, ExperimentConfig, experiment_config
from nystromformer.errors import UserError

TEXT = st.text(max_size=8).filter(str.isprintable)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CONFIGS = [json.loads(path.read_text()) for path in SHIPPED.values()]
ODD = st.integers(0, 40).map(lambda half: 2 * half + 1)
NYSTROM = {
    "num_landmarks": st.integers(1, 90),
    "pinv_iterations": st.integers(1, 24),
    "pinv_start": st.sampled_from(["matrix", "batch"]),
    "landmarks": st.sampled_from(["segment_means", "strided"]),
}


@st.composite
def attentions(draw: st.DrawFn) -> object:
    name = draw(st.sampled_from(sorted(ATTENTIONS.keys() - {"synthesizer"})))  # which takes no rotary positions
    if draw(st.booleans()):
        return name
    parameters = {"conv_kernel_size": st.none() | ODD} | (NYSTROM if name == "nystrom" else {})
    return {"name": name, **draw(st.fixed_dictionaries({}, optional=parameters))}


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Data of a valid config.json: a shipped one with other attentions."""
    data = copy.deepcopy(draw(st.sampled_from(CONFIGS)))
    model, layers = data["model"], data["model"]["num_layers"]
    every_layer = st.lists(attentions(), min_size=layers, max_size=layers)
    model |= {"attn_type": draw(attentions() | every_layer), "max_seq_len": draw(st.integers(512, 5000))}
    model |= {"num_landmarks": None, "rope_theta_local": None}
    model["conv_kernel_size"] = draw(st.none() | ODD) if isinstance(model["attn_type"], str) else None
    return data


@given(configs())
def test_saved_and_read_again_a_config_is_the_same(data: dict[str, Any]) -> None:
    config = experiment_config(data, "here")
    dumped = config.model_dump(mode="json", by_alias=True)
    again = experiment_config(json.loads(json.dumps(dumped)), "there")
    assert again == config
    assert again.model.attentions == config.model.attentions
    # The other ways to dump serve as well.
    assert experiment_config(config.model_dump(), "there") == config
    assert ExperimentConfig.model_validate(config.model_dump(mode="json")) == config


def places(node: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


@given(configs(), st.data())
def test_any_value_in_any_place_is_taken_or_refused_in_words(data: dict[str, Any], draws: st.DataObject) -> None:
    path = draws.draw(st.sampled_from(places(data)))
    value = draws.draw(JSON)
    whole: Any = [data]
    node = whole
    for part in (0, *path)[:-1]:
        node = node[part]
    node[(0, *path)[-1]] = value
    if isinstance(node, dict) and draws.draw(st.booleans()):
        node[draws.draw(TEXT)] = draws.draw(JSON)
    try:
        experiment_config(whole[0], "here")
        return
    except UserError as error:
        message = str(error)
    first, *problems = message.split("\n")
    assert first == f"here: {len(problems)} problem{'s' if len(problems) > 1 else ''}"
    assert all(line.startswith("  ") for line in problems), problems
    assert "Input should" not in message
