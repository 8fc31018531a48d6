"""`run_export.py convert`: an experiment with another attention in softmax's place, trained to be like its source.

Shapes: B rows, N tokens, E width.
"""

import hashlib
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import Signals
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

import nystromformer
from nystromformer.attention import AttentionMask
from nystromformer.attention.near_far import PARTS, NearFarAttention
from nystromformer.config import AttentionConfig, ExperimentConfig, experiment_config
from nystromformer.config.attention_text import parse_attention
from nystromformer.config.overrides import apply_overrides
from nystromformer.data.sampler import rows_of_step
from nystromformer.data.tokenizer import SpecialTokens, sha256_as_saved, special_tokens
from nystromformer.errors import UserError
from nystromformer.exchange.folders import check_free, write_folder
from nystromformer.exchange.hf import check_tokenizer
from nystromformer.exchange.hub import find_source
from nystromformer.exchange.import_model import (
    HEADLESS,
    import_model,
    initial_checkpoint,
    initial_weights,
    write_experiment,
)
from nystromformer.exchange.open_model import Opened, open_model
from nystromformer.exchange.settings import Conversion, ImportSettings
from nystromformer.files.checked_json import read_checked, write_checked
from nystromformer.files.writing import sha256_of, write_json
from nystromformer.interop.conversion import (
    WARM_UP,
    Call,
    attention_loss,
    hidden_loss,
    recorded,
    valid_alone,
    vectors,
)
from nystromformer.interop.formats import is_foreign
from nystromformer.interop.transfer import DoesNotFit, transfer_weights
from nystromformer.machine import machine_facts
from nystromformer.model import PretrainingModel
from nystromformer.tables import markdown
from nystromformer.tasks.documents.table import open_table
from nystromformer.tasks.experiment.run import held_folder, newest, resume
from nystromformer.training import Device, Group, Step, Trainer, TrainingSettings, choose_device
from nystromformer.training.trainable import Batch, to_device
from nystromformer.wording import listed

logger = logging.getLogger(__name__)

WORK = ".conversion"
"""What the folder beside the new experiment is called behind its name, which holds checkpoints until all is done."""
RECORD = "conversion.json"
STAGES = {"layers": "each attention", "hidden": "hidden vectors"}
"""What is trained towards the source's, one after the other."""
_ATTENTION = ("attn_type", "num_landmarks", "conv_kernel_size")
_MOST_ROWS = 200_000
"""Text beyond so many rows is not read."""


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
    attention, _ = parse_attention(asked.attention)
    check_free(dest)
    work = dest.resolve().with_name(f"{dest.resolve().name}{WORK}")
    machine = machine_facts()
    with ExitStack() as stack:
        original = _open_original(source, stack)
        assert original.tokenizer is not None, "it was checked"
        new, old = _configs(original, attention, asked.overrides or [])
        length = new.model.max_seq_len if asked.length is None else asked.length
        _check_length(asked, new, length)
        (student, notes), (teacher, _) = _build(original, new), _build(original, old)
        text = read_rows(asked, original.tokenizer, length)
        facts = {
            "version": nystromformer.__version__,
            "config": new.model_dump(mode="json", by_alias=True),
            "dataset": text.fingerprint,
            "tokenizer": sha256_as_saved(original.tokenizer),
            "conversion": {
                **{key: value for key, value in asdict(asked).items() if key != "overrides"},
                "text": asked.text.name,
                "length": length,
                "source": sha256_of(original.path),
            },
        }
        device = choose_device(device_name, new.model.mixed_precision)
        work.mkdir(parents=True, exist_ok=True)
        stack.enter_context(held_folder(work, Group()))
        stack.enter_context(device.products(new.model.transformer_dim))
        _begin(work, facts)
        for model in (student, teacher):
            model.to(device.device)
        figures, stopped_by = _train(student, teacher, asked, text, device, work, facts)
        if stopped_by is not None:
            return f"stopped; the same command continues from {work}", stopped_by
        data = {"machine": machine, "command": command, "source": source.name, "notes": notes, **figures}
        data |= {"settings": facts["conversion"]}

        def write(folder: Path) -> None:
            weights = {
                # Random numbers' seeds stay integers.
                name: weight.detach().cpu().to(torch.float32 if weight.is_floating_point() else weight.dtype)
                for name, weight in student.state_dict().items()
            }
            imported = {
                "kind": "converted",
                "files": {},
                HEADLESS: bool(original.content.get("imported", {}).get(HEADLESS)),
            }
            content = initial_checkpoint(facts | {"imported": imported}, weights)
            write_experiment(folder, new, original.tokenizer, content)
            write_json(folder / RECORD, data)

        write_folder(dest, write)
    shutil.rmtree(work)
    return f"{report(data)}\nconverted: {dest}", None


