"""`run_export.py convert`: an experiment with another attention in softmax's place, trained to be like its source.

Shapes: B rows, N tokens, E width.
"""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from signal import Signals
from statistics import mean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import nystromformer
from nystromformer.config import ExperimentConfig
from nystromformer.data.sampler import rows_of_step
from nystromformer.data.tokenizer import sha256_as_saved, special_tokens
from nystromformer.errors import UserError
from nystromformer.files.parts import open_parts
from nystromformer.files.reading import read_json
from nystromformer.files.writing import sha256_of, write_json
from nystromformer.interop.experiments.folders import check_free, write_folder
from nystromformer.interop.experiments.import_model import (
    MAY_DIFFER,
    changed_config,
    find_source,
    import_model,
    initial_weights,
    write_experiment,
)
from nystromformer.interop.experiments.open_model import Opened, open_model
from nystromformer.interop.experiments.settings import Conversion
from nystromformer.machine import machine_facts
from nystromformer.model import PretrainingModel
from nystromformer.tables import markdown
from nystromformer.tabular.cells import text_of
from nystromformer.tabular.table import open_table
from nystromformer.tasks.experiment.start import fit_weights, initial_model
from nystromformer.tasks.finetuning.encoded import literal
from nystromformer.training import Device, Step, TrainingSettings, choose_device, fit
from nystromformer.training.trainable import Batch, micro_batch_slices, to_device
from nystromformer.wording import listed

Rows = list[NDArray[np.int32]]
"""Token ids, each row in the tokenizer's form `<s> A </s>`."""
Call = tuple[Any, Any, Tensor]
"""Arguments of a layer's attention, and what it gave."""

RECORD = "conversion.json"


def convert_model(
    source: Path, dest: Path, asked: Conversion, device_name: str, command: str
) -> tuple[str, Signals | None]:
    """Convert; returns what to say, and the signal that stopped it. DEST appears when all is done; until then there
    is `DEST.conversion`, from which the same command continues."""
    check_free(dest)
    with tempfile.TemporaryDirectory() as scratch:
        original = _open_original(source, Path(scratch) / "source")
        settings = asdict(asked) | {"input": asked.input.name, "source": sha256_of(original.path)}
    tokenizer = original.check_tokenizer()
    config, teacher, student, notes = _models(original, asked)
    length, longest = asked.length or config.model.max_seq_len, config.model.max_seq_len
    reasons = [reason for each in config.model.attentions if (reason := each.why_not_length(length))]
    if reasons or not asked.least_tokens <= length <= longest:
        raise UserError(
            f"--length {length}: expected from {asked.least_tokens} (--least_tokens) to {longest} tokens (--set "
            f"model.max_seq_len=N extends positions), as many as the attention takes{listed(reasons[:1])}"
        )
    train, held_out = read_rows(asked, tokenizer, length)
    settings["length"] = length
    del settings["overrides"]  # the config has them
    dataset = hashlib.sha256(b"".join(row.tobytes() + b"|" for row in (*train, *held_out))).hexdigest()[:16]
    facts = {
        "version": nystromformer.__version__,
        "config": config.model_dump(mode="json", by_alias=True),
        "dataset": dataset,
        "tokenizer": sha256_as_saved(tokenizer),
    }
    device = choose_device(device_name, config.model.mixed_precision)
    work = dest.resolve().with_name(f"{dest.resolve().name}.conversion")
    with open_parts(work, "run_export.py convert", facts | settings, advice="choose another DEST") as parts:
        student, teacher = (model.to(device.device) for model in (student, teacher))
        task = _Task("layers", student, teacher, asked, train, held_out, special_tokens(tokenizer).pad)
        before = task.compare()
        if (stopped_by := _train(task, work, device)) is not None:
            return f"stopped; the same command continues from {work}", stopped_by
        data: dict[str, Any] = {"machine": machine_facts(), "command": command, "source": source.name, "notes": notes}
        data |= {"before": before, "after": task.compare(), "settings": settings}

        def write(folder: Path) -> None:
            weights = {name: weight.cpu() for name, weight in student.state_dict().items()}
            imported = {"kind": "converted", "files": {}, "headless": original.is_headless}
            origin = {"dataset": dataset, "conversion": settings, "imported": imported}
            write_experiment(folder, config, tokenizer, original.kept, weights, origin)
            write_json(folder / RECORD, data)

        write_folder(dest, write)
        parts.remove()
    # The attention is known to whoever asked for it.
    said = [f"- {note}" for note in notes if not note.startswith("model.attn_type:")]
    header = ["", "mean error of the attentions", "error of the last hidden vectors", "cosine"]
    lines = [[when, *(f"{x:.3f}" for x in _summary(data[when]).values())] for when in ("before", "after")]
    return "\n".join([*said, markdown(header, lines), f"converted: {dest}"]), None


