"""docs/your-own-data.md: its five commands, on a small table."""

import csv
import os
import random
import sys
from pathlib import Path

import foreign
import pytest
from doc_examples import ROOT, blocks, commands, copy_of_project, run
from served import ask, service

from nystromformer.files.writing import write_json

PAGE = ROOT / "docs" / "your-own-data.md"
COMMANDS = commands(blocks(PAGE, "From a table to a served model"))


def write(path: Path, rows: int, labelled: bool = True) -> None:
    randomness = random.Random(path.name)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["body", "stars"] if labelled else ["body"])
        for number in range(rows):
            word, stars = (("fine", "5"), ("dull", "1"))[number % 2]
            filling = " ".join(randomness.choices(["film", "actor", "plot", "music", "end", "scene"], k=12))
            writer.writerow([f"{word} {filling}", stars][: 1 + labelled])


@pytest.mark.slow
def test_the_five_commands_lead_from_a_table_to_a_served_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    project = copy_of_project(tmp_path / "project")
    for name, rows in (("reviews", 60), ("later", 20)):
        write(project / f"{name}.csv", rows)
    write(project / "new.csv", 7, labelled=False)
    (project / "one.txt").write_text("fine music film")
    take, learn, predict, explain, serve, compare = COMMANDS
    # A small encoder with random weights in the place of the real one: it is the way that is tried.
    encoder = foreign.stored(foreign.bert(), project / take[take.index("import") + 1], bert_tokens=True)
    write_json(encoder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    run(take, project)
    assert "tf-idf" in run(learn, project, 300).stdout
    (folder,) = (project / "minilm-softmax" / "model" / "documents" / "reviews").glob("*-seed0-*")

    def of_run(words: list[str]) -> list[str]:
        return [str(folder) if word.endswith("/RUN") else word for word in words]

    assert "reviews" in run(compare, project).stdout
    run(of_run(predict), project)
    assert len((project / "predictions.csv").read_text().splitlines()) == 8
    assert "predicted: " in run(of_run(explain), project).stdout
    assert "Gradient × input" in (project / "explained.html").read_text()
    served = [sys.executable, *of_run(serve)[1:]]
    served[served.index("8000")] = "0"
    environment = {**os.environ, "PYTHONPATH": str(project / "code")}
    with service(served, cwd=project, env=environment) as (_, port):
        answer = ask(port, "predict", text="a dull plot")
    assert answer.status_code == 200
    assert {choice["label"] for choice in answer.json()["answers"][0]["choices"]} == {"1", "5"}
