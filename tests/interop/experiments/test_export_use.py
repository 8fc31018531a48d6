"""What users of transformers do with exported folders."""

import copy
import io
from pathlib import Path

import pytest
import torch
from exported import MADE, assert_equal, experiment, given, rows
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from nystromformer.interop.experiments.export_model import export_model
from nystromformer.interop.experiments.open_model import open_model
from nystromformer.model import ClassificationModel

BEHAVIOURS = (*("hidden states", "embeds", "attentions", "resized", "checkpointing", "half", "copies", "tuples"),)


@pytest.fixture(scope="module")
def handed_on(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Path:
    """A model's folder, and the export below it, with a file of code."""
    folder = tmp_path_factory.mktemp("handed-on") / "ours"
    changes = MADE["nystrom"] | {"pretraining_setting__objectives": ["mlm"]}
    made = experiment(folder, dataset_folder, **changes)
    export_model(made.folder, "0", "hf", made.folder / "hf")
    return made.folder


@pytest.mark.parametrize(
    ("head", "behaviour"),
    [
        ("MaskedLM", "compiled"),
        *((head, each) for head in ("MaskedLM", "SequenceClassification") for each in BEHAVIOURS),
    ],
)
def test_what_transformers_asks_of_every_model(handed_on: Path, behaviour: str, head: str, tmp_path: Path) -> None:
    """The behaviours that the common tests of transformers check, of the file of code."""
    auto = AutoModelForMaskedLM if head == "MaskedLM" else AutoModelForSequenceClassification
    torch.manual_seed(0)
    theirs, loading = auto.from_pretrained(handed_on / "hf", trust_remote_code=True, output_loading_info=True)
    assert {name.split(".")[0] for name in loading["missing_keys"]} == (set() if head == "MaskedLM" else {"head"})
    inputs = rows(3, 21)
    options, keep = given(inputs, types=True), inputs[1]
    valid = keep if head == "MaskedLM" else slice(None)
    labels = inputs[0] if head == "MaskedLM" else torch.tensor([0, 1, 1])
    with torch.no_grad():
        expected = theirs(**options).logits
    if behaviour == "hidden states":
        states = theirs(**options, output_hidden_states=True).hidden_states
        model = open_model(handed_on).build()
        assert len(states) == theirs.config.num_hidden_layers + 1
        assert_equal(states[-1][keep].detach(), model.encoder(inputs[0], keep, inputs[2])[keep].detach())
        assert theirs(**options).hidden_states is None
    elif behaviour == "embeds":
        embeds = {"inputs_embeds": theirs.get_input_embeddings()(options.pop("input_ids"))}
        assert torch.equal(theirs(**embeds, **options).logits, expected)
        with pytest.raises(ValueError, match="expected either input_ids or inputs_embeds"):
            theirs(**options)
    elif behaviour == "attentions":
        with pytest.raises(ValueError, match="output_attentions: the weights of pairs of tokens are never formed"):
            theirs(**options, output_attentions=True)
    elif behaviour == "resized":
        size = theirs.config.vocab_size
        theirs.resize_token_embeddings(size + 7)
        found = theirs(**options).logits
        assert theirs.get_input_embeddings().num_embeddings == theirs.config.vocab_size == size + 7
        assert_equal(found[..., :size][valid].detach(), expected[valid])
        theirs.save_pretrained(tmp_path / "again")
        again = auto.from_pretrained(tmp_path / "again", trust_remote_code=True)
        assert_equal(again(**options).logits[valid].detach(), found[valid].detach())
        theirs.resize_token_embeddings(size - 5)
        ids = options["input_ids"].clamp(max=size - 6)
        assert theirs(**options | {"input_ids": ids}).logits.isfinite().all()
        theirs.set_input_embeddings(torch.nn.Embedding(size, theirs.config.embedding_dim))
    elif behaviour == "checkpointing":
        gradients = []
        for checkpoints in (False, True):
            theirs.zero_grad()
            if checkpoints:
                theirs.gradient_checkpointing_enable()
            theirs.train()(**options, labels=labels).loss.backward()
            gradients.append({name: weight.grad.clone() for name, weight in theirs.named_parameters()})
        for name, gradient in gradients[0].items():
            torch.testing.assert_close(gradients[1][name], gradient)
    elif behaviour == "half":
        found = theirs.bfloat16()(**options).logits
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found[valid].float(), expected[valid], rtol=0.2, atol=0.2)
    elif behaviour == "copies":
        buffer = io.BytesIO()
        torch.save(theirs, buffer)
        buffer.seek(0)
        for other in (copy.deepcopy(theirs), torch.load(buffer, weights_only=False)):
            assert torch.equal(other(**options).logits, expected)
    elif behaviour == "compiled":
        compiled = torch.compile(theirs, backend="aot_eager", fullgraph=True)
        assert_equal(compiled(**options).logits[valid].detach(), expected[valid])
    else:
        theirs.config.return_dict = False
        found = theirs(**options)
        assert isinstance(found, tuple)
        assert torch.equal(found[0], expected)
        assert isinstance(theirs(**options, return_dict=True), dict)


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_padding_may_stand_on_the_left(handed_on: Path, pooling: str, tmp_path: Path) -> None:
    """The first valid token is pooled, in the file and in this project, whose encoder the file's is."""
    model = ClassificationModel(open_model(handed_on).config.model_copy(update={"positions": "rotary"}), 2).eval()
    model.encoder.pooling = pooling
    theirs = AutoModelForSequenceClassification.from_pretrained(
        handed_on / "hf", trust_remote_code=True, pooling=pooling, positions="rotary", num_labels=2
    )
    theirs.load_state_dict(model.state_dict(), strict=False)
    tokens, keep = torch.randint(5, 200, (3, 9)), torch.arange(9) >= torch.tensor([[0], [4], [8]])
    with torch.no_grad():
        ours = model(tokens, keep)
        assert_equal(theirs(tokens, attention_mask=keep.long()).logits, ours)
        alone = [model(row[there][None]) for row, there in zip(tokens, keep, strict=True)]
    assert_equal(ours, torch.cat(alone))