def _open_original(source: Path, scratch: Path) -> Opened:
    """Open an experiment folder, whose config.json has a section model; all else is imported."""
    folder = find_source(source)
    config = folder / "config.json"
    if not (config.is_file() and "model" in read_json(config)):
        import_model(folder, scratch)
        folder = scratch
    original = open_model(folder)
    names = {each.name for each in original.config.attentions}
    if names != {"softmax"} or original.config.reversible or original.labels is not None:
        raise UserError(
            f"{source}: expected a model that is not fine-tuned, with softmax in all layers, none of them reversible; "
            f"found {', '.join(sorted(names))}"
        )
    return original


def _models(
    original: Opened, asked: Conversion
) -> tuple[ExperimentConfig, PretrainingModel, PretrainingModel, list[str]]:
    """The new experiment's config; the source in its shape, and its model with the source's weights (a convolution
    begins at zero); and what was done to fit these, a line each.
    """
    data = original.experiment.model_dump(mode="json", by_alias=True)
    # The new folder has weights of its own.
    data |= {"from_cp": None, "model_checkpoints": ExperimentConfig.model_fields["model_checkpoints"].default}
    new = changed_config(data, f"{original.path} with {asked.attention}", asked.attention, None, asked.overrides)
    softmax = {key: getattr(original.config, key) for key in ("attn_type", "num_landmarks", "conv_kernel_size")}
    models: list[PretrainingModel] = []
    before = original.config.model_dump(mode="json", by_alias=True)
    for config in (new.model_copy(update={"model": new.model.model_copy(update=softmax)}), new):
        model = initial_model(config)
        transfer = fit_weights(original.path, original.weights, before, config, initial_weights(model), MAY_DIFFER)
        model.load_state_dict(transfer.weights)
        models.append(model.eval())
    teacher, student = models
    return new, teacher, student, transfer.notes


def read_rows(asked: Conversion, tokenizer: Tokenizer, length: int) -> tuple[Rows, Rows]:
    """Rows of at most `length` tokens, to train on and held out; no document has rows in both."""
    special, encoder, table = special_tokens(tokenizer), literal(tokenizer), open_table(asked.input)
    documents = []
    for number, (cell,) in enumerate(table.rows((asked.text,)), start=1):
        document = text_of(table, number, asked.text, cell)
        ids = encoder.encode(document, add_special_tokens=False).ids
        parts = (ids[start : start + length - 2] for start in range(0, len(ids), length - 2))
        rows = [np.array([special.bos, *part, special.eos], dtype=np.int32) for part in parts]
        if long := [row for row in rows if document.strip() and len(row) >= asked.least_tokens]:
            documents.append(long)
    train: Rows = []
    held_out: Rows = []
    for number in np.random.default_rng(asked.seed).permutation(len(documents)):
        (held_out if len(held_out) < asked.held_out else train).extend(documents[number])
    if not train:
        raise UserError(
            f"{asked.input}: expected rows to train on beside {asked.held_out} (--held_out), each of at least "
            f"{asked.least_tokens} tokens (--least_tokens), found {len(held_out)} in all"
        )
    return train, held_out[: asked.held_out]


def _run(model: PretrainingModel, batch: Batch) -> tuple[list[Call], list[Tensor]]:
    """What each layer's attention is given and gives; and what each layer gives: what follows the last one, a norm or
    nothing, belongs to it."""
    calls: list[Call] = []
    hidden: list[Tensor] = []
    hooks = []
    for layer in model.encoder.stack():
        hooks.append(layer.attention.register_forward_hook(lambda _, *call: calls.append(call), with_kwargs=True))
        hooks.append(layer.register_forward_hook(lambda *call: hidden.append(call[2])))
    last_BNE = model.encoder(batch["tokens_BN"], batch.get("mask_BN"))
    for hook in hooks:
        hook.remove()
    return calls, [*hidden[:-1], last_BNE]


def _valid_alone(x_BNE: Tensor, keep_BN: Tensor | None) -> Tensor:
    """Zero at the other tokens."""
    return x_BNE if keep_BN is None else torch.where(keep_BN[..., None], x_BNE, 0.0)


