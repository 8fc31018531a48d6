"""`run_export.py export`: a model of this project in a form that others load."""

from pathlib import Path
from typing import cast

from nystromformer.errors import UserError
from nystromformer.interop.experiments.folders import check_free
from nystromformer.interop.experiments.hf import export_hf
from nystromformer.interop.experiments.layouts import CODES, Code
from nystromformer.interop.experiments.open_model import open_model
from nystromformer.interop.experiments.programs import export_checked

FORMATS = ("hf", "sentence-transformers", "onnx", "torch")


def export_model(folder: Path, checkpoint: str | None, form: str, out: Path | None, code: str) -> str:
    """Write it; returns what to say.

    Raises:
        UserError: an unknown form, a folder that is not empty, or a model that has no such form. Nothing is written
            then.
    """
    for flag, value, valid in (("--format", form, FORMATS), ("--code", code, CODES)):
        if value not in valid:
            raise UserError(f"{flag}: expected one of {', '.join(valid)}, found {value!r}")
    for_sentences = form == "sentence-transformers"
    if code != "auto" and not (form == "hf" or for_sentences):
        raise UserError(f"--code {code} is for --format hf and sentence-transformers, found --format {form}")
    dest = out or folder / f"export-{form}"
    check_free(dest)
    if form == "onnx":
        import onnx  # noqa: F401  # at once, as they may be missing
    opened = open_model(folder, checkpoint)
    if form == "hf" or for_sentences:
        said = export_hf(opened, dest, cast(Code, code), for_sentences).same
    else:
        worst = export_checked(opened, dest, form)
        said = f"its logits differ from the model's by {worst:.1e} of the largest at most, on rows of three lengths"
    return "\n".join([said, *filter(None, [opened.unlike_the_run]), f"exported: {dest}"])
