"""Nyströmformer: O(n) self-attention by the Nyström method (Xiong et al., AAAI 2021)."""

from importlib import import_module
from pathlib import Path

if (Path(__file__).parent / "nystrom_attention.py").exists():
    raise ImportError(
        "two packages are installed in one folder, both imported as nystromformer: this one (nystromformer-torch) and "
        "one for TensorFlow (nystromformer). Run `pip uninstall nystromformer nystromformer-torch`, then `pip install "
        "nystromformer-torch`"
    )

__version__ = "0.1.0"

_LAZY = {
    "from_pretrained": "interop.experiments.open_model",
    "Predictor": "prediction.predictor",
}
"""What the package offers by itself, and where it is: imported when it is asked for, because torch takes seconds. Their
types are in __init__.pyi."""


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_LAZY[name]}")
    except ModuleNotFoundError as error:
        from nystromformer.command_line.extras import what_is_missing

        if (missing := what_is_missing(error)) is None:
            raise
        raise ModuleNotFoundError(f"{name}: {missing}", name=error.name) from error
    return getattr(module, name)
