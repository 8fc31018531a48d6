"""The raw files of a dataset's rows: their names, and the numbers in them."""

import numpy as np

from nystromformer.data.manifest import Dtype


def tokens_file(split: str) -> str:
    """Name of the file of a split's rows."""
    return f"{split}.tokens.bin"


def splits_file(split: str) -> str:
    """Name of the file of a split's sentence-order split points."""
    return f"{split}.splits.bin"


def storage_dtype(values: int) -> Dtype:
    """Name of the type that stores the integers below `values`."""
    return "uint16" if values <= 1 << 16 else "int32"


def little_endian(dtype: Dtype) -> np.dtype:
    """The numpy type of stored values, whatever the machine's byte order."""
    return np.dtype(dtype).newbyteorder("<")
