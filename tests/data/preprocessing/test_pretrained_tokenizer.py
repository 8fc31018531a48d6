"""RoBERTa's tokenizer from its files, as transformers makes it, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, BertTokenizer, RobertaTokenizer

from nystromformer.data.preprocessing.corpus import Document
from nystromformer.data.preprocessing.rows import encode_documents
from nystromformer.data.tokenizer import (
    SpecialTokens,
    find_tokenizer,
    read_tokenizer,
    save_tokenizer,
    special_tokens,
    train_tokenizer,
)
from nystromformer.errors import UserError

TEXT = ["The small model reads a large matrix.", "It writes 12 values, doesn't it?", "Größe und “Ziel” — naïve."] * 3


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder such as RoBERTa's, with few tokens; its special tokens are where RoBERTa has them."""
    folder = tmp_path_factory.mktemp("roberta-base")
    trained = train_tokenizer(TEXT, 300)
    model = json.loads(trained.to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    mask = {"content": "<mask>", "single_word": False, "lstrip": True, "rstrip": False, "normalized": False}
    (folder / "special_tokens_map.json").write_text(json.dumps({"mask_token": mask}))
    return folder


def test_it_is_transformers_own(roberta: Path) -> None:
    ours = read_tokenizer(roberta)
    theirs = RobertaTokenizer.from_pretrained(roberta, add_prefix_space=True)
    assert ours.get_vocab() == theirs.get_vocab()
    for text in (*TEXT, "a <mask> here", "  two  spaces ", ""):
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text, add_special_tokens=False)
    assert ours.encode("a").ids == theirs.encode("a")


@settings(max_examples=50)
@given(st.lists(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20), min_size=1, max_size=8))
def test_sentences_one_by_one_are_the_text_as_a_whole(roberta: Path, sentences: list[str]) -> None:
    tokenizer = read_tokenizer(roberta)
    tokenizer.encode_special_tokens = True
    [(tokens, _)] = encode_documents([Document("a", "a", tuple(sentences))], tokenizer)
    assert tokens.tolist() == tokenizer.encode(" ".join(sentences), add_special_tokens=False).ids


def test_berts_kind(tmp_path: Path) -> None:
    word_pieces(tmp_path / "bert")
    ours = read_tokenizer(tmp_path / "bert")
    theirs = BertTokenizer.from_pretrained(tmp_path / "bert")
    for text in ("The models, reading.", "a [MASK] model", ""):
        assert ours.encode(text).ids == theirs.encode(text)
        assert ours.encode(text, "the model.").ids == theirs.encode(text, "the model.")
    assert special_tokens(ours) == SpecialTokens(bos=2, pad=0, eos=3, unk=1, mask=4)
    [(tokens, starts)] = encode_documents([Document("a", "a", ("The models.", "reading [SEP] the"))], ours)
    assert (starts.tolist(), 3 in tokens) == ([0, 4], False)
    save_tokenizer(ours, tmp_path / "again")
    assert read_tokenizer(tmp_path / "again").to_str() == ours.to_str()
    assert AutoTokenizer.from_pretrained(tmp_path / "again").mask_token == "[MASK]"


def test_tokenizer_json(roberta: Path, tmp_path: Path) -> None:
    theirs = RobertaTokenizer.from_pretrained(roberta)
    theirs.save_pretrained(tmp_path / "saved")
    state = json.loads((tmp_path / "saved" / "tokenizer.json").read_text())
    assert state["pre_tokenizer"]["add_prefix_space"] is False
    state["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "saved" / "tokenizer.json").write_text(json.dumps(state))
    read = read_tokenizer(tmp_path / "saved")
    expected = read_tokenizer(roberta)
    for text in TEXT:
        assert read.encode(text).ids == expected.encode(text).ids


def without(key: str, folder: Path) -> None:
    """The vocabulary without a token, whose id is nobody's."""
    path = folder / "vocab.json"
    vocabulary = json.loads(path.read_text())
    del vocabulary[key]
    path.write_text(json.dumps(vocabulary))


def word_pieces(folder: Path, **changes: object) -> None:
    """BERT's kind, with few tokens."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "small", "model", "##s", "read", "##ing", "."]
    tokenizer = BertTokenizer(vocab={token: number for number, token in enumerate(vocabulary)}, do_lower_case=True)
    tokenizer.save_pretrained(folder)
    state = json.loads((folder / "tokenizer.json").read_text())
    state["model"] |= changes
    (folder / "tokenizer.json").write_text(json.dumps(state))


def unigram(folder: Path) -> None:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.save(str(folder / "tokenizer.json"))


BAD = {
    "no vocab": (lambda at: (at / "vocab.json").unlink(), r"expected a tokenizer: vocab\.json and merges\.txt, or"),
    "cut vocab": (lambda at: (at / "vocab.json").write_text('{"a": 1'), r"vocab\.json and merges\.txt cannot be used"),
    "bad merges": (lambda at: (at / "merges.txt").write_text("x yz q\n"), r"merges\.txt cannot.*line 1"),
    "no mask": (lambda at: without("<mask>", at), r"vocab\.json.*the tokenizer has no <mask>"),
    "other kind": (unigram, r"tokenizer\.json cannot be used: expected byte-level BPE.*found Unigram with .*Metaspace"),
    "pieces with a gap": (
        lambda at: word_pieces(at, vocab={"[UNK]": 1, "[PAD]": 0, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "a": 6}),
        r"tokenizer\.json cannot be used: expected ids 0, 1, … without a gap",
    ),
    "a BPE model that splits as BERT": (lambda at: word_pieces(at, type="BPE", merges=[]), "BPE with .* BertPre"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_folder_is_refused(roberta: Path, tmp_path: Path, case: str) -> None:
    spoil, message = BAD[case]
    folder = shutil.copytree(roberta, tmp_path / "copy")
    spoil(folder)
    with pytest.raises(UserError, match=message) as caught:
        read_tokenizer(folder)
    assert str(folder) in str(caught.value)


def test_where_a_tokenizer_is_found(roberta: Path) -> None:
    assert find_tokenizer(str(roberta), Path("/nowhere")) == roberta
    assert find_tokenizer(roberta.name, roberta.parent) == roberta
