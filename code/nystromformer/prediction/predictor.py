"""A finished run as one object: predictions of texts for commands, a service, Ray, Spark and programs of other people.

Shapes: n texts, E the encoder's width.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from nystromformer.tasks.documents.answer import Answer
from nystromformer.tasks.documents.cut import encode_cut
from nystromformer.tasks.documents.recipe import Recipe, recipe_in
from nystromformer.tasks.documents.targets import names_of, predicted, probabilities, target_of
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.experiment.start import ENCODER, find_tokenizer, open_pretrained
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Ints, Texts
from nystromformer.tasks.finetuning.objective import decided
from nystromformer.tasks.finetuning.plan import fit_to_budget
from nystromformer.tasks.finetuning.target import vectors_of
from nystromformer.training import Device, choose_device
from nystromformer.training.checkpoint import epoch_name, load_weights, read_checkpoint, stated_checksum
from nystromformer.training.distributed import take_gpu
from nystromformer.training.prefetch import prefetch_batches
from nystromformer.wording import first_names, number_of, say_unknown, warn_of_unknown

if TYPE_CHECKING:
    from nystromformer.tasks.finetuning.linear import Words

logger = logging.getLogger(__name__)

Column = Sequence[Any] | NDArray[Any]
Flags = Sequence[bool] | NDArray[np.bool_]
TOKENS_AT_A_TIME = {"cpu": 2048, "cuda": 8192}
"""On each kind of device, padding included; an example of more is computed alone. On a CPU the tensors of more are so
large that each is fetched from the system anew: rows of 512 at BERT-small's size take a fifth to two fifths longer."""
INDEPENDENT_TOKENS_AT_A_TIME = {"cpu": 512, "cuda": 8192}
"""Where batches are filled up: on a CPU few enough that one short text does not take long."""
UNREAD = ("cut", "unknown_share")
"""Columns of results that say what a network could not read of a text."""
_LENGTHS_APART = 32
"""So that shapes come again, for a few per cent more tokens."""


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
        facts = {"length": self.length, "pad_to": self.pad_to, "cut": str(self.recipe.cut)}
        facts |= {"prefix": self.prefix} if self.prefix else {}
        precision = {"precision": self.device.precision, "device": self.device.device.type}
        return {**self.origin, **facts, **precision, **({"embed": True} if self.embeds else {})}

    @property
    def outputs(self) -> int:
        """Numbers for each text."""
        return self.config.model.transformer_dim if self.embeds else self.recipe.answer.outputs

    @cached_property
    def model(self) -> ClassificationModel:
        """With its weights, on the device."""
        # Whoever asks first may do so under inference_mode, in which weights would be of no use to a gradient later.
        with torch.inference_mode(False):
            model = target_of(self.recipe.answer).build(self.config.model)
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
        """Texts as it reads them."""
        types = self.config.model.num_sen_type > 1
        texts = [self.prefix + text for text in texts] if self.prefix else texts
        return encode_cut(self.recipe.texts_of(texts, second), self.tokenizer, self.length, types, self.recipe.cut)

    def scores(self, examples: EncodedTexts, independent: bool = False) -> Tensor:
        """In the examples' order, (n, outputs) float32 on the CPU.

        Args:
            independent: whether no bit of a text's scores may depend on the others, for which every batch has one of a
                few shapes. Few texts take longer then, as batches are filled up.
        """
        total = torch.zeros(len(examples), self.outputs)
        width = self.config.model.transformer_dim
        budget = (INDEPENDENT_TOKENS_AT_A_TIME if independent else TOKENS_AT_A_TIME)[self.device.device.type]
        with torch.inference_mode(), self.device.autocast(), self.device.products(width) as are_fast:
            planned = self._plan(examples, budget, are_fast, independent)
            batches = (examples.batch(np.resize(numbers, size), length) for numbers, size, length in planned)
            for (numbers, *_), batch in zip(planned, prefetch_batches(batches, self.device.device), strict=True):
                vectors = self._vectors(batch, budget)
                found = vectors if self.embeds else self.model.logits(vectors)
                total[torch.from_numpy(numbers)] = found[: len(numbers)].float().cpu()
        return total

    def _plan(
        self, examples: EncodedTexts, budget: int, are_fast: bool, independent: bool
    ) -> list[tuple[Ints, int, int | None]]:
        """The batches: of as few tokens of padding as possible, of few lengths where that makes products fast; or such
        that the shape in which an example is computed follows from the example alone.

        Each is some examples, to how many they are filled up by repetition, and how many tokens their rows have; None:
        as many as the longest. The last bits of a product of float32 matrices depend on their shapes. So an example of
        several rows is a batch of its own in the second case, and so is, in both, every example for an attention that
        mixes the rows of a batch.
        """
        if not independent and self.has_rows_apart:
            parts = fit_to_budget(np.arange(len(examples)), examples.lengths, examples.rows, budget, 1, self.pad_to)
            longest = [int(examples.lengths[part].max()) for part in parts]
            lengths = [self._rounded(most) if are_fast else self.pad_to for most in longest]
            return [(part, len(part), length) for part, length in zip(parts, lengths, strict=True)]
        of_length: dict[int, list[int]] = defaultdict(list)
        planned: list[tuple[Ints, int, int | None]] = []
        for number in np.argsort(examples.lengths, kind="stable").tolist():
            length = self._rounded(int(examples.lengths[number]))
            if self.has_rows_apart and examples.rows[number] == 1:
                of_length[length].append(number)
            else:
                planned.append((np.asarray([number]), 1, length))
        for length, numbers in of_length.items():
            size = max(budget // length, 1)
            parts = [np.asarray(numbers[start : start + size]) for start in range(0, len(numbers), size)]
            planned += [(part, size, length) for part in parts]
        return planned

    def _rounded(self, longest: int) -> int:
        """To how many tokens a row, or a batch whose longest row has so many, is padded."""
        return self.pad_to or min(-(-longest // _LENGTHS_APART) * _LENGTHS_APART, self.config.model.max_seq_len)

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


@dataclass(frozen=True)
class Scored:
    """Scores of n texts, (n, outputs), and of each whether it was cut, its tokens that were read, and how many of these
    are unknown; NaN, False and 0 of empty texts.
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


@dataclass(frozen=True)
class WordModel:
    """The regression on words that is kept beside a run; as `Network`."""

    recipe: Recipe
    facts: Mapping[str, Any]
    words: Words

    @property
    def outputs(self) -> int:
        return self.recipe.answer.outputs

    def encode(self, texts: Sequence[str], second: Sequence[str] | None = None) -> Texts:
        return self.recipe.texts_of(texts, second)

    def scores(self, examples: Texts, independent: bool = False) -> Tensor:
        return torch.from_numpy(self.words.scores(examples))


@dataclass(eq=False)
class Predictor:
    """Predicts texts with a finished run of run_classify.py, run_glue.py or run_imdb.py, after the epoch that was best
    on the validation data, or embeds them: with such a run's encoder, or an experiment's.

    The run is opened at the first call. A pickled Predictor does not contain it, and a process opens it once however
    many are unpickled. On a CPU in float32 a text's result does not depend on the texts beside it: any division of rows
    into calls gives the same bits, with the same libraries, processor type and number of threads. Under autocast and on
    a GPU batches have fixed shapes as well, but the libraries there do not promise the same bits.

    Args:
        folder: of the run; with `embed` also of an experiment, with its config.json.
        device: auto, cpu, cuda or cuda:N.
        embed: give each text's vector, which the encoder gives the head, instead of a prediction.
        baseline: predict with the regression on words that run_classify.py keeps beside its runs.
        text: text columns of tables, one, or two for pairs; None: as in the run's training data; of an
            experiment `text`.
        id: the column of tables that is passed through where they have it.
        skip_empty: give texts that are empty or missing None and NaN, instead of raising.
        length: tokens that are read of a text; with `embed` alone. None: as many as the run reads, the model takes, or
            sentence-transformers reads where the model came from there.

    Raises:
        ValueError: both embed and baseline, or more than two text columns.
    """

    folder: str | Path
    device: str = "auto"
    embed: bool = False
    baseline: bool = False
    text: Sequence[str] | None = None
    id: str = "id"
    skip_empty: bool = False
    length: int | None = None

    def __post_init__(self) -> None:
        if self.baseline and self.embed:
            raise ValueError("baseline=True: expected no embed=True with it: it has no encoder")
        if self.length is not None and not self.embed:
            raise ValueError("length: expected embed=True with it: a run predicts with the length of its training")
        if self.text is not None:
            self.text = (self.text,) if isinstance(self.text, str) else tuple(self.text)
            if not 1 <= len(self.text) <= 2:
                raise ValueError(f"text: expected one column or two, found {len(self.text)}")
        self.folder = Path(self.folder).absolute()  # another process may have another working folder

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, tuple(getattr(self, each.name) for each in fields(self))

    @cached_property
    def run(self) -> Run | None:
        """The run's record; None of an experiment.

        Raises:
            UserError: no finished run is there.
        """
        folder = Path(self.folder)
        return None if self.embed and (folder / "config.json").is_file() else open_run(folder)

    @cached_property
    def opened(self) -> Network | WordModel:
        """What gives the scores.

        Raises:
            UserError: no finished run there, one of another task, or its weights or tokenizer are gone; no checkpoint
                of the experiment, or weights that are not of config.json's model; or no baseline.
        """
        if self.run is None:
            network = _open_experiment(Path(self.folder), self.device)
        else:
            recipe = recipe_in(self.run.texts, self.run.folder)
            if self.baseline:
                return _open_words(self.run, recipe)
            network = _open_run(self.run, recipe, self.device, self.embed)
        if self.length is None:
            return network
        longest = network.config.model.max_seq_len
        if not 3 <= self.length <= longest:
            raise UserError(f"--length {self.length}: expected from 3 to {longest} tokens, those that the model takes")
        return replace(network, length=self.length)

    @property
    def network(self) -> Network:
        """The same where it is no baseline."""
        assert isinstance(self.opened, Network)
        return self.opened

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of a result, without the id."""
        told = ("vector",) if self.embed else ("prediction", *self._chances)
        return told if self.baseline else (*told, *UNREAD)

    @property
    def _chances(self) -> list[str]:
        return [f"p_{name}" for name in self.opened.recipe.answer.names]

    def __call__(self, texts: Sequence[str] | Mapping[str, Column]) -> dict[str, Any]:
        """Columns of results, in the texts' order.

        Args:
            texts: n texts, or a table as columns of n cells or as a DataFrame; other columns than those of text and id
                are not read.

        Returns:
            The id, where a table has it; `prediction` (n,): names of classes, lists of names for several labels, or
            values; of classes and labels `p_NAME` (n,) float32 for each name. With `embed`, `vector` (n, E) float32.
            But for a baseline, `cut` (n,) bool: whether a text is longer than what is read of it; and `unknown_share`
            (n,) float32: of its tokens, those that the tokenizer does not know.

        Raises:
            UserError: a table without the columns, or texts where the run learned from pairs, or the other way round.
            TypeError, ValueError: what is no text, or an empty one.
        """
        found: dict[str, Any] = {}
        if not isinstance(texts, Mapping) and hasattr(texts, "columns"):  # of pandas or polars
            texts = {name: texts[name] for name in texts.columns}
        if isinstance(texts, Mapping):
            columns = self._texts_of(texts)
            if self.id in texts:
                found[self.id] = texts[self.id]
        else:
            check_texts(texts[:0])  # not one text
            columns = [list(texts)]
        count = len(columns[0])
        if wrong := [len(column) for column in (*columns, *found.values()) if len(column) != count]:
            raise ValueError(f"expected columns of one length, found {count} and {wrong[0]} cells")
        empty = np.zeros(count, dtype=bool)
        for column in columns if self.skip_empty else ():
            empty |= np.asarray([is_empty(text) for text in column], dtype=bool)
        for column in columns:
            check_texts(column, empty)
        examples = self.encode(list(zip(*columns, strict=True)), empty)
        scored = self.scores(examples, empty, independent=True)
        tell([scored.counts])
        return found | self.results(scored, empty)

    def encode(self, texts: Sequence[tuple[str, ...]], empty: Flags) -> Any:
        """What the model reads of texts, or pairs, that are not empty; None where all are.

        Raises:
            UserError: pairs where the run learned from single texts, or the other way round.
        """
        chosen = [each for each, is_empty in zip(texts, empty, strict=True) if not is_empty]
        if not chosen:
            return None
        if (are_pairs := len(chosen[0]) == 2) != self.opened.recipe.is_of_pairs:
            found, learned = ("pairs", "single texts") if are_pairs else ("single texts", "pairs")
            raise UserError(f"{self.folder}: expected {learned}, as in the run's training data, found {found}")
        return self.opened.encode(*map(list, zip(*chosen, strict=True)))

    def scores(self, examples: Any, empty: Flags, independent: bool = False) -> Scored:
        """What `encode` gave, scored; as `Network.scores`."""
        is_there, count = ~np.asarray(empty, dtype=bool), len(empty)
        scores = np.full((count, self.opened.outputs), np.nan, dtype=np.float32)
        found = Scored(scores, np.zeros(count, bool), np.zeros(count, np.int64), np.zeros(count, np.int64))
        if examples is not None:
            scores[is_there] = self.opened.scores(examples, independent).numpy()
        if isinstance(examples, EncodedTexts):
            found.cut[is_there] = examples.is_cut
            found.tokens[is_there], found.unknown[is_there] = examples.own_tokens, examples.unknown
        return found

    def results(self, found: Scored, empty: Flags) -> dict[str, Any]:
        """What scores say, as `__call__` returns it; each row's results depend on its scores alone."""
        shares = np.where(empty, np.nan, found.unknown / np.maximum(found.tokens, 1)).astype(np.float32)
        unread = {} if self.baseline else dict(zip(UNREAD, (found.cut, shares), strict=True))
        if self.embed:
            return {"vector": found.scores, **unread}
        answer, tensor = self.opened.recipe.answer, torch.from_numpy(found.scores)
        names = names_of(answer, predicted(answer, tensor))
        if answer.kind == "value":
            return {"prediction": np.asarray(names, dtype=np.float64), **unread}
        # Filled one by one: numpy would make lists of equal lengths a matrix.
        labels = np.empty(len(names), dtype=object)
        for number, label in enumerate(names):
            labels[number] = None if empty[number] else label
        # The last bit of an exponential depends on where it stands in a tensor: the processor computes several at once.
        chances_nC = torch.cat([probabilities(answer, row) for row in torch.split(tensor, 1)]).numpy()
        chances = {name: chance.copy() for name, chance in zip(self._chances, chances_nC.T, strict=True)}
        return {"prediction": labels, **chances, **unread}

    def told(self, results: Mapping[str, Any], number: int) -> tuple[Any, dict[str, Any]]:
        """Of one row of results what is predicted, and the chance of each class or label."""
        names = self.opened.recipe.answer.names
        chances = {name: results[column][number] for name, column in zip(names, self._chances, strict=True)}
        return results["prediction"][number], chances

    def _texts_of(self, table: Mapping[str, Column]) -> list[list[Any]]:
        names = self.text or self.opened.recipe.text
        if missing := [name for name in names if name not in table]:
            raise UserError(
                f"expected the text columns {', '.join(names)}, found no {first_names(missing)}; the table has "
                f"{first_names(list(table))}: name others with text"
            )
        return [list(table[name]) for name in names]


@lru_cache(maxsize=1)
def _unpickled(*given: Any) -> Predictor:
    """Kept for the next one that is equal: Spark and Ray unpickle one for each of a process's tasks."""
    return Predictor(*given)


def is_empty(text: Any) -> bool:
    """Whether a cell holds no text: nothing, NaN, pandas' NA or white space."""
    if isinstance(text, str):
        return not text.strip()
    is_nan = isinstance(text, float) and text != text
    return is_nan or text is None or text is getattr(sys.modules.get("pandas"), "NA", None)


def check_texts(texts: Sequence[Any], skipped: Flags = ()) -> None:
    """Check that these are texts with something in them.

    Args:
        skipped: for each text whether it may be anything; empty: none may.

    Raises:
        TypeError, ValueError: one is none; names it by its number, from 0.
    """
    if isinstance(texts, str | bytes):
        raise TypeError("expected a sequence of texts, found one text: put it into a list")
    for number, text in enumerate(texts):
        if len(skipped) and skipped[number]:
            continue
        if not isinstance(text, str):
            raise TypeError(f"texts[{number}]: expected a text, found {text!r:.40}")
        if not text.strip():
            raise ValueError(f"texts[{number}]: expected a text, found an empty one")
        if (half := half_character(text)) is not None:
            raise ValueError(f"texts[{number}]: expected a text, found half of a surrogate pair at {half}")


def _open_run(run: Run, recipe: Recipe, device: str, embed: bool) -> Network:
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
        length=min(longest, sentences.length or longest) if sentences else longest,
        pad_to=config.model.fixed_length,
        embeds=True,
        origin={"run": experiment.name, "weights": opened.sha256, "model": model},
        weights={name.removeprefix(ENCODER): weight for name, weight in opened.encoder.items()},
        source=opened.path,
        prefix=sentences.prefix if sentences else "",
    )


def _open_words(run: Run, recipe: Recipe) -> WordModel:
    if not run.words:
        raise UserError(
            f"{run.folder}: expected a run of run_classify.py, which keeps a baseline; found one of {run.kind}"
        )
    # Imported here: scikit-learn takes seconds.
    from nystromformer.tasks.finetuning.linear import WORDS_FILE, Words

    path = run.folder.parent / run.words / WORDS_FILE
    words = Words.read(path)
    facts = {"run": run.task, "weights": stated_checksum(path), "classes": list(recipe.answer.names), "baseline": True}
    return WordModel(recipe, facts, words)
