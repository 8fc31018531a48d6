"""The model card: what an exported model is, how it is used, and what was measured of it."""

import json

from nystromformer.interop.experiments.layouts import Layout
from nystromformer.interop.experiments.open_model import Opened

_TASKS = {"ForMaskedLM": "fill-mask", "ForSequenceClassification": "text-classification", "Model": "feature-extraction"}


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
    if metrics := _metrics(opened):
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


def _metrics(opened: Opened) -> dict[str, float]:
    """On the validation data; none of an imported model."""
    if opened.run is not None:
        epoch: int = opened.content["epoch"]
        return next((each.metrics for each in opened.run.epochs if each.epoch == epoch), {})
    history = opened.content.get("history")
    metrics: dict[str, float] = history[-1]["metrics"] if history else {}
    return metrics