def _open_original(path: Path, stack: ExitStack) -> Opened:
    """Open an experiment folder, or a folder of transformers, which is imported for as long as the command runs."""
    folder = find_source(path)
    if is_foreign(folder):
        imported = Path(stack.enter_context(tempfile.TemporaryDirectory())) / folder.name
        import_model(folder, imported, ImportSettings(attention="softmax"))
        folder = imported
    original = open_model(folder)
    if original.labels is not None:
        raise UserError(f"{path}: a fine-tuned model: convert the model that it was fine-tuned from")
    check_tokenizer(original)
    if others := sorted({each.name for each in original.config.attentions} - {"softmax"}):
        raise UserError(f"{path}: expected softmax in all layers, which conversion replaces; found {', '.join(others)}")
    if original.config.reversible:
        raise UserError(f"{path}: reversible layers cannot be converted: a layer has no single input and output")
    return original


def _configs(
    original: Opened, attention: AttentionConfig, overrides: list[str]
) -> tuple[ExperimentConfig, ExperimentConfig]:
    """The new experiment's config, and the same with the source's softmax.

    Raises:
        UserError: an attention or overrides (of --set, for both) that do not fit the network; all problems at once.
    """
    data = original.experiment.model_dump(mode="json", by_alias=True)
    softmax = {key: data["model"][key] for key in _ATTENTION}
    written = attention.model_dump(mode="json", include={"name", *attention.model_fields_set})
    # The new folder has weights of its own.
    data |= {"from_cp": None, "model_checkpoints": ExperimentConfig.model_fields["model_checkpoints"].default}
    data["model"] |= {"attn_type": written, "num_landmarks": None, "conv_kernel_size": None}
    if problems := apply_overrides(data, overrides):
        raise UserError(f"--set: {listed([str(problem) for problem in problems])}")
    new = experiment_config(data, f"{original.folder} with {attention.name}")
    return new, experiment_config(data | {"model": data["model"] | softmax}, str(original.folder))


def _check_length(asked: Conversion, config: ExperimentConfig, length: int) -> None:
    if not 3 <= length <= config.model.max_seq_len:
        raise UserError(
            f"--length: expected from 3 to {config.model.max_seq_len} tokens, the new model's max_seq_len, found "
            f"{length}: --set model.max_seq_len=N extends its positions"
        )
    if asked.least_tokens > length:
        raise UserError(f"--least_tokens: expected at most {length}, the tokens of a row, found {asked.least_tokens}")
    for attention in config.model.attentions:
        if reason := attention.why_not_length(length):
            raise UserError(f"--attention {asked.attention}: it does not accept rows of {length} tokens: {reason}")


def _build(original: Opened, config: ExperimentConfig) -> tuple[PretrainingModel, list[str]]:
    """A model with the source's weights, and what was done to fit them, a line each; a convolution begins at zero.

    Raises:
        UserError: the network differs in more than the attention, the convolution and the positions.
    """
    # Dropout would be noise in what is to be reproduced.
    section = config.model.model_copy(update={"dropout_prob": 0.0})
    torch.manual_seed(config.pretraining_setting.seed)
    model = PretrainingModel(section, config.pretraining_setting.objectives)
    now, before = (each.model_dump(mode="json", by_alias=True) for each in (config.model, original.config))
    try:
        transfer = transfer_weights(
            initial_weights(model), now, original.weights, before, config.from_cp_resize, config.from_cp_positions
        )
    except DoesNotFit as error:
        raise UserError(
            f"{original.folder}: conversion changes only the attention, the convolution and the number of "
            f"positions:{listed(error.problems)}"
        ) from error
    model.load_state_dict(transfer.weights)
    return model.eval(), transfer.notes


