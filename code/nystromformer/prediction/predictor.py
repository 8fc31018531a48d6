"""A finished run as one object: predictions of texts for commands, a service, Ray, Spark and programs of other people.

Shapes: n texts, E the encoder's width.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from nystromformer.attention import Attention
from nystromformer.config import ExperimentConfig, experiment_config
from nystromformer.data.dataset import TOKENIZER_FOLDER
from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.errors import UserError
from nystromformer.files.reading import half_character
from nystromformer.interop.formats.sentences import kept_sentences
from nystromformer.model import ClassificationModel
from nystromformer.model.finetuning import mean_over
from nystromformer.runs.record import Run, open_run
from nystromformer.tasks.documents.cut import encode_cut
from nystromformer.tasks.documents.recipe import Answer, Recipe, recipe_in
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.experiment.start import ENCODER, find_tokenizer, open_pretrained
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Ints, Texts
from nystromformer.tasks.finetuning.objective import decided
from nystromformer.tasks.finetuning.plan import fit_to_budget
from nystromformer.tasks.finetuning.target import vectors_of
from nystromformer.training import Device, choose_device
from nystromformer.training.checkpoint import epoch_name, load_weights, read_checkpoint
from nystromformer.training.group import take_gpu
from nystromformer.training.trainable import prefetch_batches
from nystromformer.wording import first_names, number_of, say_unknown, warn_of_unknown

logger = logging.getLogger(__name__)

Column = Sequence[Any] | NDArray[Any]
TOKENS_AT_A_TIME = {"cpu": 2048, "cuda": 8192}
"""On each kind of device, padding included; an example of more is computed alone. On a CPU the tensors of more are so
large that each is fetched from the system anew: rows of 512 at BERT-small's size take a fifth to two fifths longer."""
UNREAD = ("cut", "unknown_share")
"""Columns of results that say what a network could not read of a text."""


@dataclass(frozen=True)
class Scored:
    """Scores of n texts, (n, outputs), and of each whether it was cut, its tokens that were read, and how many of these
    are unknown.
    """

    scores: NDArray[np.float32]
    cut: NDArray[np.bool_]
    tokens: Ints
    unknown: Ints

    @property
    def counts(self) -> dict[str, int]:
        """Of all together."""
        each = {"cut": self.cut, "tokens": self.tokens, "unknown": self.unknown}
        return {"rows": len(self.cut), **{name: int(values.sum()) for name, values in each.items()}}


