"""docs/adding.md: the files of each section in a copy of the project, and its commands, on small models and data."""

import json
import re
from pathlib import Path

import pytest
from doc_examples import ROOT, Block, apply, blocks, commands, copy_of_project, run
from finetuning import copy_of
from small import small_data, write_dataset


def examples_of(section: str) -> list[Block]:
    return blocks(ROOT / "docs" / "adding.md", section)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return copy_of_project(tmp_path / "project")


@pytest.mark.slow
def test_an_attention_of_ones_own_is_used_as_the_page_says(project: Path, tmp_path: Path) -> None:
    examples = examples_of("An attention")
    contract, train, *_ = commands(examples)
    apply(examples[:1], project)
    assert " passed" in run([*contract, "-k", "padding_changes_nothing or weights_of"], project, 300).stdout
    # The page's line, on a small model: the next command needs the name, and may be told it.
    config = small_data(model__num_landmarks=None, model__conv_kernel_size=None, pretraining_setting__epoch=1)
    (tmp_path / "config.json").write_text(json.dumps(config))
    dataset = ["--dataset", str(write_dataset(tmp_path / "dataset"))]
    assert train[-2:] == ["--attention", "sigmoid.py:SigmoidAttention,shift=0.5"]
    assert "sigmoid (shift=0.5)" in run([*train[:2], "--model", str(tmp_path), *dataset, *train[-2:]], project).stderr
    config["model"]["attn_type"] = {"name": "sigmoid", "shift": 0.5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    validate = ["python", "code/run_validation.py", "--model", str(tmp_path), *dataset]
    assert "mlm_accuracy" in run([*validate, "--attention", "sigmoid.py:SigmoidAttention"], project).stdout


@pytest.mark.slow
def test_an_attention_is_added_as_the_page_says(project: Path) -> None:
    examples = examples_of("An attention")
    _, _, *derived, contract, others = commands(examples)
    apply(examples[1:], project)
    imports, config, module = re.split(r"\n\n\n(?=class )", examples[0].text)
    imports = imports.replace("config import AttentionConfig", "config.attention.methods import SigmoidConfig")
    package = project / "code" / "nystromformer"
    methods = package / "config" / "attention" / "methods.py"
    methods.write_text(f"{methods.read_text()}\n\n{config}\n")
    (package / "attention" / "sigmoid.py").write_text(f"{imports}\n\n\n{module}")
    for words in derived:
        run(words, project)
    assert " passed" in run([*contract, "-m", "not slow"], project, 300).stdout
    assert " passed" in run(others, project, 300).stdout


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