def _begin(work: Path, facts: Mapping[str, Any]) -> None:
    """Note what the folder's conversion is, or check that it is this one."""
    try:
        found = read_checked(work / RECORD)
    except ValueError as error:
        raise UserError(f"{work / RECORD}: {error}: remove {work} to start the conversion again") from None
    if found is None:
        write_checked(work / RECORD, facts)
    elif found != facts:
        raise UserError(f"{work}: holds an unfinished conversion with other settings: remove it to start again")


@dataclass(frozen=True)
class TextRows:
    """Rows of token ids, each in the tokenizer's form `<s> A </s>`, without padding."""

    train: Sequence[NDArray[np.int32]]
    held_out: Sequence[NDArray[np.int32]]
    """Of documents that no row of the others is of."""
    pad: int

    @property
    def fingerprint(self) -> str:
        """Equal for equal rows."""
        digest = hashlib.sha256()
        for row in (*self.train, *self.held_out):
            digest.update(row.tobytes() + b"|")
        return digest.hexdigest()[:16]


def read_rows(asked: Conversion, tokenizer: Tokenizer, length: int) -> TextRows:
    """Rows of a table, a text file, or a folder of text files.

    A document is a row of the table, a paragraph of the text file, or a file of the folder. It is cut into rows of
    `length` tokens.

    Raises:
        UserError: the text cannot be read, or has too few rows.
    """
    special = special_tokens(tokenizer)
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.encode_special_tokens = True  # those that a text spells are letters, as in preprocessing
    documents, count = [], 0
    for document in filter(str.strip, _documents(asked.text, asked.text_column)):
        ids = tokenizer.encode(document, add_special_tokens=False).ids
        rows = [row for row in _cut(ids, length, special) if len(row) >= asked.least_tokens]
        if rows:
            documents.append(rows)
            count += len(rows)
        if count >= _MOST_ROWS:
            break
    held_out: list[NDArray[np.int32]] = []
    train: list[NDArray[np.int32]] = []
    for number in np.random.default_rng(asked.seed).permutation(len(documents)):
        (held_out if len(held_out) < asked.held_out else train).extend(documents[number])
    if not train or len(held_out) < asked.held_out:
        raise UserError(
            f"{asked.text}: expected at least {asked.held_out} rows of at least {asked.least_tokens} tokens to hold "
            f"out, and others to train on, found {len(held_out)} and {len(train)}: give more text, or lower "
            "--least_tokens or --held_out"
        )
    return TextRows(train, held_out[: asked.held_out], special.pad)


def _documents(path: Path, column: str) -> Iterator[str]:
    if path.is_dir():
        yield from (file.read_text(encoding="utf-8-sig") for file in sorted(path.glob("*.txt")))
    elif path.suffix.lower() == ".txt":
        yield from path.read_text(encoding="utf-8-sig").split("\n\n")
    else:
        table = open_table(path)
        for number, (cell,) in enumerate(table.rows((column,)), start=1):
            if not isinstance(cell, str):
                raise UserError(f"{table.place(number)}: {column}: expected text, found {type(cell).__name__}")
            yield cell


def _cut(ids: Sequence[int], length: int, special: SpecialTokens) -> Iterator[NDArray[np.int32]]:
    for start in range(0, len(ids), length - 2):
        yield np.array([special.bos, *ids[start : start + length - 2], special.eos], dtype=np.int32)


def _padded(rows: Sequence[NDArray[np.int32]], pad: int) -> dict[str, Tensor]:
    """`tokens_BN`, int64, and `mask_BN`, bool, which is left out where all rows are of one length."""
    longest = max(map(len, rows))
    tokens = np.full((len(rows), longest), pad, dtype=np.int64)
    keep = np.zeros((len(rows), longest), dtype=bool)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
        keep[number, : len(row)] = True
    batch = {"tokens_BN": torch.from_numpy(tokens)}
    return batch if keep.all() else batch | {"mask_BN": torch.from_numpy(keep)}


