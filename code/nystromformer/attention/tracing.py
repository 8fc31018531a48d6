"""What traces or transforms the computation, so that some of its ways cannot be taken."""

import torch


def is_exporting() -> bool:
    """Whether `torch.export` is tracing: then no Python branch may look at the length."""
    return bool(torch.compiler.is_exporting())


def is_transforming() -> bool:
    """Whether torch.func takes derivatives or maps over a dimension: it takes no autograd.Function with a context."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def is_plain() -> bool:
    """Whether a graph is traced or torch.func transforms: then all operations must be PyTorch's own."""
    return torch.compiler.is_compiling() or is_transforming()