@dataclass
class Network:
    """An encoder with a head; its model is built when it is first asked.

    Args:
        recipe: what its texts are, and what it learned of them.
        length: tokens that are read of a text.
        pad_to: tokens of every row; None: by its length.
        embeds: whether it gives the vectors that its head gets.
        origin: what decides its scores beside the weights' checksum, its texts and what is here.
        weights: of the whole model, or of its encoder alone, whose names then have no such beginning.
        source: the file that they were read from.
        prefix: what stands before each text, as sentence-transformers' default prompt.
    """

    recipe: Recipe
    config: ExperimentConfig
    tokenizer: Tokenizer
    device: Device
    length: int
    pad_to: int | None
    embeds: bool
    origin: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    source: Path
    prefix: str = ""

    @property
    def facts(self) -> dict[str, Any]:
        """What decides its scores beside the texts."""
        read = {"length": self.length, "pad_to": self.pad_to, "cut": str(self.recipe.cut), "prefix": self.prefix}
        computed = {"precision": self.device.precision, "device": self.device.device.type, "embed": self.embeds}
        return {**self.origin, **read, **computed}

    @cached_property
    def model(self) -> ClassificationModel:
        """With its weights, on the device."""
        # Whoever asks first may do so under inference_mode, in which weights would be of no use to a gradient later.
        with torch.inference_mode(False):
            model = self.recipe.answer.target().build(self.config.model)
            assert isinstance(model, ClassificationModel)
            is_whole = any(name.startswith("head.") for name in self.weights)
            load_weights(model if is_whole else model.encoder, self.weights, self.source)
            self.weights = {}
            take_gpu(self.device)
            return model.to(self.device.device).eval()

    @cached_property
    def has_rows_apart(self) -> bool:
        """Whether a row's result does not depend on the others of its batch."""
        return all(module.holds.batch for module in self.model.modules() if isinstance(module, Attention))

    def encode(self, texts: Sequence[str], second: Sequence[str] | None = None) -> EncodedTexts:
        """Texts, or pairs of them, as it reads them."""
        if (second is not None) != self.recipe.is_of_pairs:
            found, learned = ("pairs", "single texts") if second is not None else ("single texts", "pairs")
            raise UserError(f"{self.source}: expected {learned}, as in the run's training data, found {found}")
        types, clean = self.config.model.num_sen_type > 1, self.recipe.cleaned
        read = Texts("texts", [self.prefix + clean(text) for text in texts], second and [*map(clean, second)])
        return encode_cut(read, self.tokenizer, self.length, types, self.recipe.cut)

    def scores(self, examples: EncodedTexts) -> Scored:
        """What `encode` gave, scored in its order. Batches have as few tokens of padding as possible; for an attention
        that mixes the rows of a batch every example is computed by itself.
        """
        outputs = self.config.model.transformer_dim if self.embeds else self.recipe.answer.outputs
        total, everyone = torch.zeros(len(examples), outputs), np.arange(len(examples))
        budget = TOKENS_AT_A_TIME[self.device.device.type]
        parts = np.array_split(everyone, len(everyone)) if len(everyone) else []
        if self.has_rows_apart:
            parts = fit_to_budget(everyone, examples.lengths, examples.rows, budget, 1, self.pad_to)
        with torch.inference_mode(), self.device.autocast():
            batches = (examples.batch(part, self.pad_to) for part in parts)
            for part, batch in zip(parts, prefetch_batches(batches, self.device.device), strict=True):
                vectors = self._vectors(batch, budget)
                found = vectors if self.embeds else self.model.logits(vectors)
                total[torch.from_numpy(part)] = found.float().cpu()
        return Scored(total.numpy(), examples.is_cut, examples.own_tokens, examples.unknown)

    def _vectors(self, batch: Mapping[str, Tensor], budget: int) -> Tensor:
        """What the head gets of a batch's examples; one whose windows are too many at once is computed in pieces."""
        tokens_BN = batch["tokens_BN"]
        rows = max(budget // tokens_BN.shape[1], 1)
        if "rows_I" not in batch or len(batch["rows_I"]) > 1 or len(tokens_BN) <= rows:
            return vectors_of(self.model, batch)
        inputs = [batch[name] for name in ("tokens_BN", "mask_BN", "types_BN") if name in batch]
        pieces = [slice(start, start + rows) for start in range(0, len(tokens_BN), rows)]
        pooled = [self.model.pooled(*(each[piece] for each in inputs)).float() for piece in pieces]
        return mean_over(torch.cat(pooled), batch["rows_I"])


def tell(each: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Add up counts as `Scored` has them, and log what of the texts could not be read."""
    counts = Counter[str]()
    for one in each:
        counts.update(one)
    if counts["cut"]:
        logger.info("%s of %s cut: longer than what is read", f"{counts['cut']:,}", number_of(counts["rows"], "text"))
    if warned := warn_of_unknown("texts", counts["unknown"], counts["tokens"]):
        logger.warning(*warned)
    elif said := say_unknown(counts["unknown"], counts["tokens"]):
        logger.info(said)
    return counts


@dataclass(eq=False)
class Predictor:
    """Predicts texts with a finished run of run_classify.py, run_glue.py or run_imdb.py, after the epoch that was best
    on the validation data, or embeds them: with such a run's encoder, or an experiment's.

    The run is opened at the first call. A pickled Predictor does not contain it, and a process opens it once however
    many are unpickled. The texts beside a text change the last digits of its result alone.

    Args:
        folder: of the run; with `embed` also of an experiment, with its config.json.
        device: auto, cpu, cuda or cuda:N.
        embed: give each text's vector, which the encoder gives the head, instead of a prediction.
        length: tokens that are read of a text; with `embed` alone. None: as many as the run reads, the model takes, or
            sentence-transformers reads where the model came from there.
    """

    folder: str | Path
    device: str = "auto"
    embed: bool = False
    length: int | None = None

    def __post_init__(self) -> None:
        if self.length is not None and not self.embed:
            raise UserError("length: expected embed with it: a run predicts with the length of its training")
        self.folder = Path(self.folder).absolute()  # another process may have another working folder

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, tuple(getattr(self, each.name) for each in fields(self))

    @cached_property
    def run(self) -> Run | None:
        """The run's record; None of an experiment."""
        folder = Path(self.folder)
        return None if self.embed and (folder / "config.json").is_file() else open_run(folder)

    @cached_property
    def network(self) -> Network:
        """What gives the scores."""
        if self.run is None:
            network = _open_experiment(Path(self.folder), self.device)
        else:
            network = _open_run(self.run, self.device, self.embed)
        if self.length is None:
            return network
        longest = network.config.model.max_seq_len
        if not 3 <= self.length <= longest:
            raise UserError(f"--length {self.length}: expected from 3 to {longest} tokens, those that the model takes")
        return replace(network, length=self.length)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of a result, without the id."""
        return (*(("vector",) if self.embed else ("prediction", *self._chances)), *UNREAD)

    @property
    def _chances(self) -> list[str]:
        return [f"p_{name}" for name in self.network.recipe.answer.names]

    def __call__(self, texts: Sequence[str] | Mapping[str, Column]) -> dict[str, Any]:
        """Columns of results, in the texts' order.

        Args:
            texts: n texts, or a table as columns of n cells or as a DataFrame, with the columns of texts that the run
                learned from (of an experiment `text`); of the others `id` alone is read.

        Returns:
            The id, where a table has it; `prediction` (n,): names of classes, lists of names for several labels, or
            values; of classes and labels `p_NAME` (n,) float32 for each name. With `embed`, `vector` (n, E) float32.
            `cut` (n,) bool: whether a text is longer than what is read of it; and `unknown_share` (n,) float32: of its
            tokens, those that the tokenizer does not know.

        Raises:
            UserError: a table without the columns, or texts where the run learned from pairs, or the other way round.
            TypeError, ValueError: what is no text, or an empty one.
        """
        found: dict[str, Any] = {}
        if not isinstance(texts, Mapping) and hasattr(texts, "columns"):  # of pandas or polars
            texts = {name: texts[name] for name in texts.columns}
        if isinstance(texts, Mapping):
            names = self.network.recipe.text
            if missing := [name for name in names if name not in texts]:
                raise UserError(
                    f"expected the text columns {', '.join(names)}, found no {first_names(missing)}; the table has "
                    f"{first_names(list(texts))}"
                )
            columns = [list(texts[name]) for name in names]
            if "id" in texts:
                found["id"] = texts["id"]
        else:
            check_texts(texts[:0])  # not one text
            columns = [list(texts)]
        count = len(columns[0])
        if wrong := [len(column) for column in (*columns, *found.values()) if len(column) != count]:
            raise ValueError(f"expected columns of one length, found {count} and {wrong[0]} cells")
        for column in columns:
            check_texts(column)
        scored = self.network.scores(self.network.encode(*columns))
        tell([scored.counts])
        return found | self.results(scored)

    def results(self, found: Scored) -> dict[str, Any]:
        """What scores say, as `__call__` returns it; each row's results depend on its scores alone."""
        shares = (found.unknown / np.maximum(found.tokens, 1)).astype(np.float32)
        unread = dict(zip(UNREAD, (found.cut, shares), strict=True))
        if self.embed:
            return {"vector": found.scores, **unread}
        answer, tensor = self.network.recipe.answer, torch.from_numpy(found.scores)
        names = answer.names_of(answer.predicted(tensor))
        if answer.kind == "value":
            return {"prediction": np.asarray(names, dtype=np.float64), **unread}
        # Filled one by one: numpy would make lists of equal lengths a matrix.
        labels = np.empty(len(names), dtype=object)
        for number, label in enumerate(names):
            labels[number] = label
        # The last bit of an exponential depends on where it stands in a tensor: the processor computes several at once.
        chances_nC = torch.cat([answer.probabilities(row) for row in torch.split(tensor, 1)]).numpy()
        chances = dict(zip(self._chances, np.ascontiguousarray(chances_nC.T), strict=True))
        return {"prediction": labels, **chances, **unread}

    def told(self, results: Mapping[str, Any], number: int) -> tuple[Any, dict[str, Any]]:
        """Of one row of results what is predicted, and the chance of each class or label."""
        names = self.network.recipe.answer.names
        chances = {name: results[column][number] for name, column in zip(names, self._chances, strict=True)}
        return results["prediction"][number], chances


@lru_cache(maxsize=1)
def _unpickled(*given: Any) -> Predictor:
    """Kept for the next one that is equal: Spark and Ray unpickle one for each of a process's tasks."""
    return Predictor(*given)


def check_texts(texts: Sequence[Any]) -> None:
    """Check that these are texts with something in them; the error names one by its number, from 0."""
    if isinstance(texts, str | bytes):
        raise TypeError("expected a sequence of texts, found one text: put it into a list")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts[{number}]: expected a text, found {text!r:.40}")
        if not text.strip():
            raise ValueError(f"texts[{number}]: expected a text, found an empty one")
        if (half := half_character(text)) is not None:
            raise ValueError(f"texts[{number}]: expected a text, found half of a surrogate pair at {half}")


def _open_run(run: Run, device: str, embed: bool) -> Network:
    recipe = recipe_in(run.texts, run.folder)
    path = run.folder / f"{epoch_name(run.choose('best').epoch)}.model"
    content = read_checkpoint(path)
    config = experiment_config(content["config"], str(path))
    return Network(
        recipe,
        config,
        load_tokenizer(run.tokenizer),
        choose_device(device, config.model.mixed_precision),
        length=run.length,
        pad_to=run.settings.pad_to,
        embeds=embed,
        origin={"run": run.task, "weights": content["sha256"], "classes": list(recipe.answer.names)},
        weights=decided(content)["model"],
        source=path,
    )


def _open_experiment(folder: Path, device: str) -> Network:
    """The encoder of an experiment after its last epoch, as it pools; texts are read up to the model's length, or as
    sentence-transformers reads them where the model came from there."""
    experiment = open_experiment(folder)
    opened = open_pretrained(experiment, "last")
    config = experiment.config
    # Of config.json, which may change; a run's own is in the file of its weights.
    model = config.model.model_dump(mode="json", by_alias=True)
    sentences = kept_sentences(experiment.checkpoints / TOKENIZER_FOLDER)
    longest = config.model.max_seq_len
    return Network(
        Recipe(Answer("value"), ("text",), ()),
        config,
        find_tokenizer(experiment, opened.tokenizer_sha256),
        choose_device(device, config.model.mixed_precision),
        length=min(longest, sentences.max_seq_length or longest) if sentences else longest,
        pad_to=config.model.fixed_length,
        embeds=True,
        origin={"run": experiment.name, "weights": opened.sha256, "model": model},
        weights={name.removeprefix(ENCODER): weight for name, weight in opened.encoder.items()},
        source=opened.path,
        prefix=sentences.prefix if sentences else "",
    )
