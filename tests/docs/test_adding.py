"""docs/adding.md: the files of each section in a copy of the project, and its commands, on small models and data."""

import json
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
    "A task on tables": [
        "code/nystromformer/tasks/glue/paws.py",
        "code/nystromformer/tasks/glue/catalog.py",
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
    assert "sigmoid" not in printed[-1]  # it holds all, and needs nothing
    assert " passed" in run([*contract, "-m", "not slow"], project, 300).stdout
    assert " passed" in run(others, project, 300).stdout
    # The page's line, on a small model and dataset.
    (tmp_path / "config.json").write_text(json.dumps(small_data(model__num_landmarks=None)))
    assert train[-2:] == ["--attention", "sigmoid"]
    line = [*train[:2], "--model", str(tmp_path), "--dataset", str(dataset_folder), *train[-2:]]
    assert "mlm_accuracy" in run(line, project).stderr


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
def test_a_question_to_the_benchmarks_is_one_file(project: Path) -> None:
    examples = examples_of("A benchmark")
    tests, measure = commands(examples)
    apply(examples, project)
    assert " passed" in run([*tests, "-k", "benchmark"], project).stdout
    assert "| 512 | RMSNorm | " in run([*measure, "--rows", "4", "--repeats", "1"], project).stdout
    assert {path.name for path in (project / "results" / "norms").iterdir()} == {"norms.json", "norms.md"}
