"""docs/adding.md: the files of each section in a copy of the project, and its commands, on small models and data."""

import json
import shlex
from pathlib import Path

import pytest
from doc_examples import ROOT, Block, apply, blocks, commands, copy_of_project, run
from finetuning import copy_of
from small import small_data

FILES = {
    "An attention": [
        "code/nystromformer/attention/sigmoid.py",
        "code/nystromformer/config/attention/sigmoid.py",
        "code/nystromformer/attention/reference/mixtures.py",
        "tests/support/attention_cases.py",
    ],
    "An objective": [
        "code/nystromformer/tasks/pretraining/first_character.py",
        "code/nystromformer/config/schema.py",
        "code/nystromformer/tasks/pretraining/objectives.py",
        "code/nystromformer/model/build.py",
        "tests/tasks/pretraining/test_first_character.py",
    ],
    "A task on tables": [
        "code/nystromformer/tasks/glue/paws.py",
        "code/nystromformer/tasks/glue/catalog.py",
    ],
    "A task": [
        "code/nystromformer/tasks/spam/declaration.py",
        "code/nystromformer/tasks/spam/__init__.py",
        "data/spam/README.md",
        "tests/test_imports.py",
        "code/nystromformer/tasks/spam/task.py",
        "code/run_spam.py",
    ],
    "A benchmark": ["code/nystromformer/benchmark/questions/norms.py"],
}


def examples_of(section: str) -> list[Block]:
    return blocks(ROOT / "docs" / "adding.md", section)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return copy_of_project(tmp_path / "project")


@pytest.mark.parametrize("section", FILES)
def test_the_page_names_every_file(section: str) -> None:
    assert [block.file for block in examples_of(section) if block.file] == FILES[section]


@pytest.mark.slow
def test_an_attention_is_added_as_the_page_says(project: Path, tmp_path: Path, dataset_folder: Path) -> None:
    examples = examples_of("An attention")
    *derived, contract, others, train = commands(examples)
    apply(examples, project)
    printed = [run(words, project).stdout for words in derived]
    assert "| `sigmoid` | yes | yes | yes | yes | yes | yes | yes | yes | - |" in printed[-1]
    assert " passed" in run([*contract, "-m", "not slow"], project, 300).stdout
    assert " passed" in run(others, project, 300).stdout
    # The page's line, on a small model and dataset.
    (tmp_path / "config.json").write_text(json.dumps(small_data(model__num_landmarks=None)))
    assert train[-2:] == ["--set", "model.attn_type=sigmoid"]
    line = [*train[:2], "--model", str(tmp_path), "--dataset", str(dataset_folder), *train[-2:]]
    assert "mlm_accuracy" in run(line, project).stderr


@pytest.mark.slow
def test_an_objective_is_added_as_the_page_says(project: Path, tmp_path: Path, dataset_folder: Path) -> None:
    examples = examples_of("An objective")
    write_schema, test, train = commands(examples)
    apply(examples, project)
    run(write_schema, project)
    *program, labels_and_learning, schema = test
    assert "2 passed" in run([*program, labels_and_learning], project).stdout
    assert "passed" in run([*program, schema], project).stdout
    run(["python", "-m", "pytest", "tests/test_imports.py"], project)
    # The page's line, on a small model and dataset.
    overrides = [flag for flag in train if "objectives" in flag]
    assert overrides == ['pretraining_setting.objectives=["mlm", "first_character"]']
    (tmp_path / "config.json").write_text(json.dumps(small_data()))
    line = [*train[:2], "--model", str(tmp_path), "--dataset", str(dataset_folder), "--set", *overrides]
    said = run(line, project)
    assert "first_character_accuracy" in said.stderr, shlex.join(line)
    scores = run(["python", "code/run_validation.py", *line[2:]], project)
    assert "first_character_accuracy" in scores.stdout


@pytest.mark.slow
def test_a_task_on_tables_is_added_as_the_page_says(project: Path, tmp_path: Path, source: Path) -> None:
    examples = examples_of("A task on tables")
    train, launch, report = commands(examples)
    (project / "glue" / "PAWS").mkdir()
    for split, count in (("train", 24), ("dev", 12), ("test", 6)):
        rows = [f"{n}\tthe segment of {n}\t{'the' if n % 2 else 'a prize for'} segment\t{n % 2}" for n in range(count)]
        text = "\n".join(["id\tsentence1\tsentence2\tlabel", *rows, ""])
        (project / "glue" / "PAWS" / f"{split}.tsv").write_text(text)
    *_, file, line = apply(examples, project)
    assert (file.name, line.name) == ("paws.py", "catalog.py")
    experiment = copy_of(source, tmp_path / "experiment")
    # The page's lines, on a small model.
    done = run([str(experiment.folder) if word == "nystrom-small-conv" else word for word in train], project, 300)
    assert "glue/PAWS, " in done.stdout
    assert "majority class" in done.stdout
    (predicted,) = experiment.checkpoints.glob("glue/PAWS/*-seed0-*/predictions")
    assert {path.name for path in predicted.iterdir()} == {"dev.tsv", "test.tsv", "PAWS.tsv"}
    assert "/code/run_glue.py" in run(launch, project).stdout
    table = run([*report[:-1], str(experiment.folder), "--out", str(tmp_path / "t.md")], project).stdout
    assert "PAWS (accuracy / F1)" in table


@pytest.mark.slow
def test_a_task_is_added_as_the_page_says(project: Path, tmp_path: Path, source: Path) -> None:
    examples = examples_of("A task")
    tests, train, launch, report = commands(examples)
    apply(examples, project)
    assert " passed" in run(tests, project, 300).stdout
    for split, count in (("train", 24), ("dev", 12)):
        kinds = [("spam\twin a prize today", "other\tthe segment of a token")[number % 2] for number in range(count)]
        lines = "".join(f"{kind} {n}\n" for n, kind in enumerate(kinds))
        (project / "data" / "spam" / f"{split}.tsv").write_text(lines)
    experiment = copy_of(source, tmp_path / "experiment")
    # The page's lines, on a small model.
    here = [str(experiment.folder) if word == "nystrom-small-conv" else word for word in train]
    done = run(here, project, 300)
    assert "spam, " in done.stdout
    assert "majority class" in done.stdout
    assert len(list(experiment.checkpoints.glob("spam/*/predictions/dev.tsv"))) == 3
    assert "/code/run_spam.py" in run(launch, project).stdout
    assert "Spam" in run([*report[:-1], str(experiment.folder), "--out", str(tmp_path / "t.md")], project).stdout
    (project / "data" / "spam" / "dev.tsv").write_text("ham\tmy dear\n")
    with pytest.raises(AssertionError, match="line 1: expected other or spam, a tab, and a message"):
        run(here, project)


@pytest.mark.slow
def test_a_question_to_the_benchmarks_is_one_file(project: Path) -> None:
    examples = examples_of("A benchmark")
    tests, measure = commands(examples)
    apply(examples, project)
    assert " passed" in run([*tests, "-k", "benchmark"], project).stdout
    assert "| 512 | RMSNorm | " in run([*measure, "--rows", "4", "--repeats", "1"], project).stdout
    assert {path.name for path in (project / "results" / "norms").iterdir()} == {"norms.json", "norms.md"}
