"""`run_benchmark.py efficiency --peers`: one attention beside its public implementations."""

from collections.abc import Sequence
from pathlib import Path

from nystromformer.benchmark.attention import AttentionBenchmark
from nystromformer.benchmark.attention_report import measure_attention
from nystromformer.benchmark.efficiency.methods import parse_method
from nystromformer.benchmark.method import MethodBenchmark, measure_method
from nystromformer.config.attention.nystrom import NystromConfig
from nystromformer.errors import UserError


def measure_beside_peers(
    attention: Sequence[str],
    lengths: tuple[int, ...],
    *,
    batch: int,
    heads: int,
    head_dim: int,
    repeats: int,
    threads: int,
    folder: Path,
    command: str,
) -> str:
    """Measure, write figures and tables, and return what to print.

    Nyström attention as the paper has it, with any number of landmarks, is measured with the paper's convolution, with
    and without a padding mask, and beside the authors' formulation; any other one, and one with other settings, as it
    is configured.

    Args:
        attention: one, as `--attention` takes them; none: `nystrom`.
        command: what repeats the measurement.

    Raises:
        UserError: several attentions, an unknown one, or lengths that it or its peers do not take.
    """
    if len(attention) > 1:
        raise UserError(f"--peers: expected one --attention, found {len(attention)}")
    config = parse_method(attention[0] if attention else "nystrom").config
    assert config is not None
    sizes = {"num_heads": heads, "head_dim": head_dim, "repeats": repeats, "threads": threads}
    if isinstance(config, NystromConfig) and config == NystromConfig(num_landmarks=config.num_landmarks):
        settings = AttentionBenchmark(lengths, batch, num_landmarks=config.num_landmarks, **sizes)
        return measure_attention(settings, folder, command)
    return measure_method(MethodBenchmark(config, lengths, batch, **sizes), folder, command)
