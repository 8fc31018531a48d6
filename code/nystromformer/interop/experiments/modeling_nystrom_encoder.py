"""An encoder with Nyström or softmax attention, for transformers: inference and loss, by PyTorch alone.

Nyström attention (Xiong et al., AAAI 2021, eq. 13-17): softmax(QK̃ᵀ) · Z · softmax(Q̃Kᵀ) · V, landmarks Q̃, K̃ of each
row's own valid tokens, Z by six iterations of eq. 14. A row with at most as many tokens as landmarks gets softmax.
Padding may stand anywhere and changes nothing; a row does not depend on its neighbours in the batch.

Other attentions, and other options of these, are computed by the package nystromformer, where it is installed.

Shapes: B batch, H heads, N tokens, M landmarks, D head dim, E width, V vocabulary, C classes.
"""

import importlib
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput, SequenceClassifierOutput
from transformers.utils import can_return_tuple


class NystromEncoderConfig(PretrainedConfig):
    """What config.json says, all of it, in this project's words; `attn_type` has an object for each layer."""

    model_type = "nystrom_encoder"
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "transformer_dim",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_head",
        "max_position_embeddings": "max_seq_len",
    }


def activation(name: str, x: Tensor) -> Tensor:
    return F.silu(x) if name == "silu" else F.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")


def norm(config: NystromEncoderConfig, width: int) -> nn.Module:
    if config.norm_type == "rms_norm":
        return nn.RMSNorm(width, config.layer_norm_eps)
    return nn.LayerNorm(width, config.layer_norm_eps, bias=config.bias)


class Embeddings(nn.Module):
    def __init__(self, config: NystromEncoderConfig) -> None:
        super().__init__()
        self.config, width, out = config, config.embedding_dim, config.transformer_dim
        self.word = nn.Embedding(config.vocab_size, width)
        if config.positions == "learned":
            self.position = nn.Embedding(config.max_seq_len + config.position_offset, width)
        self.sentence_type = nn.Embedding(config.num_sen_type, width)
        self.projection = nn.Identity() if width == out else nn.Linear(width, out, config.bias)
        self.norm = norm(config, out) if config.embedding_norm else nn.Identity()

    def forward(self, x: Tensor, types_BN: Tensor | None) -> Tensor:
        N, most, offset = x.shape[1], self.config.max_seq_len, self.config.position_offset
        if most < N:
            raise ValueError(f"expected at most max_seq_len = {most} tokens, found {N}")
        if self.config.positions == "learned":
            x = x + self.position.weight[offset : offset + N]
        # Tokenizers tell two sentences apart; a model with one type of them does not.
        types_BN = torch.zeros(x.shape[:2], dtype=torch.int64, device=x.device) if types_BN is None else types_BN
        x = x + self.sentence_type(types_BN.clamp(max=self.config.num_sen_type - 1))
        return self.norm(self.projection(x))


