"""A model as a folder that transformers loads."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from nystromformer.data.tokenizer import row_form, special_names
from nystromformer.errors import UserError
from nystromformer.files.writing import NewFile, write_json, write_text
from nystromformer.interop.experiments.card import model_card
from nystromformer.interop.experiments.folders import write_folder
from nystromformer.interop.experiments.layouts import MODULE_FILE, Code, Layout, lay_out
from nystromformer.interop.experiments.open_model import Opened


def export_hf(opened: Opened, dest: Path, code: Code = "auto", for_sentences: bool = False) -> Layout:
    """Write the folder: config.json, model.safetensors, the tokenizer, README.md, and where needed a file of code.

    Args:
        for_sentences: make it one of sentence-transformers, whose vectors are those that the model pools.

    Raises:
        UserError: a model that has no form there, a folder that is not empty, or it cannot be written. Nothing is
            written then.
    """
    layout = lay_out(opened, code)
    if for_sentences:
        check_tokenizer(opened)

    def write(folder: Path) -> None:
        from safetensors.torch import save

        config = dict(layout.config)
        if opened.tokenizer is not None:
            config |= special_ids(opened.tokenizer)
            write_tokenizer(opened, opened.tokenizer, folder)
        write_json(folder / "config.json", config)
        with NewFile(folder / "model.safetensors") as file:
            # Copies, because layers may share a weight, which safetensors refuses.
            weights = {name: w.clone(memory_format=torch.contiguous_format) for name, w in layout.weights.items()}
            file.write(save(weights, {"format": "pt"}))
        if layout.with_file:
            write_text(folder / MODULE_FILE, Path(__file__).with_name(MODULE_FILE).read_text(encoding="utf-8"))
        if for_sentences:
            _write_modules(opened, folder)
        write_text(folder / "README.md", model_card(opened, layout, for_sentences))

    write_folder(dest, write)
    return layout


def _write_modules(opened: Opened, folder: Path) -> None:
    """What sentence-transformers reads: the model's vectors of tokens, and how they are pooled."""
    parts = (("", "Transformer"), ("1_Pooling", "Pooling"))
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}
        for number, (path, name) in enumerate(parts)
    ]
    write_json(folder / "modules.json", modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": opened.longest})
    is_mean = opened.config.pooling == "mean"
    pooling = {
        "word_embedding_dimension": opened.config.transformer_dim,
        "pooling_mode_cls_token": not is_mean,
        "pooling_mode_mean_tokens": is_mean,
    }
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", pooling)


def special_ids(tokenizer: Tokenizer) -> dict[str, Any]:
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
    inputs = ["input_ids", *(["token_type_ids"] if has_types else []), "attention_mask"]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": token for role, token in names.items()},
        "cls_token": names["bos"],
        "sep_token": names["eos"],
        "model_max_length": opened.longest,
        "model_input_names": inputs,
        "clean_up_tokenization_spaces": False,
    }
    if opened.labels is not None:
        config["split_special_tokens"] = True  # a text that spells [SEP] has no separator there, as in training
    write_json(folder / "tokenizer_config.json", config)


def check_tokenizer(opened: Opened) -> Tokenizer:
    """The tokenizer of a model that has one.

    Raises:
        UserError: it has none.
    """
    if opened.tokenizer is None:
        raise UserError(
            f"{opened.path}: was imported without a tokenizer, which is needed here: import it again with --tokenizer"
        )
    return opened.tokenizer
