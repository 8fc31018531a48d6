"""`run_export.py convert`: an experiment with another attention in softmax's place, trained to be like its source.

Shapes: B rows, N tokens, E width.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from signal import Signals
from statistics import mean
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import nystromformer
from nystromformer.config import ExperimentConfig
from nystromformer.data.sampler import rows_of_step
from nystromformer.data.tokenizer import sha256_as_saved, special_tokens
from nystromformer.errors import UserError
from nystromformer.files.parts import open_parts
from nystromformer.files.writing import sha256_of, write_json
from nystromformer.interop.experiments.folders import check_free, write_folder
from nystromformer.interop.experiments.import_model import (
    HEADLESS,
    MAY_DIFFER,
    changed_config,
    find_source,
    import_model,
    initial_checkpoint,
    initial_weights,
    write_experiment,
)
from nystromformer.interop.experiments.open_model import Opened, open_model
from nystromformer.interop.experiments.settings import Conversion
from nystromformer.interop.formats import is_foreign
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
Stage = Literal["layers", "hidden"]
Call = tuple[Callable[[], Tensor], Tensor]
"""What the model's attention gives where the source's was called, computed when called; and what the source's gave."""

RECORD = "conversion.json"
_STAGES: Mapping[Stage, str] = {"layers": "attention outputs", "hidden": "hidden vectors"}
"""What is trained towards the source's, one after the other."""


def convert_model(
    source: Path, dest: Path, asked: Conversion, device_name: str, command: str
) -> tuple[str, Signals | None]:
    """Convert; returns what to say, and the signal that stopped it, if one did.

    Args:
        dest: the experiment folder to make, which appears when all is done; until then there is `DEST.conversion`, from
            which the same command continues.
        command: what repeats it.

    Raises:
        UserError: a source, an attention or a text that does not fit; a folder that is not empty; an unfinished
            conversion with other settings beside it.
    """
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
    facts = {
        "version": nystromformer.__version__,
        "config": config.model_dump(mode="json", by_alias=True),
        "dataset": hashlib.sha256(b"".join(row.tobytes() + b"|" for row in (*train, *held_out))).hexdigest()[:16],
        "tokenizer": sha256_as_saved(tokenizer),
    }
    device = choose_device(device_name, config.model.mixed_precision)
    work = dest.resolve().with_name(f"{dest.resolve().name}.conversion")
    with (
        open_parts(work, "run_export.py convert", facts | settings, advice="choose another DEST") as parts,
        device.products(config.model.transformer_dim),
    ):
        student, teacher = (model.to(device.device) for model in (student, teacher))
        task = _Task("layers", student, teacher, asked, train, held_out, special_tokens(tokenizer).pad)
        before = task.compare()
        if (stopped_by := _train(task, work, device)) is not None:
            return f"stopped; the same command continues from {work}", stopped_by
        data = {"machine": machine_facts(), "command": command, "source": source.name, "notes": notes}
        data |= {"before": before, "after": task.compare()}

        def write(folder: Path) -> None:
            weights = {name: weight.cpu() for name, weight in student.state_dict().items()}
            imported = {"kind": "converted", "files": {}, HEADLESS: original.is_headless}
            content = initial_checkpoint(facts | {"conversion": settings, "imported": imported}, weights)
            write_experiment(folder, config, tokenizer, content, original.kept)
            write_json(folder / RECORD, data | {"settings": settings})

        write_folder(dest, write)
        parts.remove()
    return f"{_table(data)}\nconverted: {dest}", None


def _open_original(source: Path, scratch: Path) -> Opened:
    """Open an experiment folder, or a folder of transformers, which is imported."""
    folder = find_source(source)
    if is_foreign(folder):
        import_model(folder, scratch)
    original = open_model(scratch if is_foreign(folder) else folder)
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

    Raises:
        UserError: an attention or overrides that do not fit, or that change more than attention and positions.
    """
    data = original.experiment.model_dump(mode="json", by_alias=True)
    # The new folder has weights of its own.
    data |= {"from_cp": None, "model_checkpoints": ExperimentConfig.model_fields["model_checkpoints"].default}
    place = f"{original.name} with {asked.attention}"
    new = changed_config(data, place, asked.attention, None, asked.overrides)
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
    """Rows of at most `length` tokens, to train on and held out; no document has rows in both.

    Raises:
        UserError: the text cannot be read, or has too few rows.
    """
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


def _hidden(model: PretrainingModel, batch: Batch) -> list[Tensor]:
    """What each layer gives; what follows the last one, a norm or nothing, belongs to it."""
    outputs: list[Tensor] = []
    hooks = [layer.register_forward_hook(lambda *call: outputs.append(call[2])) for layer in model.encoder.layers]
    last_BNE = model.encoder(batch["tokens_BN"], batch.get("mask_BN"))
    for hook in hooks:
        hook.remove()
    return [*outputs[:-1], last_BNE]


def _attentions(model: PretrainingModel) -> list[nn.Module]:
    return [model.get_submodule(f"encoder.layers.{number}.attention") for number in range(len(model.encoder.layers))]


def squares(found_BNE: Tensor, wanted_BNE: Tensor, keep_BN: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Σ (found - wanted)² and Σ wanted² over valid tokens, (2,)."""
    found, wanted = (_valid_alone(x, keep_BN).to(dtype) for x in (found_BNE, wanted_BNE))
    return torch.stack([(found - wanted).square().sum(), wanted.square().sum()])


