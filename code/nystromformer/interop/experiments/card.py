"""The model card: what an exported model is, where it comes from, and what was measured of it."""

import json
import re
from pathlib import Path

from nystromformer.config import NystromConfig
from nystromformer.interop.experiments.layouts import Layout
from nystromformer.interop.experiments.open_model import Opened
from nystromformer.runs.call import Call

_FOLDERS = re.compile(r"(^|=)(?=[/~]|\.\./).*/")


def model_card(opened: Opened, layout: Layout, for_sentences: bool = False) -> str:
    """README.md of an exported folder.

    Args:
        for_sentences: whether it is one of sentence-transformers.
    """
    is_mlm = opened.labels is None
    tag = "sentence-similarity" if for_sentences else "fill-mask" if is_mlm else "text-classification"
    library = "sentence-transformers" if for_sentences else "transformers"
    head = ["---", f"library_name: {library}", f"pipeline_tag: {tag}"]
    parts = [
        "\n".join([*head, "tags: [nystromformer]", "---"]),
        f"# {opened.name}",
        "\n\n".join(filter(None, [_what(opened), layout.same, opened.unlike_the_run])),
        _use_for_sentences(opened, layout) if for_sentences else _use(opened, layout),
        "## Where it comes from\n\n" + "\n".join(f"- {line}" for line in _origin(opened)),
    ]
    if figures := _figures(opened):
        parts.append("## Figures\n\n| | |\n|---|---|\n" + "\n".join(f"| {key} | {value} |" for key, value in figures))
    settings = {"model": opened.config.model_dump(mode="json", by_alias=True)}
    # Those of an imported model are for a training to come.
    if is_mlm and not isinstance(opened.content.get("imported"), dict):
        settings["pretraining_setting"] = opened.content["config"]["pretraining_setting"]
    parts.append(f"## Settings\n\n```json\n{json.dumps(settings, indent=2)}\n```")
    return "\n\n".join(parts) + "\n"


def _what(opened: Opened) -> str:
    config = opened.config
    names = " and ".join(dict.fromkeys(attention.name for attention in config.attentions))
    landmarks = sorted({a.num_landmarks for a in config.attentions if isinstance(a, NystromConfig)})
    taps = sorted({a.conv_kernel_size for a in config.attentions if a.conv_kernel_size})
    extra = f", {', '.join(map(str, landmarks))} landmarks" if landmarks else ""
    extra += f", a convolution of {', '.join(map(str, taps))} taps over the values" if taps else ""
    kind = "A model that guesses masked tokens"
    if opened.labels is not None:
        kind = f"A model that {'scores' if opened.problem == 'regression' else 'classifies'} texts"
    size = sum(weight.numel() for weight in opened.weights.values())
    return (
        f"{kind}: {config.num_layers} layers of width {config.transformer_dim} with {names} attention{extra}; at most "
        f"{opened.longest} tokens, {size:,} parameters."
    )


def _use(opened: Opened, layout: Layout) -> str:
    task = "fill-mask" if opened.labels is None else "text-classification"
    trust = ", trust_remote_code=True" if layout.with_file else ""
    lines = ["from transformers import pipeline", "", f'model = pipeline("{task}", "FOLDER"{trust})']
    if opened.tokenizer is None:
        head = "MaskedLM" if opened.labels is None else "SequenceClassification"
        lines = [f"import torch\nfrom transformers import AutoModelFor{head}\n"]
        lines.append(f'model = AutoModelFor{head}.from_pretrained("FOLDER"{trust})')
        lines.append("tokens = torch.tensor([[0, 5, 2]])  # ids of the model's own tokenizer, which is not here")
        lines.append("print(model(input_ids=tokens).logits.shape)")
    elif opened.labels is None:
        lines.append('print(model(f"a text with a {model.tokenizer.mask_token} in it"))')
    else:
        pair = '{"text": "one text", "text_pair": "and, where the task has it, another"}'
        lines.append(f"print(model({pair}, truncation=True))")
    return "```python\n" + "\n".join(lines) + "\n```"


def _use_for_sentences(opened: Opened, layout: Layout) -> str:
    trust = ", trust_remote_code=True" if layout.with_file else ""
    vector = "the mean of all tokens' vectors" if opened.config.pooling == "mean" else "the first token's vector"
    return (
        "```python\nfrom sentence_transformers import SentenceTransformer\n\n"
        f'model = SentenceTransformer("FOLDER"{trust})\nprint(model.encode(["a text", "another"]).shape)\n```\n\n'
        f"A text's vector is {vector}, {opened.config.transformer_dim} numbers."
    )


def _origin(opened: Opened) -> list[str]:
    content = opened.content
    step = f"step {content['step']:,}{opened.which}"
    lines = [f"checkpoint {opened.path.name}, {step}, of version {content.get('version')}"]
    imported, started = content.get("imported"), content.get("started_from")
    if isinstance(imported, dict):
        lines.append(f"imported from {imported.get('kind')}: {', '.join(imported.get('files', {}))}")
    if isinstance(started, dict):
        name = Path(str(started.get("path"))).name
        lines.append(f"its weights began as those of {name} (step {started.get('step')})")
    if fingerprint := opened.content.get("dataset"):
        lines.append(f"data: dataset {str(fingerprint)[:16]}")
    if opened.result is not None:
        lines.append(f"command: `{_without_folders(opened.result.call)}`")
    elif opened.labels is None and not isinstance(imported, dict):
        lines.append(f"command: `python code/run_pretrain.py --model {opened.name} --dataset DATASET`")
    return lines


def _without_folders(call: Call) -> Call:
    """A command whose absolute paths are names alone: where they lie says something about one machine."""
    flags = {flag: tuple(map(_without_folder, words)) for flag, words in call.flags.items()}
    return Call(_without_folder(call.script), flags, tuple(map(_without_folder, call.arguments)))


def _without_folder(word: str) -> str:
    return _FOLDERS.sub(r"\1", word.rstrip("/"))


def _figures(opened: Opened) -> list[tuple[str, str]]:
    if opened.result is not None:
        chosen = [each for each in opened.result.epochs if each.epoch == opened.content["epoch"]]
        metrics = chosen[0].metrics if chosen else opened.result.best.metrics
        return [(f"validation: {name}", f"{value:.4g}") for name, value in metrics.items()]
    history = opened.content.get("history")
    if not history:
        return []
    last = history[-1]
    return [(f"validation at step {last['step']:,}: {name}", f"{value:.4g}") for name, value in last["metrics"].items()]
