"""WikiHop's JSON, its special tokens and the tokens of its texts: what is read, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer
from wikihop_files import RECORDS, record, write_records

from nystromformer.data.tokenizer import train_tokenizer
from nystromformer.errors import UserError
from nystromformer.tasks.wikihop.chunks import MARKERS, add_special_tokens, markers
from nystromformer.tasks.wikihop.examples import tokenise
from nystromformer.tasks.wikihop.read import Instance, read_instances


@pytest.fixture(scope="module")
def plain() -> Tokenizer:
    return train_tokenizer([text for one in RECORDS for text in (one["query"], *one["supports"])], 300)


@pytest.fixture(scope="module")
def tokenizer(plain: Tokenizer) -> Tokenizer:
    return add_special_tokens(plain)


class TestReading:
    def test_instances(self, tmp_path: Path) -> None:
        instances = read_instances(write_records(tmp_path / "train.json"))
        assert [instance.id for instance in instances] == [one["id"] for one in RECORDS]
        assert instances[1].model_dump().items() <= RECORDS[1].items()
        assert instances[1].right == 1

    def test_duplicate_candidates_are_one(self, tmp_path: Path) -> None:
        candidates = ["a", "b", "a", "wales", "b", "Wales"]
        [instance] = read_instances(write_records(tmp_path / "train.json", [record(0, candidates=candidates)]))
        assert (instance.candidates, instance.right) == (["a", "b", "wales", "Wales"], 2)

    def test_hidden_answers_and_a_byte_order_mark(self, tmp_path: Path) -> None:
        records = [record(number, answer=...) for number in range(3)]
        (tmp_path / "test.json").write_text(json.dumps(records), encoding="utf-8-sig")
        assert [one.right for one in read_instances(tmp_path / "test.json")] == [None] * 3

    def test_broken_json(self, tmp_path: Path) -> None:
        (tmp_path / "train.json").write_bytes(json.dumps(RECORDS).encode()[:-1])
        message = r"train\.json: expected a JSON list of instances: invalid JSON: EOF while parsing a list at line 1"
        with pytest.raises(UserError, match=message):
            read_instances(tmp_path / "train.json")

    @pytest.mark.parametrize(
        ("records", "message"),
        [
            ({"data": []}, "expected a JSON list of instances: expected a valid array"),
            ([], "expected a list of instances, found none"),
            ([record(0, query=None)], r"\[0\]\.query: expected a valid string"),
            ([record(0, candidates=[])], r"\[0\]\.candidates: list should have at least 1 item"),
            ([record(0), record(1), record(0)], "two instances have the id 'WH_train_0'"),
            ([record(0), record(5, answer="spain")], "WH_train_5: the answer 'spain' is not among its 3"),
        ],
    )
    def test_bad_instances(self, tmp_path: Path, records: Any, message: str) -> None:
        with pytest.raises(UserError, match=rf"train\.json: .*{message}"):
            read_instances(write_records(tmp_path / "train.json", records))


class TestMarkers:
    def test_they_follow_the_vocabulary(self, plain: Tokenizer, tokenizer: Tokenizer) -> None:
        size = plain.get_vocab_size()
        assert [tokenizer.token_to_id(token) for token in MARKERS] == list(range(size, size + 4))
        assert {**plain.get_vocab()}.items() <= tokenizer.get_vocab().items()
        assert plain.token_to_id("<answer>") is None, "the tokenizer itself is left alone"
        assert add_special_tokens(tokenizer).get_vocab() == tokenizer.get_vocab()
        ids = markers(tokenizer)
        assert (ids.bos, ids.pad, ids.eos, ids.question, ids.end_answer) == (0, 1, 2, size, size + 3)

    @pytest.mark.parametrize("special", [True, False])
    def test_those_that_exist_are_kept(self, plain: Tokenizer, special: bool) -> None:
        other = Tokenizer.from_str(plain.to_str())
        other.add_tokens([AddedToken("<answer>", special=special)])
        size = plain.get_vocab_size()
        made = add_special_tokens(other)
        assert [made.token_to_id(token) for token in MARKERS] == [size + 1, size + 2, size, size + 3]

    def test_tokens_are_the_tokenizers(self, plain: Tokenizer, tokenizer: Tokenizer) -> None:
        found = tokenise([Instance(**one) for one in RECORDS], tokenizer)
        assert len(found) == 9
        for tokens, one in zip(found, RECORDS, strict=True):
            texts = [one["query"], *one["candidates"], *one["supports"]]
            expected = [plain.encode(text, add_special_tokens=False).ids for text in texts]
            parts = [tokens.question, *tokens.candidates, *tokens.supports]
            assert [ids.tolist() for ids in parts] == expected
            question, candidates, supports = tokens.sizes
            assert [question, *candidates, *supports] == list(map(len, expected))
            assert (len(candidates), len(supports)) == (len(one["candidates"]), len(one["supports"]))

    def test_spelt_tokens_are_text(self, plain: Tokenizer) -> None:
        made = add_special_tokens(plain)
        text = "<s> </s><answer> x</answer> <question><mask> y </question><pad>"
        (tokens,) = tokenise([Instance(**record(0, query=text, candidates=[text, "wales"], supports=[text]))], made)
        special = [made.token_to_id(token) for token in (*MARKERS, "<s>", "</s>", "<pad>", "<mask>", "<unk>")]
        for ids in (tokens.question, tokens.candidates[0], tokens.supports[0]):
            assert not np.isin(ids, special).any()
            assert made.decode(ids.tolist()) == " " + text
