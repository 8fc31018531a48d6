"""Kernels run in Triton's interpreter where there is no GPU, which must be said before anything imports Triton."""

import interpreting  # noqa: F401
