"""The model card: what an exported model is, where it comes from, and what was measured of it."""

import json
import re
from pathlib import Path

from nystromformer.config import NystromConfig
from nystromformer.interop.experiments.layouts import Layout
from nystromformer.interop.experiments.open_model import Opened
from nystromformer.runs.call import Call

_FOLDERS = re.compile(r"(^|=)(?=[/~]|\.\./).*/")
_TASKS = {"ForMaskedLM": "fill-mask", "ForSequenceClassification": "text-classification", "Model": "feature-extraction"}


def model_card(opened: Opened, layout: Layout, for_sentences: bool = False) -> str:
    """README.md of an exported folder.

    Args:
        for_sentences: whether it is one of sentence-transformers.
    """
    library = "sentence-transformers" if for_sentences else "transformers"
    tag = "sentence-similarity" if for_sentences else _TASKS[layout.head]
    parts = [
        f"---\nlibrary_name: {library}\npipeline_tag: {tag}\ntags: [nystromformer]\n---",
        f"# {opened.name}",
        "\n\n".join(filter(None, [_what(opened, layout), layout.same, opened.unlike_the_run])),
        f"```python\n{_use(opened, layout, for_sentences)}\n```",
        "## Where it comes from\n\n" + "\n".join(f"- {line}" for line in _origin(opened)),
    ]
    if figures := _figures(opened):
        parts.append("## Figures\n\n| | |\n|---|---|\n" + "\n".join(f"| {key} | {value} |" for key, value in figures))
    settings = {"model": opened.config.model_dump(mode="json", by_alias=True)}
    # Those of an imported model are for a training to come.
    if opened.labels is None and "imported" not in opened.content:
        settings["pretraining_setting"] = opened.content["config"]["pretraining_setting"]
    parts.append(f"## Settings\n\n```json\n{json.dumps(settings, indent=2)}\n```")
    return "\n\n".join(parts) + "\n"


def _what(opened: Opened, layout: Layout) -> str:
    config = opened.config
    names = " and ".join(dict.fromkeys(attention.name for attention in config.attentions))
    landmarks = sorted({a.num_landmarks for a in config.attentions if isinstance(a, NystromConfig)})
    taps = sorted({a.conv_kernel_size for a in config.attentions if a.conv_kernel_size})
    extra = f", {', '.join(map(str, landmarks))} landmarks" if landmarks else ""
    extra += f", a convolution of {', '.join(map(str, taps))} taps over the values" if taps else ""
    kinds = {"ForMaskedLM": "A model that guesses masked tokens", "Model": "An encoder"}
    verb = "scores" if opened.problem == "regression" else "classifies"
    size = sum(weight.numel() for weight in layout.weights.values())
    return (
        f"{kinds.get(layout.head, f'A model that {verb} texts')}: {config.num_layers} layers of width "
        f"{config.transformer_dim} with {names} attention{extra}; at most {opened.longest} tokens, {size:,} parameters."
    )


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
    if opened.labels is not None:
        call = '{"text": "one text", "text_pair": "and, where the task has it, another"}, truncation=True'
    model = f'pipeline("{_TASKS[layout.head]}", "FOLDER"{trust})'
    return f"from transformers import pipeline\n\nmodel = {model}\nprint(model({call}))"


def _origin(opened: Opened) -> list[str]:
    content = opened.content
    step = f"step {content['step']:,}{opened.which}"
    lines = [f"checkpoint {opened.path.name}, {step}, of version {content.get('version')}"]
    imported, started = content.get("imported"), content.get("started_from")
    if imported:
        lines.append(f"imported from {imported['kind']}: {', '.join(imported['files'])}")
    if started:
        lines.append(f"its weights began as those of {Path(started['path']).name} (step {started['step']})")
    if fingerprint := opened.content.get("dataset"):
        lines.append(f"data: dataset {str(fingerprint)[:16]}")
    if opened.result is not None:
        lines.append(f"command: `{_without_folders(opened.result.call)}`")
    elif opened.labels is None and not imported:
        lines.append(f"command: `python code/run_pretrain.py --model {opened.name} --dataset DATASET`")
    return lines


def _without_folders(call: Call) -> Call:
    """A command whose absolute paths are names alone: where they lie says something about one machine."""

    def bare(word: str) -> str:
        return _FOLDERS.sub(r"\1", word.rstrip("/"))

    flags = {flag: tuple(map(bare, words)) for flag, words in call.flags.items()}
    return Call(bare(call.script), flags, tuple(map(bare, call.arguments)))


def _figures(opened: Opened) -> list[tuple[str, str]]:
    if opened.result is not None:
        chosen = [each for each in opened.result.epochs if each.epoch == opened.content["epoch"]]
        metrics = chosen[0].metrics if chosen else opened.result.best.metrics
        return [(f"validation: {name}", f"{value:.4g}") for name, value in metrics.items()]
    if not (history := opened.content.get("history")):
        return []
    last = history[-1]
    return [(f"validation at step {last['step']:,}: {name}", f"{value:.4g}") for name, value in last["metrics"].items()]