@dataclass(frozen=True)
class _Forward:
    """Of one forward of an encoder."""

    attentions: list[Call]
    hidden: list[Tensor]
    """Of each layer, (B, N, E). What follows the last one, a norm or nothing, belongs to it."""


def _forward(model: PretrainingModel, batch: Batch) -> _Forward:
    count = len(model.encoder.layers)
    attentions, layers = ([f"encoder.layers.{n}{part}" for n in range(count)] for part in (".attention", ""))
    with recorded(model, [*attentions, *layers]) as calls:
        last_BNE = model.encoder(batch["tokens_BN"], AttentionMask(batch["mask_BN"]) if "mask_BN" in batch else None)
    outputs = [call.output_BNE for call in calls if call.name in layers]
    return _Forward([call for call in calls if call.name in attentions], [*outputs[:-1], last_BNE])


class _Stage:
    """One stage, as the training loop wants it.

    Args:
        student: what is trained.
        teacher: the model that it shall be like, in evaluation.
        goal: one of `STAGES`; weights that have no part in it stay as they are: embeddings are the source's.
    """

    def __init__(
        self, student: PretrainingModel, teacher: PretrainingModel, goal: str, rows: TextRows, asked: Conversion
    ) -> None:
        self.model: nn.Module = student
        self._student, self._teacher, self._goal = student, teacher, goal
        self._rows, self._asked = rows, asked
        for name, parameter in student.named_parameters():
            is_of_layer = name.startswith("encoder.layers.")
            is_trained = (
                is_of_layer and ".attention." in name
                if goal == "layers"
                else is_of_layer or name.startswith("encoder.final_norm.")
            )
            parameter.requires_grad_(is_trained)

    def steps(self, first: int, last: int) -> Iterator[Step]:
        train = self._rows.train
        for step in range(first, last):
            chosen = [train[n] for n in rows_of_step(self._asked.seed, step, self._asked.rows, len(train))]
            yield Step([_padded(chosen, self._rows.pad)], sum(map(len, chosen)))

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        self._student.eval()
        with torch.no_grad():
            wanted = _forward(self._teacher, batch)
        if self._goal == "layers":
            loss = attention_loss(self._student, wanted.attentions, batch.get("mask_BN"))
        else:
            loss = hidden_loss(_forward(self._student, batch).hidden, wanted.hidden, batch.get("mask_BN"))
        return loss, torch.stack([loss.detach(), torch.ones_like(loss)])

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        return {"loss": sums[0] / sums[1]}

    def validate(self) -> dict[str, float]:
        device = next(self._student.parameters()).device
        return _summary(compare(self._student, self._teacher, self._rows, self._asked.rows, device))


@torch.no_grad()
def compare(
    student: PretrainingModel, teacher: PretrainingModel, rows: TextRows, batch_size: int, device: torch.device
) -> dict[str, Any]:
    """Relative errors of each layer, ‖found - wanted‖ / ‖wanted‖ over all valid tokens of the rows held out.

    Of its attention, given the input that the source's has; of near_far also with one kind of its keys alone; and of
    its output in the whole model. In float32, whatever the training computes in.
    """
    student.eval()
    count = len(student.encoder.layers)
    squares: dict[str, Tensor] = {}
    times, cosines = [], []

    def add(what: str, layer: int, found: Tensor, wanted: Tensor, keep_BN: Tensor | None) -> None:
        found, wanted = (valid_alone(x, keep_BN).double() for x in (found, wanted))
        sums = squares.setdefault(what, torch.zeros(count, 2, dtype=torch.float64))
        sums[layer] += torch.stack([(found - wanted).square().sum(), wanted.square().sum()]).cpu()

    for start in range(0, len(rows.held_out), batch_size):
        batch = to_device(_padded(rows.held_out[start : start + batch_size], rows.pad), device)
        keep_BN = batch.get("mask_BN")
        with torch.autocast(device.type, enabled=False):
            begin = _now(device)
            wanted = _forward(teacher, batch)
            between = _now(device)
            found = _forward(student, batch)
            times.append((_now(device) - between) / (between - begin))
            # The sums over tokens point where the means do.
            one_BE, other_BE = (valid_alone(x.hidden[-1], keep_BN).sum(1) for x in (found, wanted))
            cosines += torch.cosine_similarity(one_BE, other_BE).tolist()
            for layer, call in enumerate(wanted.attentions):
                add("hidden_errors", layer, found.hidden[layer], wanted.hidden[layer], keep_BN)
                attention = student.get_submodule(call.name)
                add("attention_errors", layer, vectors(attention(*call.args, **call.kwargs)), call.output_BNE, keep_BN)
                core = attention.get_submodule("core")
                if not isinstance(core, NearFarAttention):
                    continue
                for part in PARTS:
                    with core.only(part):
                        add(part, layer, vectors(attention(*call.args, **call.kwargs)), call.output_BNE, keep_BN)
    errors = {what: (sums[:, 0] / sums[:, 1]).sqrt().tolist() for what, sums in squares.items()}
    return {
        "attention_errors": errors["attention_errors"],
        "part_errors": {part: errors[part] for part in PARTS if part in errors},
        "hidden_errors": errors["hidden_errors"],
        "time_ratio": median(times),
        "cosine": mean(cosines),
    }


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _summary(figures: Mapping[str, Any]) -> dict[str, float]:
    return {
        "loss": mean(figures["attention_errors"]),
        "hidden_error": figures["hidden_errors"][-1],
        "cosine": figures["cosine"],
    }


