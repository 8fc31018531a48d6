"""`run_export.py export`: a model of this project in a form that others load."""

from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer
from torch import Tensor

from nystromformer.attention.swapped import own_keys_refused
from nystromformer.config import NystromConfig, SoftmaxConfig
from nystromformer.config.attention import AttentionConfig
from nystromformer.config.network import LAYER_DEFAULTS, NO_EFFECT
from nystromformer.data.tokenizer import row_form, special_names
from nystromformer.errors import UserError
from nystromformer.files.writing import NewFile, write_json, write_text
from nystromformer.interop.experiments.folders import check_free, write_folder
from nystromformer.interop.experiments.open_model import Opened, open_model
from nystromformer.interop.formats.table import NYSTROMFORMER, OWN, WRITTEN, Format, write_network
from nystromformer.wording import listed

FORMATS = ("hf", "sentence-transformers", "onnx", "torch")
MODULE_FILE = "modeling_nystrom_encoder.py"
_PARTS = {"ForMaskedLM": "mlm.", "ForSequenceClassification": "head.", "Model": "encoder."}
"""The weights that go with the encoder's, by the head of the stored model."""
_KEYS_IN_FILE = {"name", "num_landmarks", "conv_kernel_size"}
"""Of attentions that the file of code computes by itself."""
_PROBLEMS = {"several": "multi_label_classification", "value": "regression"}
"""What transformers calls what a classification's outputs are, where they are not one class of some."""


class Layout(NamedTuple):
    """A config.json of transformers', the weights by its names, and for what input it computes the same, a sentence."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    with_file: bool
    """Whether a file of code lies beside it, which `trust_remote_code` runs."""
    same: str
    why_not: tuple[str, ...] = ()
    """Where a file lies beside it: why none of transformers' own modules computes the same, a sentence each."""


def export_model(folder: Path, checkpoint: str | None = None, form: str = "hf", out: Path | None = None) -> str:
    """Write it, whole or not at all; returns what to say."""
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
        layout = lay_out(opened, form == "sentence-transformers")
        write_folder(dest, lambda folder: _write(opened, layout, form == "sentence-transformers", folder))
        said = layout.same
        if layout.why_not:
            said += f"\nnone of transformers' own modules computes the same:{listed(layout.why_not)}"
    return "\n".join([said, *filter(None, [opened.unlike_the_run]), f"exported: {dest}"])


def _write(opened: Opened, layout: Layout, for_sentences: bool, folder: Path) -> None:
    """What transformers loads: config.json, model.safetensors, the tokenizer, and where needed a file of code; and what
    sentence-transformers does, whose vectors are those that the model pools."""
    from safetensors.torch import save

    config = dict(layout.config)
    if opened.tokenizer is not None:
        names = special_names(opened.tokenizer)
        for role, own in {"bos": "bos", "pad": "pad", "eos": "eos", "cls": "bos", "sep": "eos"}.items():
            config[f"{role}_token_id"] = opened.tokenizer.token_to_id(names[own])
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


def lay_out(opened: Opened, for_sentences: bool = False) -> Layout:
    """The form of a model, for sentence-transformers of the encoder alone: transformers' own module where one computes
    the same on all that the model takes, or the model's config is to compute what transformers does; else a file of
    code beside the weights."""
    if for_sentences:
        opened.check_tokenizer()
    config, is_bare = opened.config, for_sentences or opened.is_headless
    head = "Model" if is_bare else "ForMaskedLM" if opened.labels is None else "ForSequenceClassification"
    # Without heads that nothing else has (sentence order).
    weights = {name: w for name, w in opened.weights.items() if name.startswith(("encoder.", _PARTS[head]))}
    why_not: list[str] = []
    for form in WRITTEN:
        if (reason := form.why_not(config, head)) is None:
            keys, stored = write_network(form, config, weights)
            limit = "for any length and any padding."
            if form is NYSTROMFORMER:
                limit = f"for full rows of {config.max_seq_len} tokens alone, and fails, or mixes rows, on others."
            same = f"transformers' own {form.title}{head} computes the same {limit}"
            return Layout(_common(opened, form, head) | keys, stored, False, same)
        why_not.append(f"{form.title}: {reason}")
    unlike = ["reversible layers"] if config.reversible else []
    unlike += [f"{each.name} attention" for each in config.attentions if own_keys_refused(each)]
    if unlike:
        raise UserError(f"{opened.path}: cannot be exported for transformers: the file of code has no {unlike[0]}")
    module = MODULE_FILE.removesuffix(".py")
    # A classification may begin with any of them.
    heads = dict.fromkeys((head, "Model", "ForSequenceClassification"))
    keys = _common(opened, OWN, head) | {
        "auto_map": {
            "AutoConfig": f"{module}.NystromEncoderConfig",
            **{f"Auto{'' if each == 'Model' else 'Model'}{each}": f"{module}.{OWN.title}{each}" for each in heads},
        },
        **config.model_dump(mode="json", exclude={*NO_EFFECT, *LAYER_DEFAULTS, "mixed_precision", "depth_scaled_init"}),
        "attn_type": [
            each.model_dump(mode="json", include=_KEYS_IN_FILE if _is_in_file(each) else None)
            for each in config.attentions
        ],
        "local_layers": [attention.is_local for attention in config.attentions],
    }
    same = (
        f"`{MODULE_FILE}`, one file of plain PyTorch that `trust_remote_code=True` runs, computes the same for any "
        "length and any padding. It is for inference: it has a loss, and no dropout."
    )
    if others := sorted({each.name for each in config.attentions if not _is_in_file(each)}):
        same += (
            f" It needs the package nystromformer installed, for {' and '.join(others)}: `pip install -e .` in a clone."
        )
    return Layout(keys, weights, True, same, tuple(why_not))


def _common(opened: Opened, form: Format, head: str) -> dict[str, Any]:
    keys: dict[str, Any] = {"model_type": form.kind, "architectures": [f"{form.title}{head}"], "dtype": "float32"}
    if head == "ForSequenceClassification" and opened.labels is not None and opened.recipe is not None:
        keys["id2label"] = {str(number): label for number, label in enumerate(opened.labels)}
        keys["label2id"] = {label: number for number, label in enumerate(opened.labels)}
        keys["problem_type"] = _PROBLEMS.get(opened.recipe.answer.kind, "single_label_classification")
    return keys


def _is_in_file(attention: AttentionConfig) -> bool:
    """Whether the file of code computes an attention by itself."""
    special = attention.model_dump(exclude_defaults=True).keys() - {"implementation"}
    return isinstance(attention, NystromConfig | SoftmaxConfig) and special <= _KEYS_IN_FILE


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
