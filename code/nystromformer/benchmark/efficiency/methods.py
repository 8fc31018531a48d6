"""What is compared: attentions by their settings, softmax written out, public implementations, and a control; each
alone and in an encoder.

Shapes: B batch, H heads, N tokens, D head dim.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from nystromformer.attention import AttentionMask, create_attention
from nystromformer.benchmark.models import replace_attention, standing_memory, training_step
from nystromformer.benchmark.peers import (
    IMPLEMENTATIONS,
    MaterialisedNystrom,
    NystromAttentionPackage,
    Peer,
    Shape,
    SharedQueryKey,
    WrittenOutSoftmax,
    elementwise,
    is_installed,
    transformers_nystrom,
)
from nystromformer.benchmark.questions.efficiency import Efficiency
from nystromformer.benchmark.timing import Passes, passes_side_by_side
from nystromformer.config import ATTENTIONS, AttentionConfig, ModelConfig, NystromConfig, attention_config
from nystromformer.config.attention_text import parse_attention
from nystromformer.model import ClassificationModel
from nystromformer.training.device import Device

SDPA, WRITTEN_OUT, CONTROL = "softmax (SDPA)", "softmax, written out", "elementwise control"
BASELINES = (SDPA, WRITTEN_OUT)
"""What times and memory are divided by."""
MASKED = ", padding mask"
"""Behind a method's name where the last tenth of the tokens is padding."""
AUTHORS = "authors' formulation"
_PAPERS = {"nystrom": ("nystrom,num_landmarks=32",), "longformer": ("longformer,window=256",)}
"""Behind an attention with its defaults, others of the paper's Table 1."""

Build = Callable[[int, int, int], Peer]
"""An attention of so many heads, of their width, for rows of so many tokens."""


@dataclass(frozen=True)
class Method:
    """A row of the comparison."""

    name: str
    config: AttentionConfig | None
    """None: one that no config.json names, and that no encoder has, but for softmax written out."""
    build: Build
    multiple_of: int = 1
    """What the length has to be."""

    def why_not(self, length: int) -> str | None:
        """Why it cannot be measured at a length; None where it can."""
        if self.config is None:
            wrong = self.multiple_of > 1 and (length % self.multiple_of or length == self.multiple_of)
            return f"expected a multiple of {self.multiple_of} landmarks, larger than it" if wrong else None
        if reason := self.config.why_not_length(length):
            return reason
        return next((text for _, text in self.config.impossible_at(length)), None)


def choose_methods(attentions: Sequence[str], peers: bool = False) -> list[Method]:
    """The methods that `--attention` asks for, all where it does not, behind the two softmaxes; the control is last.

    Args:
        peers: behind each attention its public implementations, and the same with padding.

    Raises:
        UserError: an unknown attention, or parameters that it does not take.
    """
    softmax = _method(SDPA, attention_config("softmax"))
    found = [softmax, Method(WRITTEN_OUT, None, lambda heads, head_dim, length: WrittenOutSoftmax())]
    found += [_padded(softmax)] if peers else []
    for text in attentions or [text for name in ATTENTIONS for text in (name, *_PAPERS.get(name, ()))]:
        method = parse_method(text)
        if method.config not in [other.config for other in found]:
            found += [method, *(_peers_of(method) if peers else ())]
    return [*found, Method(CONTROL, None, lambda heads, head_dim, length: elementwise)]


def parse_method(text: str) -> Method:
    """An attention and its parameters, as `parse_attention` takes them.

    Raises:
        UserError: as `choose_methods`.
    """
    config, parameters = parse_attention(text)
    return _method(label_attention(config.name, parameters), config)


def label_attention(name: str, parameters: Mapping[str, object]) -> str:
    """Such as `local (block_size 4)`."""
    shown = ", ".join(f"{key} {value}" for key, value in parameters.items())
    return f"{name} ({shown})" if shown else name


def _method(name: str, config: AttentionConfig) -> Method:
    def build(heads: int, head_dim: int, length: int) -> Peer:
        module = create_attention(config, num_heads=heads, head_dim=head_dim, max_length=length)
        return SharedQueryKey(module) if module.needs.shared_query_key else module

    return Method(name, config, build)


def _padded(method: Method) -> Method:
    """The attention alone, with padding, whose mask is made in each call, as in an encoder of one layer."""
    return replace(
        method, name=f"{method.name}{MASKED}", config=None, build=lambda *shape: Padded(method.build(*shape))
    )


