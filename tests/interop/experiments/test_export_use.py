"""What users of transformers do with exported folders."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import foreign
import numpy as np
import pytest
import torch
from exported import MADE, assert_equal, experiment, given, of_table, rows
from finetuning import made_rows
from small import write_experiment
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from nystromformer.interop.experiments.export_model import export_model
from nystromformer.interop.experiments.import_model import import_model
from nystromformer.interop.experiments.open_model import open_model
from nystromformer.interop.experiments.settings import ImportSettings
from nystromformer.prediction.predictor import Predictor
from nystromformer.tasks.finetuning.flags import Flags
from nystromformer.tasks.finetuning.run import finetune as run_all


@pytest.mark.parametrize("case", ["nystrom", "pre-norm, rotary, mean", "a narrower embedding"])
def test_what_transformers_users_ask_of_a_model(tmp_path: Path, dataset_folder: Path, case: str) -> None:
    """Hidden states, vectors in the place of tokens, and a new head for classes on a model that guesses tokens."""
    made = experiment(tmp_path / "ours", dataset_folder, **MADE[case])
    export_model(made.folder, "0", "hf", tmp_path / "hf", "auto")
    model, inputs = open_model(made.folder).build(), rows(3, 21)
    types = made.config.model.num_sen_type > 1
    options = given(inputs, types)
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path / "hf", trust_remote_code=True)
    classifier, loading = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "hf", trust_remote_code=True, num_labels=3, output_loading_info=True
    )
    assert {name.split(".")[0] for name in loading["missing_keys"]} == {"head"}
    embeds = {"inputs_embeds": theirs.get_input_embeddings()(inputs[0])}
    others = {name: value for name, value in options.items() if name != "input_ids"}
    with torch.no_grad():
        hidden = model.encoder(inputs[0], inputs[1], inputs[2] if types else None)
        for each in (theirs, theirs.encoder, classifier):
            states = each(**options, output_hidden_states=True).hidden_states
            assert len(states) == made.config.model.num_layers + 1
            assert_equal(states[-1][inputs[1]], hidden[inputs[1]])
            assert each(**options).hidden_states is None
            assert torch.equal(each(**embeds, **others)[0], each(**options)[0])
    classifier(**options, labels=torch.tensor([0, 2, 1])).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in classifier.head.parameters())
    for wrong in ({}, {**options, **embeds}):
        with pytest.raises(ValueError, match="expected either input_ids or inputs_embeds"):
            theirs(**wrong)


def readme_prints(folder: Path) -> str:
    """What the program in a folder's README.md prints."""
    (program,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(program.replace("FOLDER", str(folder)), {})  # our own text
    return printed.getvalue()


def test_a_run_from_scratch_has_its_tokenizer(tmp_path: Path) -> None:
    texts = made_rows(24)
    made = write_experiment(tmp_path / "ours", model__vocab_size=300)
    task = of_table(tmp_path, texts)
    with pytest.raises(SystemExit, match=r"^0$"):
        run_all(made, [task], Flags(device="cpu"), Flags(epoch=1).grid(), task.open_from_scratch)
    (result,) = (tmp_path / "ours").rglob("run.json")
    export_model(result.parent, None, "hf", tmp_path / "hf", "auto")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf", trust_remote_code=True)
    chosen = [text for text, _ in texts[:3]]
    with torch.no_grad():
        scores = theirs(**tokenizer(chosen, return_tensors="pt", padding=True, truncation=True)).logits
    told = Predictor(result.parent, "cpu")(chosen)
    chances = [column for name, column in told.items() if name.startswith("p_")]
    torch.testing.assert_close(scores.softmax(1).T, torch.tensor(np.asarray(chances)), rtol=1e-4, atol=1e-5)
    assert "'label'" in readme_prints(tmp_path / "hf")


def test_the_readme_of_a_model_without_a_tokenizer_runs(tmp_path: Path) -> None:
    foreign.stored(foreign.nystromformer(), tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "ours", ImportSettings(), tokenizer="none")
    export_model(tmp_path / "ours", None, "hf", tmp_path / "hf", "auto")
    assert readme_prints(tmp_path / "hf") == f"torch.Size([1, 3, {foreign.VOCABULARY}])\n"
