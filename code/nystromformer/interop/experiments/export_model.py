"""`run_export.py export`: a model of this project in a form that others load."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from nystromformer.data.tokenizer import row_form, special_names
from nystromformer.errors import UserError
from nystromformer.files.writing import NewFile, write_json, write_text
from nystromformer.interop.experiments.folders import check_free, write_folder
from nystromformer.interop.experiments.layouts import MODULE_FILE, Layout, lay_out
from nystromformer.interop.experiments.open_model import Opened, open_model
from nystromformer.wording import listed

FORMATS = ("hf", "sentence-transformers", "onnx", "torch")
_TASKS = {"ForMaskedLM": "fill-mask", "ForSequenceClassification": "text-classification", "Model": "feature-extraction"}


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


def model_card(opened: Opened, layout: Layout, for_sentences: bool = False) -> str:
    """README.md of an exported folder.

    Args:
        for_sentences: whether it is one of sentence-transformers.
    """
    library = "sentence-transformers" if for_sentences else "transformers"
    tag = "sentence-similarity" if for_sentences else _TASKS[layout.head]
    names = " and ".join(dict.fromkeys(attention.name for attention in opened.config.attentions))
    size = sum(weight.numel() for weight in layout.weights.values())
    what = (
        f"{opened.config.num_layers} layers of width {opened.config.transformer_dim} with {names} attention; at most "
        f"{opened.longest} tokens, {size:,} parameters."
    )
    content, settings = opened.content, {"model": opened.config.model_dump(mode="json", by_alias=True)}
    origin = f"Checkpoint {opened.path.name}, step {content['step']:,}."
    if imported := content.get("imported"):
        origin += f" Imported from {imported['kind']}: {', '.join(imported['files'])}."
    elif opened.run is None:  # those of an imported model are for a training to come
        settings["pretraining_setting"] = content["config"]["pretraining_setting"]
    parts = [
        f"---\nlibrary_name: {library}\npipeline_tag: {tag}\ntags: [nystromformer]\n---",
        f"# {opened.name}",
        *filter(None, [what, layout.same, opened.unlike_the_run]),
        f"```python\n{_use(opened, layout, for_sentences)}\n```",
        f"## Where it comes from\n\n{origin}",
    ]
    history = content.get("history") or [{}]
    metrics: dict[str, float] = history[-1].get("metrics", {})
    if opened.run is not None:
        metrics = next((each.metrics for each in opened.run.epochs if each.epoch == content["epoch"]), {})
    if metrics:
        rows = (f"| validation: {name} | {value:.4g} |" for name, value in metrics.items())
        parts.append("## Figures\n\n| | |\n|---|---|\n" + "\n".join(rows))
    parts.append(f"## Settings\n\n```json\n{json.dumps(settings, indent=2)}\n```")
    return "\n\n".join(parts) + "\n"


def _use(opened: Opened, layout: Layout, for_sentences: bool) -> str:
    """A program that runs, where FOLDER is the folder."""
    trust = ", trust_remote_code=True" if layout.with_file else ""
    if for_sentences:
        vector = "the mean of all tokens' vectors" if opened.sentences.pooling == "mean" else "the first token's vector"
        return (
            "from sentence_transformers import SentenceTransformer\n\n"
            f'model = SentenceTransformer("FOLDER"{trust})\n'
            f'print(model.encode(["a text", "another"]).shape)  # of each text {vector}'
        )
    if opened.tokenizer is None or layout.head == "Model":
        name = f"Auto{'' if layout.head == 'Model' else 'Model'}{layout.head}"
        return (
            f"import torch\nfrom transformers import {name}\n\n"
            f'model = {name}.from_pretrained("FOLDER"{trust})\n'
            "tokens = torch.tensor([[0, 5, 2]])  # ids of the model's tokenizer\n"
            "print(model(input_ids=tokens)[0].shape)"
        )
    call = 'f"a text with a {model.tokenizer.mask_token} in it"'
    if opened.run is not None:
        call = '{"text": "one text", "text_pair": "and, where the task has it, another"}, truncation=True'
    model = f'pipeline("{_TASKS[layout.head]}", "FOLDER"{trust})'
    return f"from transformers import pipeline\n\nmodel = {model}\nprint(model({call}))"