def _squares(found_BNE: Tensor, wanted_BNE: Tensor, keep_BN: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Σ (found - wanted)² and Σ wanted² over valid tokens, (2,)."""
    found, wanted = (_valid_alone(x, keep_BN).to(dtype) for x in (found_BNE, wanted_BNE))
    return torch.stack([(found - wanted).square().sum(), wanted.square().sum()])


@dataclass(frozen=True)
class _Task:
    """A stage of the conversion as the training loop wants it. Both models are in evaluation, without dropout."""

    stage: str
    model: PretrainingModel
    source: PretrainingModel
    asked: Conversion
    train: Rows
    held_out: Rows
    pad: int

    def _batch(self, rows: Rows) -> dict[str, Tensor]:
        """`tokens_BN`, int64, and `mask_BN`, bool, which is left out where all rows are of one length."""
        tokens_BN = pad_sequence([torch.from_numpy(row).long() for row in rows], True, self.pad)
        keep_BN = torch.arange(tokens_BN.shape[1]) < torch.tensor([[len(row)] for row in rows])
        return {"tokens_BN": tokens_BN} if keep_BN.all() else {"tokens_BN": tokens_BN, "mask_BN": keep_BN}

    def steps(self, first: int, last: int) -> Iterator[Step]:
        for step in range(first, last):
            rows = [self.train[n] for n in rows_of_step(self.asked.seed, step, self.asked.rows, len(self.train))]
            yield Step([self._batch(rows)], sum(map(len, rows)))

    def _attended(self, calls: list[Call]) -> Iterator[tuple[Tensor, Tensor]]:
        """What the model's attentions give where the source's were called, and what the source's gave."""
        for layer, (args, kwargs, output_BNE) in zip(self.model.encoder.stack(), calls, strict=True):
            yield layer.attention(*args, **kwargs), output_BNE

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The mean over layers of Σ (found - wanted)² / Σ wanted²: else those with large outputs would decide. Of the
        attentions (LoLCATs, arXiv 2410.10254), or of all that a layer gives.
        """
        self.model.eval()
        with torch.no_grad():
            calls, wanted = _run(self.source, batch)
        is_first = self.stage == "layers"
        pairs = self._attended(calls) if is_first else zip(_run(self.model, batch)[1], wanted, strict=True)
        sums = [_squares(*pair, batch.get("mask_BN"), torch.float32) for pair in pairs]
        loss = torch.stack([error / size for error, size in sums]).mean()
        return loss, torch.stack([loss.detach(), torch.ones_like(loss)])

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        return {"loss": sums[0] / sums[1]}

    def validate(self) -> dict[str, float]:
        return _summary(self.compare())

    @torch.no_grad()
    def compare(self) -> dict[str, Any]:
        """Relative errors of each layer, ‖found - wanted‖ / ‖wanted‖ over all valid tokens of the rows held out: of its
        attention, given the input that the source's has, and of its output in the whole model. In float32, whatever the
        training computes in.
        """
        device = next(self.model.parameters()).device
        hidden, attention = (torch.zeros(len(self.model.encoder.layers), 2, dtype=torch.float64) for _ in range(2))
        cosines: list[float] = []
        for part in micro_batch_slices(len(self.held_out), self.asked.rows):
            batch = to_device(self._batch(self.held_out[part]), device)
            keep_BN = batch.get("mask_BN")
            with torch.autocast(device.type, enabled=False):
                calls, wanted = _run(self.source, batch)
                _, found = _run(self.model, batch)
                # The sums over tokens point where the means do.
                one_BE, other_BE = (_valid_alone(x[-1], keep_BN).sum(1) for x in (found, wanted))
                cosines += torch.cosine_similarity(one_BE, other_BE).tolist()
                for layer, pair in enumerate(self._attended(calls)):
                    hidden[layer] += _squares(found[layer], wanted[layer], keep_BN, torch.float64).cpu()
                    attention[layer] += _squares(*pair, keep_BN, torch.float64).cpu()
        errors = {"hidden_errors": hidden, "attention_errors": attention}
        return {what: (x[:, 0] / x[:, 1]).sqrt().tolist() for what, x in errors.items()} | {"cosine": mean(cosines)}


def _train(task: _Task, work: Path, device: Device) -> Signals | None:
    """Both stages; returns the signal that stopped it, if one did."""
    asked, encoder = task.asked, task.model.encoder
    layers = [p for layer in encoder.stack() for p in layer.attention.parameters()]
    kept = set(encoder.embeddings.parameters())
    stages = (
        ("layers", "attention outputs", layers, asked.steps, asked.learning_rate),
        (
            "hidden",
            "hidden vectors",
            [p for p in task.model.parameters() if p not in kept],
            asked.end_to_end_steps,
            asked.end_to_end_learning_rate,
        ),
    )
    for stage, what, trained, steps, rate in stages:
        if not steps:
            continue
        task = replace(task, stage=stage)
        task.model.requires_grad_(False)
        for parameter in trained:
            parameter.requires_grad_()
        # The learning rate rises, and then falls to zero linearly.
        warm_up, every = max(1, round(0.05 * steps)), min(steps, asked.validate_every)
        settings = TrainingSettings(steps, every, every, rate, warm_up, asked.seed, keep_epochs=1)
        fitted = fit(
            lambda begins: (task, {}),  # noqa: B023  # it is called at once
            settings,
            work / stage,
            device,
            asked={},  # the folder of parts is bound to it
            title=f"training {asked.attention} towards the source's {what}: {steps} steps",
        )
        if fitted.stopped_by is not None:
            return fitted.stopped_by
    return None


def _summary(figures: Mapping[str, Any]) -> dict[str, float]:
    attentions, last = mean(figures["attention_errors"]), figures["hidden_errors"][-1]
    return {"loss": attentions, "hidden_error": last, "cosine": figures["cosine"]}
