"""Trying the kernels once before they are trusted: a driver, a compiler and a GPU are met that no test has met."""

from concurrent.futures import ThreadPoolExecutor

import torch

from nystromformer.attention.kernels.plan import constant_when_compiled

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 2e-2}
"""Relative errors above these are mistakes; rounding is far below."""
_verdicts: dict[tuple[object, ...], str | None] = {}


@constant_when_compiled
def failure(
    device: str, num_landmarks: int, head_dim: int, dtype: torch.dtype, taps: int, has_mask: bool
) -> str | None:
    """What goes wrong where a small input goes forward and backward; None where the kernels agree with float64.

    Args:
        device: such as cuda:0.
        taps: K, or 0 without a convolution.
        has_mask: with a mask kernels are others than without.
    """
    case = (device, num_landmarks, head_dim, dtype, taps, has_mask)
    if case not in _verdicts:
        if torch.device(device).type == "cuda" and torch.cuda.is_current_stream_capturing():
            return "they were not tried before a CUDA graph is captured: run once before"
        try:
            # In a thread of its own: what the caller is amid of (checkpointing's hooks, autocast, inference mode,
            # another default device) is not the trial's.
            with ThreadPoolExecutor(1) as thread:
                _verdicts[case] = thread.submit(_try, *case).result()
        except Exception as error:  # of whatever kind: a compiler's, a driver's
            # Kept, even if memory was short: another answer in the backward would be another path than the forward's,
            # and a trial there would wait for the thread of autograd that waits for it.
            said = str(error).strip().splitlines()
            _verdicts[case] = f"they fail on {device}: {type(error).__name__}" + (f": {said[-1][:200]}" if said else "")
    return _verdicts[case]


def _try(device: str, num_landmarks: int, head_dim: int, dtype: torch.dtype, taps: int, has_mask: bool) -> str | None:
    from nystromformer.attention import comparison

    place, length = torch.device(device), 2 * num_landmarks + 16
    drawn = comparison.draw_inputs((1, length, 2, head_dim), dtype, torch.Generator().manual_seed(0))
    inputs = [x.to(place) for x in drawn]
    keep_BN = torch.arange(length, device=place)[None] < length - 13 if has_mask else None
    parameters = {"num_landmarks": num_landmarks, "conv_kernel_size": taps or None}
    with torch.random.fork_rng([place] if place.type == "cuda" else []):
        fused, plain = (
            comparison.build(0, place, num_heads=2, head_dim=head_dim, implementation=each, **parameters)
            for each in ("triton", "torch")
        )
    found = comparison.results(fused, inputs, keep_BN)
    errors = comparison.errors(found, comparison.by_tensor_operations(plain, inputs, keep_BN))
    wrong = [f"{error:.2g}" for error in errors.values() if not error < _TOLERANCE[dtype]]  # NaN is not below either
    return f"their results are wrong on {device} (relative errors {', '.join(wrong)})" if wrong else None
