"""The bytes that must cross a GPU's memory, and the arithmetic of a training step, counted.

Shapes: B batch, H heads, N tokens, M landmarks, D head dim, K taps, E width, F hidden width, V vocabulary.
"""

from dataclasses import dataclass

from nystromformer.attention.kernels.plan import make_plan
from nystromformer.config import ModelConfig, NystromConfig

FORWARD = {"query_landmarks_kernel": 1, "keys_kernel": 2, "landmark_system_kernel": 0, "output_kernel": 3}
BACKWARD = {
    "output_sums_kernel": 2,
    "landmark_gradients_kernel": 0,
    "key_value_gradients_kernel": 5,
    "query_gradients_kernel": 3,
    "weight_gradient_kernel": 2,
}
"""What each kernel reads and writes, in units of the N·D numbers of a head's Q. Forward: Q | K, V | Q, V, out;
backward: Q, d_out | K, V, d_out, d_K, d_V | Q, d_out, d_Q | V, d_out."""

SMALLEST_FORWARD = 4
"""Q, K, V and out, each once: what any attention must move."""
LEAST_FORWARD = sum(FORWARD.values())
"""What the method takes: its landmarks need all of Q and K before an output can be written."""
LEAST_BACKWARD = sum(BACKWARD.values()) - BACKWARD["weight_gradient_kernel"]
"""Another kernel has V and d_out already, which the filter's gradient needs."""


@dataclass(frozen=True)
class Call:
    """One call of the attention, without a mask."""

    batch: int
    num_heads: int
    length: int
    head_dim: int
    num_landmarks: int
    taps: int
    element_size: int
    iterations: int = 6

    @property
    def unit(self) -> int:
        """Bytes of Q."""
        return self.batch * self.num_heads * self.length * self.head_dim * self.element_size


def kernel_bytes(kernel: str, call: Call) -> int | None:
    """What a kernel must read and write: each of its inputs once, each of its outputs once; None of one unknown.

    Beside the N·D numbers: landmarks and what is as small, in float32, and the splits' parts of sums.
    """
    units = (FORWARD | BACKWARD).get(kernel)
    if units is None:
        return None
    heads, M, D = call.batch * call.num_heads, call.num_landmarks, call.head_dim
    plan = make_plan(heads, call.length, M, D, call.taps, call.element_size)
    tile, line = 4 * heads * M * D, 4 * heads * M
    parts = plan.parts * (tile + 2 * line)
    filter_bytes = 4 * call.num_heads * call.taps
    C = plan.taps_block
    weight_splits = -(-call.length // (-(-plan.tokens_of_split // C) * C))
    small = {
        "query_landmarks_kernel": tile,
        "keys_kernel": 2 * tile + parts,
        "landmark_system_kernel": parts + 4 * tile + line,
        "output_kernel": 2 * tile + filter_bytes,
        "output_sums_kernel": 2 * tile + 2 * plan.splits * tile,
        # Z and A Z of each iteration are written, and read again.
        "landmark_gradients_kernel": 8 * tile + line + 2 * 2 * call.iterations * 4 * heads * M * M,
        "key_value_gradients_kernel": 3 * tile + 2 * line + filter_bytes + plan.splits * tile,
        "query_gradients_kernel": 3 * tile,
        "weight_gradient_kernel": weight_splits * heads * C * 2 * C * 4,
    }
    return units * call.unit + small[kernel]


def step_flops(config: ModelConfig, length: int, rows: int, predictions: int) -> float:
    """Operations of a step of masked language modelling: 2 for each multiplication of the matrix products, three times
    those of the forward. What is computed again to save memory does not count.

    Args:
        predictions: masked positions of a row; what follows the last layer's attention is computed there alone.
    """
    E, F = config.transformer_dim, config.transformer_hidden_dim
    total = 0.0 if config.embedding_dim == E else 2.0 * length * config.embedding_dim * E
    for index, attention in enumerate(config.attentions):
        wanted = predictions if index == config.num_layers - 1 else length
        total += 2 * length * 3 * E * E + 2 * wanted * (E * E + 2 * E * F)
        if isinstance(attention, NystromConfig):
            total += _nystrom_flops(attention, config.num_head, config.head_dim, length)
        else:
            total += 4 * length * length * E
        total += 2 * length * E * (attention.conv_kernel_size or 0)
    total += 2 * predictions * (E * config.embedding_dim + config.embedding_dim * config.vocab_size)
    return 3.0 * rows * total


def _nystrom_flops(attention: NystromConfig, heads: int, head_dim: int, length: int) -> float:
    """softmax(Q̃Kᵀ)V and softmax(QK̃ᵀ)W, four products; Q̃K̃ᵀ and Z T; four products an iteration of eq. 14."""
    M = attention.num_landmarks
    if length <= M:
        return 4.0 * length * length * heads * head_dim
    by_token = 4 * 2 * length * M * head_dim
    return heads * float(by_token + 2 * 2 * M * M * head_dim + attention.pinv_iterations * 4 * 2 * M**3)
