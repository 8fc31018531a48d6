"""WikiHop's batches, read back from their tokens, its prediction files, and the real instances."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from wikihop_files import RECORDS, record

from nystromformer.data.tokenizer import read_tokenizer, train_tokenizer
from nystromformer.errors import UserError
from nystromformer.tasks.wikihop.chunks import add_special_tokens, markers
from nystromformer.tasks.wikihop.examples import WikiHopExamples
from nystromformer.tasks.wikihop.read import Instance, read_instances

DATA = Path(os.environ.get("NYSTROM_DATA", "/nonexistent"))
LENGTH = 64


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = [text for one in RECORDS for text in (one["query"], *one["supports"])]
    return add_special_tokens(train_tokenizer(texts, 300))


INSTANCES = [Instance(**one) for one in RECORDS]


@pytest.fixture(scope="module")
def examples(tokenizer: Tokenizer) -> WikiHopExamples:
    return WikiHopExamples("WikiHop train", INSTANCES, tokenizer, LENGTH)


def test_the_fingerprint_is_of_everything(examples: WikiHopExamples, tokenizer: Tokenizer) -> None:
    changed = [Instance(**one) for one in (record(0, answer="france"), *RECORDS[1:])]
    others = [(changed, tokenizer, LENGTH), (INSTANCES, tokenizer, LENGTH - 1), (INSTANCES[::-1], tokenizer, LENGTH)]
    others.append((INSTANCES, add_special_tokens(train_tokenizer(["another text"], 290)), LENGTH))
    found = {WikiHopExamples("x", *each).fingerprint for each in [*others, (INSTANCES, tokenizer, LENGTH)]}
    assert len(found) == 5
    assert examples.fingerprint in found


def test_counts_are_the_batches(examples: WikiHopExamples) -> None:
    for number in range(len(examples)):
        batch = examples.batch(np.asarray([number]))
        sizes = batch["mask_BN"].sum(1)
        assert examples.lengths[number] == sizes.max() == batch["tokens_BN"].shape[1] <= LENGTH
        assert examples.rows[number] == len(sizes)
        assert examples.tokens[number] == sizes.sum()


@pytest.mark.parametrize("pad_to", [None, LENGTH, LENGTH + 9])
def test_batches(examples: WikiHopExamples, tokenizer: Tokenizer, pad_to: int | None) -> None:
    numbers = np.asarray([7, 0, 3, 8])
    batch = examples.batch(numbers, pad_to)
    ids = markers(tokenizer)
    tokens, mask = batch["tokens_BN"], batch["mask_BN"]
    assert tokens.shape[1] == (pad_to or examples.lengths[numbers].max())
    assert tokens.dtype == batch["instance_B"].dtype == batch["positions_BC"].dtype == torch.int64
    assert mask.dtype == batch["global_BN"].dtype == torch.bool
    assert (tokens[~mask] == ids.pad).all()
    assert (tokens[mask] != ids.pad).all()
    assert batch["labels"].tolist() == [1] * 4
    assert batch["present_IA"].sum(1).tolist() == [3, 2, 3, 2]
    assert batch["present_IA"].tolist()[1] == [True, True, False]
    assert torch.bincount(batch["instance_B"]).tolist() == examples.rows[numbers].tolist()
    for row, instance in enumerate(batch["instance_B"].tolist()):
        one = RECORDS[numbers[instance]]
        for position, candidate in zip(batch["positions_BC"][row], batch["candidates_BC"][row], strict=True):
            assert (position < 0) == (candidate < 0)
            if position >= 0:
                rest = tokens[row, position:].tolist()
                assert rest[0] == ids.answer
                text = tokenizer.decode(rest[1 : rest.index(ids.end_answer)])
                assert text.strip() == one["candidates"][candidate]
        prefix = tokens[row].tolist().index(ids.eos)
        assert batch["global_BN"][row].tolist() == [at < prefix for at in range(tokens.shape[1])]
    expected = [one["supports"] for one in (RECORDS[number] for number in numbers)]
    assert [support_text(batch, index, ids.eos, tokenizer) for index in range(4)] == [
        "".join(" " + text for text in texts) for texts in expected
    ]


def support_text(batch: dict[str, torch.Tensor], index: int, eos: int, tokenizer: Tokenizer) -> str:
    rows = batch["instance_B"] == index
    chosen = batch["tokens_BN"][rows][batch["mask_BN"][rows] & ~batch["global_BN"][rows]]
    return tokenizer.decode(chosen[chosen != eos].tolist())


def test_hidden_answers(tokenizer: Tokenizer) -> None:
    hidden = [Instance(**record(number, answer=...)) for number in range(3)]
    examples = WikiHopExamples("x", hidden, tokenizer, LENGTH)
    assert examples.labels is None
    assert "labels" not in examples.batch(np.arange(3))


def test_a_prefix_that_the_attention_does_not_take_as_global(examples: WikiHopExamples, tokenizer: Tokenizer) -> None:
    longest = int(examples.batch(np.arange(len(examples)))["global_BN"].sum(1).max())
    assert len(WikiHopExamples("x", INSTANCES, tokenizer, LENGTH, longest)) == len(examples)
    words = f"are {longest} tokens, and the attention allows {longest - 1} global tokens: raise its global_capacity"
    with pytest.raises(UserError, match=words):
        WikiHopExamples("x", INSTANCES, tokenizer, LENGTH, longest - 1)


def test_answers_are_the_best_candidates(examples: WikiHopExamples) -> None:
    scores = torch.full((9, 3), -torch.inf)
    scores[:, 0], scores[4:, 1] = -5.0, -4.0
    scores[7, 2] = 0.5
    best = ["france"] * 4 + ["wales"] * 3 + ["the river", "wales"]
    assert examples.answers(scores) == {one["id"]: text for one, text in zip(RECORDS, best, strict=True)}


@pytest.mark.data
@pytest.mark.skipif(not (DATA / "wikihop").is_dir(), reason="NYSTROM_DATA names no folder with wikihop/ in it")
@pytest.mark.parametrize("length", [160, 4096])
def test_real_instances_lose_nothing(length: int) -> None:
    tokenizer = add_special_tokens(read_tokenizer(DATA / "roberta-base"))
    instances = read_instances(DATA / "wikihop" / "train.json")
    examples = WikiHopExamples("WikiHop train", instances, tokenizer, length)
    ids = markers(tokenizer)
    assert (ids.question, ids.end_answer) == (50265, 50268)
    assert len(examples) == len(instances) == 22
    for number, instance in enumerate(instances):
        batch = examples.batch(np.asarray([number]), pad_to=length)
        assert batch["labels"].tolist() == [instance.right]
        supports: dict[tuple[int, ...], list[int]] = {}
        for row, tokens in enumerate(batch["tokens_BN"]):
            group = tuple(batch["candidates_BC"][row].tolist())
            chosen = tokens[batch["mask_BN"][row] & ~batch["global_BN"][row] & (tokens != ids.eos)]
            supports.setdefault(group, []).extend(chosen.tolist())
            prefix = tokenizer.decode(tokens[batch["global_BN"][row]].tolist(), skip_special_tokens=False)
            candidates = "".join(f"<answer>{spaced(instance.candidates[c])}</answer>" for c in group if c >= 0)
            assert prefix == f"<s><question>{spaced(instance.query)}</question>{candidates}"
        expected = "".join(map(spaced, instance.supports))
        assert [tokenizer.decode(ids) for ids in supports.values()] == [expected] * len(supports)
        assert [c for group in supports for c in group if c >= 0] == list(range(len(instance.candidates)))


def spaced(text: str) -> str:
    return text if text.startswith(" ") else f" {text}"
