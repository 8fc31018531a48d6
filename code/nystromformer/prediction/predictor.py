"""A finished run as one object: predictions of texts for commands, a service, Ray, Spark and programs of other people.

Shapes: n texts, E the encoder's width.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nystromformer.config import experiment_config
from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.errors import UserError
from nystromformer.files.reading import half_character
from nystromformer.prediction.network import Network
from nystromformer.runs.record import Run, open_run
from nystromformer.tasks.documents.answer import Answer
from nystromformer.tasks.documents.recipe import Recipe, recipe_in
from nystromformer.tasks.documents.targets import names_of, predicted, probabilities
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.experiment.start import ENCODER, open_pretrained
from nystromformer.tasks.experiment.tokenizer import find_tokenizer
from nystromformer.tasks.finetuning.examples import Texts
from nystromformer.tasks.finetuning.objective import decided
from nystromformer.training import choose_device
from nystromformer.training.checkpoint import epoch_name, read_checkpoint, stated_checksum
from nystromformer.wording import first_names

if TYPE_CHECKING:
    from nystromformer.tasks.finetuning.linear import Words

Column = Sequence[Any] | NDArray[Any]
Flags = Sequence[bool] | NDArray[np.bool_]


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

    Raises:
        ValueError: both embed and baseline, or more than two text columns.
    """

    def __init__(
        self,
        folder: str | Path,
        device: str = "auto",
        embed: bool = False,
        baseline: bool = False,
        *,
        text: Sequence[str] | None = None,
        id: str = "id",
        skip_empty: bool = False,
    ) -> None:
        if baseline and embed:
            raise ValueError("baseline=True: expected no embed=True with it: it has no encoder")
        names = (text,) if isinstance(text, str) else None if text is None else tuple(text)
        if names is not None and not 1 <= len(names) <= 2:
            raise ValueError(f"text: expected one column or two, found {len(names)}")
        # Another process may have another working folder.
        self.folder = Path(folder).absolute()
        self.device = device
        self.embed = embed
        self.baseline = baseline
        self.text = names
        self.id = id
        self.skip_empty = skip_empty

    def __reduce__(self) -> tuple[Any, ...]:
        given = (self.folder, self.device, self.embed, self.baseline, self.text, self.id, self.skip_empty)
        return _unpickled, given

    @cached_property
    def run(self) -> Run | None:
        """The run's record; None of an experiment.

        Raises:
            UserError: no finished run is there.
        """
        if self.embed and (self.folder / "config.json").is_file():
            return None
        return open_run(self.folder)

    @cached_property
    def opened(self) -> Network | WordModel:
        """What gives the scores.

        Raises:
            UserError: no finished run there, one of another task, or its weights or tokenizer are gone; no checkpoint
                of the experiment, or weights that are not of config.json's model; or no baseline.
        """
        if self.run is None:
            return _open_experiment(self.folder, self.device)
        recipe = recipe_in(self.run.texts, self.folder)
        return _open_words(self.run, recipe) if self.baseline else _open_run(self.run, recipe, self.device, self.embed)

    @property
    def network(self) -> Network:
        """The same where it is no baseline."""
        assert isinstance(self.opened, Network)
        return self.opened

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of a result, without the id."""
        if self.embed:
            return ("vector",)
        return ("prediction", *(f"p_{name}" for name in self.opened.recipe.answer.names))

    def __call__(self, texts: Sequence[str] | Mapping[str, Column]) -> dict[str, Any]:
        """Columns of results, in the texts' order.

        Args:
            texts: n texts, or a table as columns of n cells or as a DataFrame; other columns than those of text and id
                are not read.

        Returns:
            The id, where a table has it; `prediction` (n,): names of classes, lists of names for several labels, or
            values; of classes and labels `p_NAME` (n,) float32 for each name. With `embed`, `vector` (n, E) float32.

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
        return found | self.results(self.scores(examples, empty, independent=True), empty)

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

    def scores(self, examples: Any, empty: Flags, independent: bool) -> NDArray[np.float32]:
        """(n, outputs), NaN of texts that are empty; as `Network.scores`."""
        scores = np.full((len(empty), self.opened.outputs), np.nan, dtype=np.float32)
        if examples is not None:
            scores[~np.asarray(empty)] = self.opened.scores(examples, independent).numpy()
        return scores

    def results(self, scores: NDArray[np.float32], empty: Flags) -> dict[str, Any]:
        """What scores (n, outputs) say, as `__call__` returns it; each row's results depend on its scores alone."""
        if self.embed:
            return {"vector": scores}
        answer, tensor = self.opened.recipe.answer, torch.from_numpy(scores)
        found = names_of(answer, predicted(answer, tensor))
        if answer.kind == "value":
            return {"prediction": np.asarray(found, dtype=np.float64)}
        # Filled one by one: numpy would make lists of equal lengths a matrix.
        labels = np.empty(len(found), dtype=object)
        for number, label in enumerate(found):
            labels[number] = None if empty[number] else label
        # The last bit of an exponential depends on where it stands in a tensor: the processor computes several at once.
        chances_nC = torch.cat([probabilities(answer, row) for row in torch.split(tensor, 1)]).numpy()
        chances = {f"p_{name}": chance.copy() for name, chance in zip(answer.names, chances_nC.T, strict=True)}
        return {"prediction": labels, **chances}

    def _texts_of(self, table: Mapping[str, Column]) -> list[list[Any]]:
        names = self.text or self.opened.recipe.text
        if missing := [name for name in names if name not in table]:
            raise UserError(
                f"expected the text columns {', '.join(names)}, found no {first_names(missing)}; the table has "
                f"{first_names(list(table))}: name others with text"
            )
        return [list(table[name]) for name in names]


@lru_cache(maxsize=1)
def _unpickled(
    folder: Path, device: str, embed: bool, baseline: bool, text: tuple[str, ...] | None, id: str, skip_empty: bool
) -> Predictor:
    """Kept for the next one that is equal: Spark and Ray unpickle one for each of a process's tasks."""
    return Predictor(folder, device, embed, baseline, text=text, id=id, skip_empty=skip_empty)


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
        run.task,
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
    """The encoder of an experiment after its last epoch, as it pools; texts are read up to the model's length."""
    experiment = open_experiment(folder)
    opened = open_pretrained(experiment, "last")
    config = experiment.config
    # Of config.json, which may change; a run's own is in the file of its weights.
    model = config.model.model_dump(mode="json", by_alias=True)
    return Network(
        experiment.name,
        Recipe(Answer("value"), ("text",), ()),
        config,
        find_tokenizer(experiment, opened.tokenizer_sha256),
        choose_device(device, config.model.mixed_precision),
        length=config.model.max_seq_len,
        pad_to=config.model.fixed_length,
        embeds=True,
        origin={"run": experiment.name, "weights": opened.sha256, "model": model},
        weights={name.removeprefix(ENCODER): weight for name, weight in opened.encoder.items()},
        source=opened.path,
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