def _train(
    student: PretrainingModel,
    teacher: PretrainingModel,
    asked: Conversion,
    text: TextRows,
    device: Device,
    work: Path,
    facts: dict[str, Any],
) -> tuple[dict[str, Any], Signals | None]:
    """Both stages; returns the figures before, along and after."""
    before = compare(student, teacher, text, asked.rows, device.device)
    logger.info("before: %s", {key: round(value, 4) for key, value in _summary(before).items()})
    curves: dict[str, Any] = {}
    for goal, steps in zip(STAGES, (asked.steps, asked.end_to_end_steps), strict=True):
        if not steps:
            continue
        folder = work / goal
        folder.mkdir(exist_ok=True)
        trainer = Trainer(
            _Stage(student, teacher, goal, text, asked), _settings(asked, goal, steps), folder, device, facts
        )
        saved = newest(folder, Group())
        if saved is not None:
            resume(trainer, saved)
        if saved is None or not saved.ends(trainer.settings):
            logger.info("training towards the source's %s: %d steps", STAGES[goal], steps)
            if (stopped_by := trainer.run()) is not None:
                return {}, stopped_by
        curves[goal] = trainer.state.history
    after = compare(student, teacher, text, asked.rows, device.device) if curves else before
    return {"before": before, "curves": curves, "after": after}, None


def _settings(asked: Conversion, goal: str, steps: int) -> TrainingSettings:
    every = min(steps, asked.validate_every)
    return TrainingSettings(
        num_steps=steps,
        steps_per_epoch=every,
        steps_per_report=every,
        learning_rate=asked.learning_rate if goal == "layers" else asked.end_to_end_learning_rate,
        warmup_steps=max(1, round(WARM_UP * steps)),
        weight_decay=0.0,
        betas=(0.9, 0.999),
        eps=1e-8,
        max_grad_norm=1.0,
        seed=asked.seed,
        minutes_per_checkpoint=10.0,
        keep_checkpoints=1,
        keep_epochs=1,
    )


def report(data: Mapping[str, Any]) -> str:
    """The errors along a conversion, as a Markdown table; those of each layer are in `conversion.json`."""
    lines = [["before", "0", *(f"{figure:.3f}" for figure in _summary(data["before"]).values())]]
    for goal, history in data["curves"].items():
        for one in history:
            figures = [f"{one['metrics'][key]:.3f}" for key in ("loss", "hidden_error", "cosine")]
            lines.append([STAGES[goal], str(one["step"]), *figures])
    header = ["trained towards", "steps", "mean error of the attentions", "error of the last hidden vectors", "cosine"]
    # The attention is known to whoever asked for it.
    notes = [f"- {note}" for note in data["notes"] if not note.startswith("model.attn_type:")]
    return "\n".join([*notes, markdown(header, lines)])
