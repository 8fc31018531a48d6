"""A finished fine-tuning run that answers texts."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from finetuning import finetuned_glue
from served import ask, ask_json, served
from small import CPU, small_data

from nystromformer.config import ModelConfig
from nystromformer.errors import UserError
from nystromformer.serve.answers import Choice
from nystromformer.serve.app import Limits, create_app
from nystromformer.serve.cost import measure_encoder, measure_rows
from nystromformer.serve.runs import RunModel, choices_of, predicted_of
from nystromformer.serve.server import open_served
from nystromformer.tasks.documents.cut import Cut
from nystromformer.tasks.prediction.loaded import LoadedRun, Predictions, load_run

TEXTS = ["softmax landmark", "query value key", "token " * 60]


@pytest.fixture(scope="module")
def run(finished: Path) -> LoadedRun:
    return load_run(finished, "cpu")


def test_answers_are_the_runs_predictions(run: LoadedRun) -> None:
    told = run.predict(TEXTS)
    assert told.probabilities is not None
    for number, answer in enumerate(RunModel(run).answer(TEXTS)):
        assert [answer.choices[0].label] == [told.labels[number]] == answer.predicted
        assert answer.choices[0].probability == pytest.approx(float(told.probabilities[number].max()), rel=1e-5)
        assert answer.cut == (number == 2)
        assert answer.tokens <= run.result.length


def test_it_says_which_files_it_was_loaded_from(run: LoadedRun, finished: Path) -> None:
    found = RunModel(run).source
    assert (found.experiment, found.task) == (run.result.experiment, run.result.task)
    assert (found.folder, found.seed) == (finished.name, run.result.settings.seed)
    assert found.checkpoint_sha256 == hashlib.sha256((finished / found.checkpoint).read_bytes()).hexdigest()
    assert found.tokenizer_sha256 == hashlib.sha256((run.result.tokenizer / "tokenizer.json").read_bytes()).hexdigest()


def test_the_example_is_answered_and_values_have_no_probability(run: LoadedRun) -> None:
    model = RunModel(run)
    assert len(model.answer([model.example])) == 1
    values = Predictions([0.5, -2.0], (), None)
    assert choices_of(values) == [[Choice("value", None, 0.5)], [Choice("value", None, -2.0)]]
    names = tuple(f"n{number}" for number in range(12))
    chances = np.random.default_rng(0).dirichlet(np.ones(12), 3).astype(np.float32)
    for row, choices in zip(chances, choices_of(Predictions([""] * 3, names, chances)), strict=True):
        assert [choice.probability for choice in choices] == sorted(row.tolist(), reverse=True)[:10]
        assert all(choice.probability == row[names.index(choice.label)] for choice in choices)
    assert predicted_of(values) == [None, None]
    # The median of ordered classes, and labels beyond those that are shown.
    assert predicted_of(Predictions(["n7"], names, chances[:1])) == [["n7"]]
    assert predicted_of(Predictions([list(names)], names, chances[:1], has_lists=True)) == [list(names)]


def test_what_was_taken_out_of_a_text_is_not_cut_off(run: LoadedRun) -> None:
    model = RunModel(replace(run, recipe=replace(run.recipe, has_breaks=True)))
    (answer,) = model.answer(["softmax landmark" + 60 * "<br />"])
    assert not answer.cut


def test_a_finished_run_is_served_by_its_own_files(finished: Path) -> None:
    for flag, given in (("--checkpoint", ("3", None)), ("--tokenizer", (None, finished))):
        for baseline in (False, True):
            with pytest.raises(UserError, match=f"{flag}: expected none, because a finished run"):
                open_served(finished, *given, "cpu", baseline)


def test_the_service_answers_and_explains(run: LoadedRun) -> None:
    with served(create_app(RunModel(run), Limits(), {})) as address:
        status, found = ask_json(f"{address}/predict", texts=TEXTS)
        assert status == 200
        assert len(found["answers"]) == 3
        status, content = ask(f"{address}/explain", b'{"text": "softmax landmark"}')
        assert status == 200
        assert 'class="shaded"' in content
        status, again = ask_json(f"{address}/predict", texts=TEXTS)
        assert again["answers"] == found["answers"], "an explanation leaves nothing behind"


def test_a_text_of_several_windows_is_answered_explained_and_timed_as_they_are(run: LoadedRun) -> None:
    model = RunModel(replace(run, recipe=replace(run.recipe, cut=Cut("windows", 5))))
    (answer,) = model.answer(TEXTS[2:])
    assert answer.rows > 1
    assert not answer.cut
    assert model.window is not None
    assert model.window[1] == run.result.length
    time = measure_rows(run.config.model, CPU, model.window)
    assert time.window is not None
    assert time.of_rows(answer.tokens, answer.rows) == answer.rows * time.window
    assert time.of_rows(10, 1) == time.at(10)
    assert f"{answer.rows}, whose pooled vectors" in (model.explain(TEXTS[2]) or "")
    assert RunModel(run).window is None


def test_softmax_is_not_measured_beside_itself() -> None:
    model = small_data()["model"] | {"conv_kernel_size": None}
    for attention, names in (("softmax", ["encoder_seconds"]), ("linear", ["encoder_seconds", "softmax_seconds"])):
        config = ModelConfig.model_validate(model | {"attn_type": attention, "num_landmarks": None})
        assert list(measure_encoder(config, CPU, None)) == names


def test_pairs_are_refused(source: Path, tmp_path: Path) -> None:
    run = load_run(finetuned_glue(source, tmp_path, "STS-B"), "cpu")
    with pytest.raises(UserError, match="it was trained on pairs of texts"):
        RunModel(run)
