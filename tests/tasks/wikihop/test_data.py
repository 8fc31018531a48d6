"""WikiHop's JSON, its special tokens and the cache of its tokens: what is read, what is refused, what is made again."""

import fcntl
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer
from wikihop_files import RECORDS, record, write_records

from nystromformer.data.tokenizer import train_tokenizer
from nystromformer.errors import UserError
from nystromformer.tasks.wikihop import tokens as tokens_module
from nystromformer.tasks.wikihop.chunks import MARKERS, add_special_tokens, markers
from nystromformer.tasks.wikihop.read import check_size, read_instances
from nystromformer.tasks.wikihop.tokens import TokenCache, open_tokens


@pytest.fixture(scope="module")
def plain() -> Tokenizer:
    return train_tokenizer([text for one in RECORDS for text in (one["query"], *one["supports"])], 300)


@pytest.fixture(scope="module")
def tokenizer(plain: Tokenizer) -> Tokenizer:
    return add_special_tokens(plain)


@pytest.fixture
def cache(tmp_path: Path, tokenizer: Tokenizer) -> TokenCache:
    return open_tokens(write_records(tmp_path / "train.json"), tokenizer, tmp_path / "cache")


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

    def test_sizes(self) -> None:
        assert check_size("dev", 5_129) == []
        (warning,) = check_size("dev", 5)
        assert warning.startswith("WikiHop dev has 5 instances, the official one has 5,129: figures on it are not")


class TestMarkers:
    def test_they_follow_the_vocabulary(self, plain: Tokenizer, tokenizer: Tokenizer) -> None:
        size = plain.get_vocab_size()
        assert [tokenizer.token_to_id(token) for token in MARKERS.values()] == list(range(size, size + 4))
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
        assert [made.token_to_id(token) for token in MARKERS.values()] == [size + 1, size + 2, size, size + 3]

    def test_spelt_tokens_are_text(self, tmp_path: Path, plain: Tokenizer) -> None:
        made = add_special_tokens(plain)
        text = "<s> </s><answer> x</answer> <question><mask> y </question><pad>"
        records = [record(0, query=text, candidates=[text, "wales"], supports=[text])]
        tokens = open_tokens(write_records(tmp_path / "train.json", records), made, tmp_path / "cache").tokens(0)
        special = [made.token_to_id(token) for token in (*MARKERS.values(), "<s>", "</s>", "<pad>", "<mask>", "<unk>")]
        for ids in (tokens.question, tokens.candidates[0], tokens.supports[0]):
            assert not np.isin(ids, special).any()
            assert made.decode(ids.tolist()) == " " + text


class TestCache:
    def test_tokens_are_the_tokenizers(self, cache: TokenCache, plain: Tokenizer) -> None:
        for number, one in enumerate(RECORDS):
            texts = [one["query"], *one["candidates"], *one["supports"]]
            expected = [plain.encode(text, add_special_tokens=False).ids for text in texts]
            tokens = cache.tokens(number)
            parts = [tokens.question, *tokens.candidates, *tokens.supports]
            assert [ids.tolist() for ids in parts] == expected
            question, candidates, supports = cache.lengths(number)
            assert [question, *candidates, *supports] == list(map(len, expected))
            assert (len(candidates), len(supports)) == (len(one["candidates"]), len(one["supports"]))
        assert len(cache) == 9
        assert cache.candidates == [one["candidates"] for one in RECORDS]
        assert cache.answers is not None
        assert cache.answers.tolist() == [1] * 9

    def test_it_is_made_once_for_a_source(
        self, cache: TokenCache, tmp_path: Path, tokenizer: Tokenizer, plain: Tokenizer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folders = set(caches(tmp_path))
        assert len(folders) == 1
        with monkeypatch.context() as patch:
            patch.setattr(tokens_module, "_make", None)
            shutil.move(tmp_path / "train.json", tmp_path / "moved.json")
            again = open_tokens(tmp_path / "moved.json", tokenizer, tmp_path / "cache")
        assert (again.fingerprint, again.ids) == (cache.fingerprint, cache.ids)
        write_records(tmp_path / "train.json", [*RECORDS[1:], record(0, answer="france")])
        changed = open_tokens(tmp_path / "train.json", tokenizer, tmp_path / "cache")
        assert changed.fingerprint != cache.fingerprint
        other = train_tokenizer(["another text"], 290)
        open_tokens(tmp_path / "train.json", other, tmp_path / "cache")
        assert len(set(caches(tmp_path)) | folders) == 3

    def test_a_damaged_one_is_made_again(self, cache: TokenCache, tmp_path: Path, tokenizer: Tokenizer) -> None:
        [folder] = caches(tmp_path)
        whole = {path.name: path.read_bytes() for path in folder.iterdir()}
        for name in sorted(whole.keys() - {"lock", "made_from.json"}):
            (folder / name).write_bytes(whole[name][:-9] + bytes([whole[name][-9] ^ 1]) + whole[name][-8:])
            again = open_tokens(tmp_path / "train.json", tokenizer, tmp_path / "cache")
            assert again.fingerprint == cache.fingerprint
            assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole

    def test_a_second_process_waits_for_the_first(
        self, cache: TokenCache, tmp_path: Path, tokenizer: Tokenizer
    ) -> None:
        [folder] = caches(tmp_path)
        with (folder / "lock").open("a") as first, ThreadPoolExecutor() as pool:
            fcntl.flock(first, fcntl.LOCK_EX)
            second = pool.submit(open_tokens, tmp_path / "train.json", tokenizer, tmp_path / "cache")
            with pytest.raises(TimeoutError):
                second.result(timeout=0.3)
            fcntl.flock(first, fcntl.LOCK_UN)
            assert second.result(timeout=60).fingerprint == cache.fingerprint


def caches(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache").iterdir())
