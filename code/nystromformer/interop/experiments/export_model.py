"""`run_export.py export`: a model of this project in a form that others load."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from nystromformer.data.tokenizer import row_form, special_names
from nystromformer.errors import UserError
from nystromformer.files.writing import NewFile, write_json, write_text
from nystromformer.interop.experiments.card import model_card
from nystromformer.interop.experiments.folders import check_free, write_folder
from nystromformer.interop.experiments.layouts import MODULE_FILE, Layout, lay_out
from nystromformer.interop.experiments.open_model import Opened, open_model
from nystromformer.wording import listed

FORMATS = ("hf", "sentence-transformers", "onnx", "torch")


def export_model(folder: Path, checkpoint: str | None = None, form: str = "hf", out: Path | None = None) -> str:
    """Write it; returns what to say.

    Raises:
        UserError: an unknown form, a folder that is not empty, or a model that has no such form. Nothing is written
            then.
    """
    if form not in FORMATS:
        raise UserError(f"--format: expected one of {', '.join(FORMATS)}, found {form!r}")
    dest = out or folder / f"export-{form}"
    check_free(dest)
    if form == "onnx":
        import onnxruntime  # noqa: F401  # at once, as they may be missing
    opened = open_model(folder, checkpoint)
    if form in ("onnx", "torch"):
        from nystromformer.interop.experiments.programs import export_checked

        worst = export_checked(opened, dest, form)
        said = f"its logits differ from the model's by {worst:.1e} of the largest at most, on rows of three lengths"
    else:
        layout = export_hf(opened, dest, form == "sentence-transformers")
        said = layout.same
        if layout.why_not:
            said += f"\nnone of transformers' own modules computes the same:{listed(layout.why_not)}"
    return "\n".join([said, *filter(None, [opened.unlike_the_run]), f"exported: {dest}"])


def export_hf(opened: Opened, dest: Path, for_sentences: bool = False) -> Layout:
    """Write a folder that transformers loads: config.json, model.safetensors, the tokenizer, README.md, and where
    needed a file of code.

    Args:
        for_sentences: make it one of sentence-transformers, whose vectors are those that the model pools.

    Raises:
        UserError: a model that has no form there, a folder that is not empty, or it cannot be written. Nothing is
            written then.
    """
    layout = lay_out(opened, for_sentences)
    if for_sentences:
        opened.check_tokenizer()

    def write(folder: Path) -> None:
        from safetensors.torch import save

        config = dict(layout.config)
        if opened.tokenizer is not None:
            config |= _special_ids(opened.tokenizer)
            write_tokenizer(opened, opened.tokenizer, folder)
        write_json(folder / "config.json", config)
        with NewFile(folder / "model.safetensors") as file:
            # Copies, because layers may share a weight, which safetensors refuses.
            weights = {name: w.clone().contiguous() for name, w in layout.weights.items()}
            file.write(save(weights, {"format": "pt"}))
        if layout.with_file:
            write_text(folder / MODULE_FILE, Path(__file__).with_name(MODULE_FILE).read_text(encoding="utf-8"))
        if for_sentences:
            opened.sentences.write(folder, opened.config.transformer_dim)
        write_text(folder / "README.md", model_card(opened, layout, for_sentences))

    write_folder(dest, write)
    return layout


def _special_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    """What transformers' configs say of the special tokens."""
    names = special_names(tokenizer)
    roles = {"bos": "bos", "pad": "pad", "eos": "eos", "cls": "bos", "sep": "eos"}
    return {f"{role}_token_id": tokenizer.token_to_id(names[own]) for role, own in roles.items()}


def write_tokenizer(opened: Opened, tokenizer: Tokenizer, folder: Path) -> None:
    """The files that AutoTokenizer reads; two sentences of an input are told apart where the model does so."""
    names, has_types = special_names(tokenizer), opened.config.num_sen_type > 1
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.post_processor = row_form(copy, has_types)
    with NewFile(folder / "tokenizer.json") as file:
        file.write(copy.to_str(pretty=True).encode())
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": token for role, token in names.items()},
        "cls_token": names["bos"],
        "sep_token": names["eos"],
        "model_max_length": opened.longest,
        "model_input_names": ["input_ids", *(["token_type_ids"] if has_types else []), "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    if opened.labels is not None:
        config["split_special_tokens"] = True  # a text that spells [SEP] has no separator there, as in training
    write_json(folder / "tokenizer_config.json", config)
