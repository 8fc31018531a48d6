"""Packages that only some of the project needs, and how to install what brings them."""

EXTRAS = {
    "matplotlib": "report",
    "openpyxl": "excel",
    "docker": "docker",
    "ray": "ray",
    "datatrove": "datatrove",
    **dict.fromkeys(("fastapi", "uvicorn"), "serve"),
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "export"),
    **dict.fromkeys(
        (
            *("transformers", "datasets", "tokenizers", "tqdm", "torchmetrics", "tensorboard", "pyarrow"),
            *("safetensors", "typer", "sklearn"),
        ),
        "train",
    ),
}
"""By a module that may not be installed: the extra that brings it."""


def how_to_install(extra: str) -> str:
    """How an extra is installed."""
    return f'`pip install "nystromformer-torch[{extra}]"`, or `pip install -e ".[{extra}]"` in a clone'


def what_is_missing(error: ModuleNotFoundError) -> str | None:
    """What to say where a package is not installed; None of one that no extra brings."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return None
    return f"this needs {module}, which is not installed: {how_to_install(EXTRAS[module])}"
