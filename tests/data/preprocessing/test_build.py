"""Datasets of unified corpora: what is in the rows, weights and splits, parts made by several processes, bad input."""

import pickle
import shutil
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from corpora import WRITE, contents, open_verified, write_unified
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from nystromformer import __version__
from nystromformer.data.dataset import Dataset, Manifest, open_dataset
from nystromformer.data.preprocessing import formats as unify_module
from nystromformer.data.preprocessing.build import DatasetSettings, build_dataset
from nystromformer.data.preprocessing.corpus import Document, read_documents
from nystromformer.data.preprocessing.files import divide
from nystromformer.data.preprocessing.formats import FORMATS, Rules, unify
from nystromformer.data.preprocessing.rows import encode_documents
from nystromformer.data.preprocessing.settings import Choice, parse_mixture
from nystromformer.data.preprocessing.unified import read_corpus
from nystromformer.data.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer
from nystromformer.errors import UserError
from nystromformer.files.writing import sha256_of

LENGTH = 32
RULES = {
    "wiki": Rules(min_words=128),
    "bookcorpus": Rules(lines_per_document=10),
    "stories": Rules(),
    "realnews": Rules(),
}
MIXTURE = ("wiki", "bookcorpus=2.5", "stories=1/3", "realnews=2")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The four corpora in several shards each, and a tokenizer."""
    folder = tmp_path_factory.mktemp("corpora")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unify_module, "divide", lambda *given: divide(*given, 6000))
        for name, write in WRITE.items():
            unify(write(folder / name), folder / name / "unified", FORMATS[name], RULES[name])
    sentences = [s for name in WRITE for document in documents(folder, name) for s in document.sentences]
    save_tokenizer(train_tokenizer(sentences, 300), folder / "small-tokenizer")
    return folder


def documents(corpora: Path, name: str) -> list[Document]:
    unified = corpora / name / "unified"
    return [document for shard in read_corpus(unified).shards for document in read_documents(unified / shard)]


def settings_with(**changes: object) -> DatasetSettings:
    given = {"length": LENGTH, "mixture": MIXTURE, "tokenizer": "small-tokenizer", "validation": 0.3, **changes}
    return DatasetSettings(**given)  # type: ignore[arg-type]


def build(corpora: Path, out: Path, **changes: object) -> Manifest:
    manifest = build_dataset(corpora, out, settings_with(**changes))
    assert manifest is not None
    return manifest


@pytest.fixture(scope="module")
def reference(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reference") / "dataset"
    build(corpora, out)
    return out


def text_of(dataset: Dataset, split: str) -> str:
    """The rows' text, each row's parts joined as they were."""
    rows = dataset.train if split == "train" else dataset.validation
    special = dataset.manifest.special
    kept = [int(token) for token in rows.tokens.reshape(-1) if token not in (special.bos, special.eos)]
    return str(load_tokenizer(dataset.tokenizer_folder).decode(kept))


def expected_tokens(corpora: Path, tokenizer: Tokenizer, **changes: object) -> dict[str, Counter[int]]:
    """How often each token stands in the documents that a split takes, as often as it takes them."""
    settings = settings_with(**changes)
    read = {name: read_corpus(corpora / name / "unified") for name in parse_mixture(settings.mixture)}
    counts: dict[str, Counter[int]] = {"train": Counter(), "validation": Counter()}
    for name, choice in settings.choices(read).items():
        for document in documents(corpora, name):
            split, times = choice(document)
            [(tokens_T, _)] = encode_documents([document], tokenizer)
            for _ in range(times):
                counts[split].update(tokens_T.tolist())
    return counts


@pytest.mark.parametrize("mixture", [MIXTURE, ("bookcorpus=2",)], ids=str)
def test_all_text_is_in_the_rows_as_often_as_it_shall_be(corpora: Path, tmp_path: Path, mixture: tuple[str]) -> None:
    build(corpora, tmp_path, mixture=mixture)
    dataset = open_verified(tmp_path)
    tokenizer = load_tokenizer(dataset.tokenizer_folder)
    special = (dataset.manifest.special.bos, dataset.manifest.special.eos, dataset.manifest.special.pad)
    for split, expected in expected_tokens(corpora, tokenizer, mixture=mixture).items():
        rows = dataset.train if split == "train" else dataset.validation
        kept = Counter(token for token in rows.tokens.reshape(-1).tolist() if token not in special)
        assert kept <= expected
        # only the end of a part, which fills no row, is left out
        left_out = (expected - kept).total()
        assert 0.7 * dataset.manifest.split(split).dropped_tokens <= left_out
        assert left_out <= dataset.manifest.split(split).dropped_tokens
        assert dataset.manifest.split(split).tokens == expected.total() > 1000


def test_the_manifest_tells_what_each_corpus_gave_and_how_without_paths(corpora: Path, reference: Path) -> None:
    dataset = open_dataset(reference)
    manifest = dataset.manifest
    assert [(corpus.name, corpus.weight) for corpus in manifest.corpora] == list(
        zip(WRITE, (1, 2.5, 1 / 3, 2), strict=True)
    )
    for split, rows in (("train", dataset.train), ("validation", dataset.validation)):
        whole, parts = manifest.split(split), [getattr(corpus, split) for corpus in manifest.corpora]
        for key in ("rows", "tokens", "documents"):
            assert sum(getattr(part, key) for part in parts) == getattr(whole, key)
        assert whole.padding == (rows.tokens == dataset.manifest.special.pad).sum()
        for name, stamp in whole.files.items():
            assert (stamp.size, stamp.sha256) == ((reference / name).stat().st_size, sha256_of(reference / name))
    assert (manifest.code_version, manifest.seed) == (__version__, 0)
    assert manifest.tokenizer_sha256 == sha256_of(reference / "tokenizer" / "tokenizer.json")
    made_of = {name: sha256_of(corpora / name / "unified" / "corpus.json") for name in WRITE}
    assert manifest.parameters["corpus.json"] == made_of
    weights = {"wiki": "1", "bookcorpus": "5/2", "stories": "1/3", "realnews": "2"}
    assert manifest.parameters["corpora"] == weights
    assert "/" not in (reference / "manifest.json").read_text().replace('"1/3"', "").replace('"5/2"', "")


def test_the_number_of_workers_changes_nothing(corpora: Path, reference: Path, tmp_path: Path) -> None:
    build_dataset(corpora, tmp_path, settings_with(), workers=2)
    assert contents(tmp_path) == contents(reference)


@settings(max_examples=25)
@given(st.integers(0, 2**31), st.sampled_from(["1/3", "1", "2", "2.5"]))
def test_weights(seed: int, weight: str) -> None:
    choice = Choice("wiki", Fraction(weight), 0.2, seed)
    chosen = [choice(Document(f"d{n}", f"g{n // 2}", ())) for n in range(2000)]
    sides = [split for split, _ in chosen]
    assert sides[0::2] == sides[1::2], "a group is on one side"
    assert 0.13 < sides.count("validation") / 2000 < 0.27
    train = [times for split, times in chosen if split == "train"]
    assert abs(np.mean(train) - float(Fraction(weight))) < 0.07
    assert set(train) <= {int(Fraction(weight)), choice.passes}
    assert max(times for split, times in chosen if split == "validation") == 1


def test_repeats_are_apart_and_validation_is_no_training(corpora: Path, tmp_path: Path) -> None:
    build(corpora, tmp_path, mixture=("bookcorpus=2",))
    dataset = open_dataset(tmp_path)
    sentences = [s for d in documents(corpora, "bookcorpus") for s in d.sentences]
    train, validation = text_of(dataset, "train"), text_of(dataset, "validation")
    both = [s for s in set(sentences) if s in train and s in validation]
    assert not both
    first = next(s for s in sentences if s in train)
    assert train.find(first, train.find(first) + 1) - train.find(first) > 1000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"validation": 1.0, "tokenizer": "train"},
            r"--validation 1 leaves no text to train .* with --tokenizer FOLDER",
        ),
        ({"mixture": ("wiki=0",)}, r"--corpus wiki=0: .*positive weight"),
        ({"mixture": ("wiki=1/0",)}, r"positive weight"),
        ({"mixture": ("../wiki",)}, r"expected NAME"),
        ({"mixture": ("wiki", "wiki=2")}, r"--corpus: wiki given more than once"),
        ({"mixture": ("wikipedia",)}, r"--corpus wikipedia: no folder .*there|Unified corpora in .*: bookcorpus, real"),
        ({"tokenizer": "./nowhere"}, r"--tokenizer \./nowhere: no such folder here"),
        ({"tokenizer": "no-such-name"}, r"no-such-name: no such folder here .*cannot be downloaded from the Hugging"),
        ({"tokenizer": "wiki"}, r"wiki: expected a tokenizer: vocab\.json and merges\.txt"),
        ({"tokenizer": "train", "vocab_size": 5}, r"vocab_size: expected at least 261"),
        ({"tokenizer": "wiki", "vocab_size": 500}, r"--vocab_size 500: expected --tokenizer train with it"),
        ({"length": 1 << 20}, r"the train split has [\d,]+ tokens of \d+ documents, not enough for a row of 1048576"),
    ],
    ids=str,
)
def test_bad_settings(corpora: Path, tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(corpora, tmp_path / "out", **changes)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_dataset_for_validation_only(corpora: Path, tmp_path: Path) -> None:
    manifest = build(corpora, tmp_path, validation=1, mixture=tuple(WRITE))
    dataset = open_verified(tmp_path)
    assert (len(dataset.train), dataset.train.tokens.shape, len(dataset.train.splits)) == (0, (0, LENGTH), 0)
    assert manifest.validation.documents == sum(len(documents(corpora, name)) for name in WRITE)
    assert manifest.train.documents == 0
    assert manifest.fill("train") == manifest.sentence_order_share("train") == 0
    assert len(pickle.loads(pickle.dumps(dataset)).train) == 0  # noqa: S301
    assert build(corpora, tmp_path, validation=1, mixture=tuple(WRITE)) == manifest


def test_one_group_alone_is_for_training(corpora: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = [Document(str(n), "only", tuple(f"This is {n} and {k} here." for k in range(20))) for n in range(9)]
    write_unified(tmp_path, "one", texts)
    shutil.copytree(corpora / "wiki", tmp_path / "wiki")
    tokenizer = str(corpora / "small-tokenizer")
    manifest = build(tmp_path, tmp_path / "out", mixture=("one", "wiki"), tokenizer=tokenizer)
    assert (manifest.corpora[0].train.documents, manifest.corpora[0].validation.documents) == (9, 0)
    assert "one: its text is a single group, so all of it is used for training" in caplog.text
    assert caplog.text.count("its text is a single group") == 1
    with pytest.raises(UserError, match=r"--corpus one: the text is a single group, .*or give --validation 1"):
        build(tmp_path, tmp_path / "alone", mixture=("one",), tokenizer=tokenizer)
