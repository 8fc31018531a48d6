"""What operations hold at once."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    """The elements of the largest tensor that an operation gives."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


def bytes_for_backward(work: Callable[[], object]) -> dict[int, int]:
    """The bytes of each storage, by its address, that `work` leaves for a backward."""
    sizes: dict[int, int] = {}

    def count(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
        result = work()  # what is saved lives as long
    del result
    return sizes