class Padded(nn.Module):
    """An attention to rows whose last tenth is padding."""

    def __init__(self, core: Callable[..., Tensor]) -> None:
        super().__init__()
        self.core = core

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        B, _, N, _ = q.shape
        keep_BN = (torch.arange(N, device=q.device) < N - N // 10).expand(B, -1)
        return self.core(q, k, v, AttentionMask(keep_BN))


def _peers_of(method: Method) -> Iterator[Method]:
    config = method.config
    assert config is not None
    if not isinstance(config, NystromConfig):
        for one in IMPLEMENTATIONS.get(config.name, ()):
            if one.is_installed:
                yield Method(one.name, None, partial(one.build, config))
        return
    yield _padded(method)
    names: dict[str, Callable[[Shape], Peer]] = {AUTHORS: MaterialisedNystrom, "transformers": transformers_nystrom}
    if is_installed("nystrom_attention"):
        names["nystrom-attention"] = NystromAttentionPackage
    for name, peer in names.items():
        yield Method(f"{name}, {config.num_landmarks}", None, _nystrom_peer(peer, config), config.num_landmarks)


def _nystrom_peer(peer: Callable[[Shape], Peer], config: NystromConfig) -> Build:
    return lambda heads, head_dim, length: peer(
        Shape(heads, head_dim, config.num_landmarks, config.conv_kernel_size, length)
    )


@dataclass(frozen=True)
class Part:
    """A table of the comparison."""

    name: str
    lengths: tuple[int, ...]
    matrix: int
    """Bytes of the matrices that softmax written out holds at once, for each pair of tokens."""
    passes: Callable[[list[Method], int], Mapping[str, Passes]]
    """Of methods at a length, on input that they share."""

    def takes(self, method: Method) -> bool:
        """Whether it is measured here."""
        return self.name == "attention" or method.config is not None or method.name == WRITTEN_OUT


def attention_part(settings: Efficiency, device: Device) -> Part:
    """Attention over projected tensors, bare, and beside it an elementwise control."""

    def passes(methods: list[Method], length: int) -> Mapping[str, Passes]:
        torch.manual_seed(0)  # of the methods' own parameters
        calls = {method.name: method.build(settings.heads, settings.head_dim, length) for method in methods}
        return passes_side_by_side(calls, (settings.batch, length, settings.heads, settings.head_dim), device.device)

    return Part("attention", tuple(settings.lengths), 3 * 4 * settings.batch * settings.heads, passes)


def encoder_part(settings: Efficiency, device: Device) -> Part:
    """A step of classifying bytes with an encoder of the Long Range Arena's kind, and its forward pass alone."""

    def passes(methods: list[Method], length: int) -> Mapping[str, Passes]:
        generator = torch.Generator().manual_seed(0)
        tokens_BN = torch.randint(256, (settings.encoder_batch, length), generator=generator).to(device.device)
        labels_B = torch.randint(2, (settings.encoder_batch,), generator=generator).to(device.device)
        return {
            method.name: _passes_of(_encoder(method, length, settings).to(device.device), tokens_BN, labels_B, device)
            for method in methods
        }

    matrix = (settings.encoder_layers + 2) * 4 * settings.encoder_batch * settings.encoder_heads
    return Part("encoder", tuple(settings.encoder_lengths), matrix, passes)


PARTS = {"attention": attention_part, "encoder": encoder_part}


def _passes_of(model: ClassificationModel, tokens_BN: Tensor, labels_B: Tensor, device: Device) -> Passes:
    train = training_step(model, lambda: nn.functional.cross_entropy(model(tokens_BN).float(), labels_B), device)

    def step() -> None:
        model.train()
        train()
        model.zero_grad(set_to_none=True)  # so that a profiler sees where each gradient's memory began

    def forward() -> Tensor:
        model.eval()
        with device.autocast():
            logits: Tensor = model(tokens_BN)
        return logits

    return Passes(torch.no_grad()(forward), step, standing_memory(model) / 3)


def _encoder(method: Method, length: int, settings: Efficiency) -> ClassificationModel:
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=256,
        max_seq_len=length,
        embedding_dim=settings.encoder_width,
        transformer_dim=settings.encoder_width,
        transformer_hidden_dim=2 * settings.encoder_width,
        num_layers=settings.encoder_layers,
        num_head=settings.encoder_heads,
        head_dim=settings.encoder_width // settings.encoder_heads,
        attn_type="softmax" if method.config is None else method.config,
        pooling="mean",
        norm="pre",
        activation="gelu",
    )
    model = ClassificationModel(config, num_classes=2)
    if method.name == WRITTEN_OUT:
        replace_attention(model.encoder, (WrittenOutSoftmax() for _ in model.encoder.layers))
    return model
