"""Open-ended input: whatever stands in a config.json, it is taken whole or refused in words."""

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nystromformer.config import ATTENTIONS, MOST_DROPOUT, ExperimentConfig, experiment_config
from nystromformer.errors import UserError

TEXT = st.text(max_size=8).filter(str.isprintable)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ODD = st.integers(0, 40).map(lambda half: 2 * half + 1)
KERNELS = st.none() | ODD
SIZES = st.integers(1, 2000)


@st.composite
def attentions(draw: st.DrawFn) -> object:
    name = draw(st.sampled_from(sorted(ATTENTIONS)))
    if draw(st.booleans()):
        return name
    parameters = {"conv_kernel_size": KERNELS}
    if name == "softmax":
        parameters["ignore_mask"] = st.booleans()  # nystrom's needs fixed segments
    if name == "nystrom":
        parameters |= {
            "num_landmarks": st.integers(1, 90),
            "pinv_iterations": st.integers(1, 24),
            "segments": st.just("valid"),  # fixed segments also need a length that divides
            "pinv_start": st.sampled_from(["matrix", "batch"]),
            "landmarks": st.sampled_from(["segment_means", "strided", "kmeans"]),
        }
    return {"name": name, **draw(st.fixed_dictionaries({}, optional=parameters))}


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Data of a valid config.json, with any of the optional keys."""
    layers, heads, head_dim, rows = draw(st.tuples(st.integers(1, 4), *[st.integers(1, 16)] * 3))
    attn_type = draw(attentions() | st.lists(attentions(), min_size=layers, max_size=layers))
    probability = st.floats(0, MOST_DROPOUT)
    turns = head_dim % 2 == 0 and "synthesizer" not in str(attn_type)
    model = {
        "vocab_size": draw(SIZES),
        "max_seq_len": draw(st.integers(512, 5000)),
        "embedding_dim": draw(SIZES),
        "transformer_dim": heads * head_dim,
        "transformer_hidden_dim": draw(SIZES),
        "num_layers": layers,
        "num_head": heads,
        "head_dim": head_dim,
        "attn_type": attn_type,
        **draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "dropout_prob": probability,
                    "mixed_precision": st.sampled_from([True, False, "fp16"]),
                    "compile": st.booleans(),
                    "positions": st.sampled_from(["learned", "rotary"] if turns else ["learned"]),
                },
            )
        ),
        **flat_defaults(draw, attn_type if isinstance(attn_type, list) else [attn_type]),
    }
    setting = {
        "batch_size": rows * draw(st.integers(1, 9)),
        "learning_rate": draw(st.floats(1e-12, 10) | st.integers(1, 9)),
        "warmup": draw(st.floats(0, 1)),
        **{key: draw(SIZES) for key in ("batches_per_epoch", "epoch", "validate_batches_per_epoch")},
        **draw(st.fixed_dictionaries({}, optional={"objectives": st.permutations(["mlm", "sop"]), "seed": SIZES})),
    }
    paths = st.text(min_size=1, max_size=60).filter(lambda text: text.isprintable())
    top = draw(st.fixed_dictionaries({}, optional={"$schema": paths, "from_cp": paths, "data_folder": paths}))
    return {**top, "model": model, "pretraining_setting": setting, "gpu_setting": {"inst_per_gpu": rows}}


def flat_defaults(draw: st.DrawFn, items: list[Any]) -> dict[str, int]:
    """Flat parameters, only where a layer is there that takes them."""
    flat: dict[str, int] = {}
    objects = [{"name": item} if isinstance(item, str) else item for item in items]
    if any("conv_kernel_size" not in item for item in objects) and draw(st.booleans()):
        flat["conv_kernel_size"] = draw(ODD)
    if any(item["name"] == "nystrom" and "num_landmarks" not in item for item in objects) and draw(st.booleans()):
        flat["num_landmarks"] = draw(st.integers(1, 90))
    return flat


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
    data = copy.deepcopy(data)
    path = draws.draw(st.sampled_from(places(data)))
    value = draws.draw(JSON)
    if not path:
        check(value)
        return
    node = data
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    if isinstance(node, dict) and draws.draw(st.booleans()):
        node[draws.draw(TEXT)] = draws.draw(JSON)
    check(data)


def check(data: object) -> None:
    try:
        experiment_config(data, "here")
        return
    except UserError as error:
        message = str(error)
    first, *problems = message.split("\n")
    assert first == f"here: {len(problems)} problem{'s' if len(problems) > 1 else ''}"
    assert problems
    assert all(line.startswith("  ") for line in problems), problems
    assert "Input should" not in message
