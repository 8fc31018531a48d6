"""Synthesizer: what it goes by."""

from small import PLAIN, SOFTMAX, model_config, tokens

from nystromformer.interop.transfer import transfer_weights
from nystromformer.model.encoder import Encoder


def test_no_projection_is_built_for_keys() -> None:
    config, plain = model_config(attn_type="synthesizer", **PLAIN), model_config(**SOFTMAX)
    encoder, other = Encoder(config), Encoder(plain)
    missing = {f"layers.{n}.attention.key.{each}" for n in (0, 1) for each in ("weight", "bias")}
    assert {name for name in other.state_dict() if name not in encoder.state_dict()} == missing
    encoder(tokens(length=20)).square().sum().backward()
    assert all(parameter.grad is not None for layer in encoder.layers for parameter in layer.parameters())
    # Weights go from one to the other, but for those that one of them lacks.
    states = [{f"encoder.{name}": x for name, x in each.state_dict().items()} for each in (encoder, other)]
    done = transfer_weights(states[0], config.model_dump(), states[1], plain.model_dump())
    (left_out,) = (note for note in done.notes if "left out" in note)
    assert [f"attention.{part}." in left_out for part in ("query", "key")] == [False, True]
    back = transfer_weights(states[1], plain.model_dump(), states[0], config.model_dump())
    (initial,) = (note for note in back.notes if "initial values" in note)
    assert [f"attention.{part}." in initial for part in ("query", "key")] == [False, True]