def _valid_alone(x_BNE: Tensor, keep_BN: Tensor | None) -> Tensor:
    """Zero at the other tokens."""
    return x_BNE if keep_BN is None else torch.where(keep_BN[..., None], x_BNE, 0.0)


@dataclass(frozen=True)
class _Task:
    """A stage of the conversion as the training loop wants it. Both models are in evaluation, without dropout."""

    stage: Stage
    model: PretrainingModel
    source: PretrainingModel
    asked: Conversion
    train: Rows
    held_out: Rows
    pad: int

    @property
    def trained(self) -> list[nn.Parameter]:
        if self.stage == "layers":
            return [p for attention in _attentions(self.model) for p in attention.parameters()]
        kept = set(self.model.encoder.embeddings.parameters())
        return [p for p in self.model.parameters() if p not in kept]

    def _batch(self, rows: Rows) -> dict[str, Tensor]:
        """`tokens_BN`, int64, and `mask_BN`, bool, which is left out where all rows are of one length."""
        tokens_BN = pad_sequence([torch.from_numpy(row).long() for row in rows], True, self.pad)
        keep_BN = torch.arange(tokens_BN.shape[1]) < torch.tensor([[len(row)] for row in rows])
        return {"tokens_BN": tokens_BN} if keep_BN.all() else {"tokens_BN": tokens_BN, "mask_BN": keep_BN}

    def steps(self, first: int, last: int) -> Iterator[Step]:
        for step in range(first, last):
            rows = [self.train[n] for n in rows_of_step(self.asked.seed, step, self.asked.rows, len(self.train))]
            yield Step([self._batch(rows)], sum(map(len, rows)))

    @torch.no_grad()
    def _wanted(self, batch: Batch) -> tuple[list[Call], list[Tensor]]:
        """What the source's attentions and layers compute."""
        calls: list[Call] = []

        def note(attention: nn.Module, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
            calls.append((lambda: attention(*args, **kwargs), output))

        hooks = [
            theirs.register_forward_hook(partial(note, ours), with_kwargs=True)
            for ours, theirs in zip(_attentions(self.model), _attentions(self.source), strict=True)
        ]
        hidden = _hidden(self.source, batch)
        for hook in hooks:
            hook.remove()
        return calls, hidden

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The mean over layers of Σ (found - wanted)² / Σ wanted²: else those with large outputs would decide. Of the
        attentions (LoLCATs, arXiv 2410.10254), or of all that a layer gives.
        """
        self.model.eval()
        calls, wanted = self._wanted(batch)
        if self.stage == "layers":
            pairs = [(attend(), output_BNE) for attend, output_BNE in calls]
        else:
            pairs = list(zip(_hidden(self.model, batch), wanted, strict=True))
        sums = [squares(*pair, batch.get("mask_BN"), torch.float32) for pair in pairs]
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
        layers = len(self.model.encoder.layers)
        hidden, attention = (torch.zeros(layers, 2, dtype=torch.float64) for _ in range(2))
        cosines: list[float] = []
        for part in micro_batch_slices(len(self.held_out), self.asked.rows):
            batch = to_device(self._batch(self.held_out[part]), device)
            keep_BN = batch.get("mask_BN")
            with torch.autocast(device.type, enabled=False):
                calls, wanted = self._wanted(batch)
                found = _hidden(self.model, batch)
                # The sums over tokens point where the means do.
                one_BE, other_BE = (_valid_alone(x[-1], keep_BN).sum(1) for x in (found, wanted))
                cosines += torch.cosine_similarity(one_BE, other_BE).tolist()
                for layer, (attend, output_BNE) in enumerate(calls):
                    hidden[layer] += squares(found[layer], wanted[layer], keep_BN, torch.float64).cpu()
                    attention[layer] += squares(attend(), output_BNE, keep_BN, torch.float64).cpu()
        errors = {"hidden_errors": hidden, "attention_errors": attention}
        return {what: (x[:, 0] / x[:, 1]).sqrt().tolist() for what, x in errors.items()} | {"cosine": mean(cosines)}


def _train(task: _Task, work: Path, device: Device) -> Signals | None:
    """Both stages; returns the signal that stopped it, if one did."""
    asked = task.asked
    rates = (asked.steps, asked.learning_rate), (asked.end_to_end_steps, asked.end_to_end_learning_rate)
    for stage, (steps, rate) in zip(_STAGES, rates, strict=True):
        if not steps:
            continue
        task = replace(task, stage=stage)
        task.model.requires_grad_(False)
        for parameter in task.trained:
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
            title=f"training {asked.attention} towards the source's {_STAGES[stage]}: {steps} steps",
        )
        if fitted.stopped_by is not None:
            return fitted.stopped_by
    return None


def _summary(figures: Mapping[str, Any]) -> dict[str, float]:
    attentions, last = mean(figures["attention_errors"]), figures["hidden_errors"][-1]
    return {"loss": attentions, "hidden_error": last, "cosine": figures["cosine"]}


def _table(data: Mapping[str, Any]) -> str:
    """The errors before and after, in Markdown; those of each layer are in `conversion.json`."""
    header = ["", "mean error of the attentions", "error of the last hidden vectors", "cosine"]
    lines = [[when, *(f"{x:.3f}" for x in _summary(data[when]).values())] for when in ("before", "after")]
    # The attention is known to whoever asked for it.
    notes = [f"- {note}" for note in data["notes"] if not note.startswith("model.attn_type:")]
    return "\n".join([*notes, markdown(header, lines)])