class Core(nn.Module):
    """The attention of projected tensors, `core(q, k, v, keep)`, (B, H, N, D) each."""

    def __init__(self, config: NystromEncoderConfig, spec: dict[str, Any]) -> None:
        super().__init__()
        self.spec, H, taps = spec, config.num_head, spec.get("conv_kernel_size")
        self.skip = nn.Conv2d(H, H, (taps, 1), padding=(taps // 2, 0), groups=H, bias=False) if taps else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, keep_BN: Tensor) -> Tensor:
        keep_B1N1 = keep_BN[:, None, :, None].to(v.dtype)
        q, k, v = q * keep_B1N1, k * keep_B1N1, v * keep_B1N1
        # A row without any token attends to its first place, which is zero.
        seen_BN = keep_BN | ((torch.arange(q.shape[2], device=q.device) == 0) & ~keep_BN.any(1, keepdim=True))
        bias_B11N = torch.zeros_like(seen_BN, dtype=q.dtype).masked_fill(~seen_BN, float("-inf"))[:, None, None]
        exact = self.spec["name"] == "softmax" or q.shape[2] <= self.spec["num_landmarks"]
        out = F.scaled_dot_product_attention(q, k, v, bias_B11N) if exact else self.nystrom(q, k, v, keep_BN, bias_B11N)
        return (out if self.skip is None else out + self.skip(v)) * keep_B1N1

    def nystrom(self, q: Tensor, k: Tensor, v: Tensor, keep_BN: Tensor, bias_B11N: Tensor) -> Tensor:
        M, scale = self.spec["num_landmarks"], q.shape[3] ** -0.5
        length_B1 = keep_BN.sum(1, keepdim=True)
        # Token r of n is in segment floor(r·M / max(n, M)); masked tokens are in one of their own.
        rank_BN = keep_BN.cumsum(1) - 1
        segment_BN = torch.where(keep_BN, rank_BN * M // length_B1.clamp(min=M), M)
        members_BMN = (segment_BN[:, None] == torch.arange(M, device=q.device)[:, None]).to(torch.float32)
        count_BM = members_BMN.sum(2)
        means_BMN = members_BMN / count_BM.clamp(min=1)[:, :, None]
        ql, kl = (torch.einsum("bmn,bhnd->bhmd", means_BMN, x.float()) for x in (q, k))
        # In a short row each token is a landmark, and landmarks without a token stay unseen.
        short_B111 = (length_B1 <= M)[:, :, None, None]
        used_BM = (count_BM > 0) | ((torch.arange(M, device=q.device) == 0) & (length_B1 == 0))
        unseen_BM = torch.zeros_like(count_BM).masked_fill(~used_BM, float("-inf"))[:, None, None]
        context = F.scaled_dot_product_attention(ql.to(q.dtype), k, v, bias_B11N)
        with torch.autocast(q.device.type, enabled=False):  # 16 bits overflow
            a = torch.softmax(ql.float() @ kl.float().mT * scale + unseen_BM, dim=-1)
            values = self.inverse(a, short_B111) @ context.float()
            tokens = torch.einsum("bmn,bhnd->bhmd", members_BMN, v.float())
        values = torch.where(short_B111, tokens, values).to(q.dtype)
        return F.scaled_dot_product_attention(q, kl.to(q.dtype), values, unseen_BM.to(q.dtype))

    def inverse(self, a: Tensor, short_B111: Tensor) -> Tensor:
        """Eq. 14 of each (M, M) matrix; of short rows, which do not need it, any that is finite."""
        eye = torch.eye(a.shape[-1], device=a.device)
        a = torch.where(short_B111, eye, a)
        z = a.mT / (a.sum(-2).amax(-1) * a.sum(-1).amax(-1))[..., None, None]
        for _ in range(6):
            az = a @ z
            z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
        return z


def packaged(config: NystromEncoderConfig, spec: dict[str, Any]) -> nn.Module:
    """An attention of the package nystromformer, by its name and parameters."""
    H = config.num_head
    sizes = {"num_heads": H, "head_dim": config.transformer_dim // H, "max_length": config.max_seq_len}
    try:
        return importlib.import_module("nystromformer.attention").create_attention(**spec, **sizes)
    except ModuleNotFoundError as error:
        text = f"{spec['name']} attention needs the package nystromformer: `pip install -e .` in a clone of it"
        raise ImportError(text) from error


class Attention(nn.Module):
    def __init__(self, config: NystromEncoderConfig, spec: dict[str, Any], theta: float) -> None:
        super().__init__()
        self.config, self.theta, E = config, theta, config.transformer_dim
        is_here = spec["name"] in ("nystrom", "softmax") and len(spec) <= 3  # of others all parameters are given
        self.core = (Core if is_here else packaged)(config, spec)
        self.query, self.key, self.value, self.output = (nn.Linear(E, E, config.bias) for _ in range(4))

    def forward(self, x: Tensor, keep_BN: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(2, (self.config.num_head, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        if self.config.positions == "rotary":
            q, k = rotated(q, self.theta), rotated(k, self.theta)
        return self.output(self.core(q, k, v, keep_BN).transpose(1, 2).flatten(2))


def rotated(x: Tensor, theta: float) -> Tensor:
    """Rotary positions (Su et al. 2021) over halves of each head, angles in float64."""
    N, D = x.shape[2:]
    frequency = theta ** (torch.arange(0, D, 2, dtype=torch.float64, device=x.device) / -D)
    angle = torch.arange(N, dtype=torch.float64, device=x.device)[:, None] * frequency
    cos, sin = angle.cos().float(), angle.sin().float()
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class Layer(GradientCheckpointingLayer):
    def __init__(self, config: NystromEncoderConfig, number: int) -> None:
        super().__init__()
        self.before, self.gated = config.norm == "pre", config.feed_forward == "glu"
        is_local = config.rope_theta_local is not None and config.local_layers[number]
        theta = config.rope_theta_local if is_local else config.rope_theta
        self.activation, self.attention = config.activation, Attention(config, config.attn_type[number], theta)
        E, hidden, bias = config.transformer_dim, config.transformer_hidden_dim, config.bias
        up = nn.Linear(E, 2 * hidden if self.gated else hidden, bias)
        self.feed_forward = nn.ModuleDict({"up": up, "down": nn.Linear(hidden, E, bias)})
        self.attention_norm = nn.Identity() if number == 0 and config.skip_first_prenorm else norm(config, E)
        self.feed_forward_norm = norm(config, E)

    def forward(self, x: Tensor, keep_BN: Tensor) -> Tensor:
        if self.before:
            x = x + self.attention(self.attention_norm(x), keep_BN)
            return x + self.fed(self.feed_forward_norm(x))
        x = self.attention_norm(x + self.attention(x, keep_BN))
        return self.feed_forward_norm(x + self.fed(x))

    def fed(self, x: Tensor) -> Tensor:
        hidden, factor = self.feed_forward["up"](x), 1.0
        if self.gated:
            hidden, factor = hidden.chunk(2, dim=-1)
        return self.feed_forward["down"](activation(self.activation, hidden) * factor)


class MaskedLMHead(nn.Module):
    def __init__(self, config: NystromEncoderConfig) -> None:
        super().__init__()
        self.config = config
        if config.head_transform:
            self.transform = nn.Linear(config.transformer_dim, config.embedding_dim, config.bias)
            self.norm = norm(config, config.embedding_dim)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, x: Tensor, word_VE: Tensor) -> Tensor:
        if self.config.head_transform:
            x = self.norm(activation(self.config.activation, self.transform(x)))
        return F.linear(x, word_VE, self.bias)


class NystromEncoderPreTrainedModel(PreTrainedModel):
    config_class = NystromEncoderConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _no_split_modules = ("Embeddings", "Layer")


def first_or_mean(hidden_BNE: Tensor, attention_mask: Tensor | None, pooling: str) -> Tensor:
    """The first valid token's vector of each row, or the mean over valid tokens."""
    if attention_mask is None:
        return hidden_BNE.mean(1) if pooling == "mean" else hidden_BNE[:, 0]
    keep_BN = attention_mask.bool()
    if pooling == "mean":
        return (hidden_BNE * keep_BN[..., None]).sum(1) / keep_BN.sum(1, keepdim=True).clamp(min=1)
    return hidden_BNE[torch.arange(len(keep_BN), device=keep_BN.device), keep_BN.int().argmax(1)]


class NystromEncoderModel(NystromEncoderPreTrainedModel):
    def __init__(self, config: NystromEncoderConfig) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(len(config.attn_type)))
        self.final_norm = norm(config, config.transformer_dim) if config.norm == "pre" else nn.Identity()
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.word = value

    @can_return_tuple
    def forward(
        self, input_ids=None, attention_mask=None, token_type_ids=None, inputs_embeds=None, output_hidden_states=None,
        output_attentions=None,
    ):  # fmt: skip
        if self.config.output_attentions if output_attentions is None else output_attentions:
            raise ValueError("output_attentions: the weights of pairs of tokens are never formed")
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("expected either input_ids or inputs_embeds")
        words = self.embeddings.word(input_ids) if inputs_embeds is None else inputs_embeds
        states = [self.embeddings(words, token_type_ids)]
        keep_BN = torch.ones_like(words[..., 0]).bool() if attention_mask is None else attention_mask.bool()
        for layer in self.layers:
            states.append(layer(states[-1], keep_BN))
        states[-1] = self.final_norm(states[-1])
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        return BaseModelOutput(last_hidden_state=states[-1], hidden_states=tuple(states) if wanted else None)


class NystromEncoderForMaskedLM(NystromEncoderPreTrainedModel):
    def __init__(self, config: NystromEncoderConfig) -> None:
        super().__init__(config)
        self.encoder, self.mlm = NystromEncoderModel(config), MaskedLMHead(config)
        self.post_init()

    def resize_token_embeddings(self, *args: Any, **options: Any) -> nn.Module:
        embeddings = super().resize_token_embeddings(*args, **options)
        bias_V = self.mlm.bias.data
        new_V = bias_V.new_zeros(embeddings.num_embeddings)
        new_V[: len(bias_V)] = bias_V[: len(new_V)]
        self.mlm.bias = nn.Parameter(new_V)
        return embeddings

    @can_return_tuple
    def forward(self, input_ids=None, attention_mask=None, token_type_ids=None, labels=None, **options):
        encoded = self.encoder(input_ids, attention_mask, token_type_ids, return_dict=True, **options)
        logits = self.mlm(encoded.last_hidden_state, self.encoder.embeddings.word.weight)
        loss = None if labels is None else self.loss_function(logits, labels, logits.shape[-1])
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=encoded.hidden_states)


class NystromEncoderForSequenceClassification(NystromEncoderPreTrainedModel):
    def __init__(self, config: NystromEncoderConfig) -> None:
        super().__init__(config)
        self.encoder, E = NystromEncoderModel(config), config.transformer_dim
        self.head = nn.ModuleDict({"dense": nn.Linear(E, E), "classifier": nn.Linear(E, config.num_labels)})
        self.post_init()

    @can_return_tuple
    def forward(self, input_ids=None, attention_mask=None, token_type_ids=None, labels=None, **options):
        encoded = self.encoder(input_ids, attention_mask, token_type_ids, return_dict=True, **options)
        pooled = first_or_mean(encoded.last_hidden_state, attention_mask, self.config.pooling)
        logits = self.head["classifier"](torch.tanh(self.head["dense"](pooled)))
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=encoded.hidden_states)
