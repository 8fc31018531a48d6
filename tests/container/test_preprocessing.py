"""Which folder, program and flags a script of data-preprocessing gets in its container."""

import os
from pathlib import Path, PurePosixPath

import pytest

from nystromformer.container import preprocessing
from nystromformer.container.command_line import ScriptFlags
from nystromformer.container.mounts import Place
from nystromformer.container.options import LaunchOptions, Mount
from nystromformer.container.preprocessing import how_to_make, preprocess_spec
from nystromformer.container.scripts import CODE_FOLDER
from nystromformer.container.spec import RunSpec
from nystromformer.errors import UserError
from nystromformer.files.paths import PROJECT

HERE = Place(is_here=True, user="1000:1000")


@pytest.mark.parametrize(
    ("name", "script", "label"),
    [
        ("wiki", "wiki/preprocess.py", "preprocess-wiki"),
        ("docstrings", "docstrings/preprocess.py", "preprocess-docstrings"),
        ("512", "preprocess_data_512.py", "preprocess-512"),
        ("4096", "preprocess_data_4096.py", "preprocess-4096"),
        ("wiki/preprocess.py", "wiki/preprocess.py", "preprocess-wiki"),
        ("data-preprocessing/wiki/preprocess.py", "wiki/preprocess.py", "preprocess-wiki"),
        ("./data-preprocessing/preprocess_data_512.py", "preprocess_data_512.py", "preprocess-512"),
        (str(PROJECT / "data-preprocessing" / "preprocess_data_512.py"), "preprocess_data_512.py", "preprocess-512"),
    ],
)
def test_preprocessing(name: str, script: str, label: str) -> None:
    home = PROJECT / "data-preprocessing"
    made = preprocess_spec(name, ScriptFlags(("--workers", "4", "text")), LaunchOptions(), HERE)
    assert made == RunSpec(
        name=label,
        options=LaunchOptions(),
        argv=("python3", f"/data-preprocessing/{script}", "--workers", "4", "text"),
        output=f"/data-preprocessing/{label}.txt",
        mounts=(Mount(str(home), "/data-preprocessing"), Mount(str(CODE_FOLDER), "/code", True)),
        user="1000:1000",
        command=f"preprocess {label.removeprefix('preprocess-')}",
        home=str(home),
        working_dir="/data-preprocessing",
    )


@pytest.mark.parametrize("name", ["", ".", "..", "wikipedia", "README.md", "../code/run_pretrain.py", "/etc/passwd"])
def test_no_script_of_preprocessing(name: str) -> None:
    with pytest.raises(UserError, match=r"expected one of .*512.*wiki"):
        preprocess_spec(name, ScriptFlags(), LaunchOptions(), HERE)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("32", "preprocess 512 --length 32`"),
        ("1024", "preprocess 4096 --length 1024`"),
        ("8192", "preprocess 4096 --length 8192 --tokenizer_limit 8192`"),
    ],
)
def test_rows_of_another_length(name: str, advice: str) -> None:
    with pytest.raises(UserError, match=rf"^preprocess {name}: expected one of .*launch\.py {advice}"):
        preprocess_spec(name, ScriptFlags(), LaunchOptions(), HERE)
    assert how_to_make(int(name)).endswith(advice.removesuffix("`"))
    assert how_to_make(512) == "python code/launch.py preprocess 512"


class Container:
    """The file system that a container of these mounts sees."""

    def __init__(self, made: RunSpec) -> None:
        self._mounts = sorted(made.mounts, key=lambda mount: len(mount.target))

    def find(self, name: str, links: int = 40) -> Path | None:
        """The file of this machine that a path of the container is."""
        path = PurePosixPath("/")
        for index, part in enumerate(parts := PurePosixPath(name).parts[1:]):
            path = path.parent if part == ".." else path / part
            here = self._here(path)
            if here is not None and here.is_symlink():
                assert links, name
                return self.find(str(path.parent.joinpath(here.readlink(), *parts[index + 1 :])), links - 1)
        here = self._here(path)
        return here if here is not None and here.exists() else None

    def is_writable(self, name: str) -> bool:
        path = PurePosixPath(name)
        return not [mount for mount in self._mounts if path.is_relative_to(mount.target)][-1].read_only

    def _here(self, path: PurePosixPath) -> Path | None:
        for mount in reversed(self._mounts):
            if path.is_relative_to(mount.target):
                return Path(mount.source) / path.relative_to(mount.target)
        return None


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def link(path: Path, to: Path | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data-preprocessing of its own; the working folder is the one above it."""
    folder = tmp_path / "project" / "data-preprocessing"
    for name in ("wiki/preprocess.py", "preprocess_data_512.py"):
        write(folder / name)
    monkeypatch.setattr(preprocessing, "_HOME", folder)
    monkeypatch.chdir(folder.parent)
    return folder


def spec_and_words(name: str, *words: object) -> tuple[RunSpec, list[str]]:
    """The container, and the words after the script's name."""
    spec = preprocess_spec(name, ScriptFlags(tuple(map(str, words))), LaunchOptions(), HERE)
    assert spec.home == spec.mounts[0].source
    return spec, list(spec.argv[2:])


def same_files(container: Container, inside: str, folder: Path) -> set[str]:
    """The files below a folder, links followed, each of which is in the container, too."""
    names = set()
    for parent, _, files in os.walk(folder, followlinks=True):
        for file in files:
            name = os.path.relpath(os.path.join(parent, file), folder)
            there = container.find(f"{inside}/{name}")
            assert there is not None, name
            assert there.resolve() == (folder / name).resolve()
            names.add(name)
    return names


def test_folders_that_flags_name_are_where_they_are_here(home: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "texts" / "dump", tmp_path / "results" / "new" / "unified"
    write(source / "AA" / "wiki_00")
    (tmp_path / "results").mkdir()
    spec, words = spec_and_words("wiki", "--source", "../texts/dump", "--workers", "2", f"--out={out}")
    assert words == ["--workers", "2", "--source", str(source), "--out", str(out)]
    container = Container(spec)
    assert same_files(container, str(source), source) == {"AA/wiki_00"}
    assert not container.is_writable(str(source))
    assert container.is_writable(str(out))
    assert Mount(str(out), str(out)) in spec.mounts, "and nothing above it"
    assert not out.parent.exists(), "made by who starts the container"
    assert spec.to_make == str(out)


def test_folders_of_data_preprocessing_are_not_mounted_again(home: Path) -> None:
    write(home / "mine" / "wiki_00")
    spec, words = spec_and_words("wiki", "--source", home / "mine", "--out", "data-preprocessing/mine/unified")
    assert words == ["--source", "/data-preprocessing/mine", "--out", "/data-preprocessing/mine/unified"]
    assert spec.to_make is None
    assert [mount.target for mount in spec.mounts] == ["/data-preprocessing", "/code"]


def test_one_folder_to_read_and_to_write(home: Path, tmp_path: Path) -> None:
    write(tmp_path / "dump" / "wiki_00")
    spec, _ = spec_and_words("wiki", "--source", tmp_path / "dump", "--out", tmp_path / "dump" / "unified")
    dump, rows = str(tmp_path / "dump"), str(tmp_path / "dump" / "unified")
    assert spec.mounts[2:] == (Mount(dump, dump, True), Mount(rows, rows))


@pytest.mark.parametrize("is_named", [False, True], ids=["in data-preprocessing", "--source"])
def test_links_of_a_corpus(home: Path, tmp_path: Path, is_named: bool) -> None:
    corpus, disk = tmp_path / "corpus" if is_named else home / "wiki", tmp_path / "disk"
    write(corpus / "wiki_00")
    write(disk / "files" / "wiki_09")
    link(corpus / "a" / "wiki_01", write(disk / "wiki_01"))
    link(corpus / "a" / "wiki_02", os.path.relpath(write(disk / "wiki_02"), corpus / "a"))
    link(corpus / "b", disk / "more")
    write(disk / "more" / "wiki_03")
    link(disk / "more" / "wiki_04", write(tmp_path / "third" / "wiki_04"))
    link(disk / "more" / "deeper", "../files")
    link(corpus / "wiki_05", link(disk / "hop", disk / "wiki_01"))
    link(corpus / "absolute", corpus / "wiki_00")
    link(corpus / "relative", "wiki_00")
    link(corpus / "nothing", "/nowhere/at/all")
    (corpus / "unified").mkdir()
    link(corpus / "unified" / "not-read", "/nowhere")
    spec, words = spec_and_words("wiki", *(("--source", corpus) if is_named else ()))
    inside = str(corpus) if is_named else "/data-preprocessing/wiki"
    (corpus / "nothing").unlink()
    (corpus / "unified" / "not-read").unlink()
    container = Container(spec)
    files = same_files(container, inside, corpus)
    assert {"wiki_00", "a/wiki_01", "a/wiki_02", "b/wiki_03", "b/wiki_04", "b/deeper/wiki_09", "wiki_05"} <= files
    assert words == (["--source", str(corpus)] if is_named else [])
    assert all(mount.read_only for mount in spec.mounts[1:])


def test_links_that_lead_round_in_circles(home: Path, tmp_path: Path) -> None:
    write(tmp_path / "disk" / "wiki_00")
    link(tmp_path / "disk" / "again", tmp_path / "disk")
    link(home / "wiki" / "dump", tmp_path / "disk")
    link(home / "wiki" / "itself", "itself")
    spec, _ = spec_and_words("wiki")
    assert Container(spec).find("/data-preprocessing/wiki/dump/wiki_00") == tmp_path / "disk" / "wiki_00"


def test_more_links_than_an_engine_mounts(home: Path, tmp_path: Path) -> None:
    for number in range(201):
        link(home / "wiki" / f"wiki_{number}", write(tmp_path / "disk" / f"wiki_{number}"))
    with pytest.raises(UserError, match="more than 200 links lead out of the mounted folders"):
        spec_and_words("wiki")


def test_results_on_another_disk(home: Path, tmp_path: Path) -> None:
    for name in ("unified", "rows"):
        (tmp_path / "disk" / name).mkdir(parents=True)
    link(home / "wiki" / "unified", tmp_path / "disk" / "unified")
    link(home / "512-roberta", tmp_path / "disk" / "rows")
    container = Container(spec_and_words("wiki")[0])
    assert container.find("/data-preprocessing/wiki/unified") == tmp_path / "disk" / "unified"
    assert container.is_writable(str(tmp_path / "disk" / "unified"))
    container = Container(spec_and_words("wiki", "--source", tmp_path / "disk")[0])
    assert container.is_writable(str(tmp_path / "disk" / "unified")), "though what is above it is only read"
    container = Container(spec_and_words("512")[0])
    assert container.find("/data-preprocessing/512-roberta") == tmp_path / "disk" / "rows"
    assert container.is_writable(str(tmp_path / "disk" / "rows"))


@pytest.mark.parametrize("is_named", [False, True], ids=["in data-preprocessing", "--corpora"])
def test_links_of_unified_corpora(home: Path, tmp_path: Path, is_named: bool) -> None:
    corpora, disk = tmp_path / "corpora" if is_named else home, tmp_path / "disk"
    link(corpora / "same" / "unified", "../plain/unified")
    write(corpora / "plain" / "unified" / "corpus.json")
    link(corpora / "whole", disk / "whole")
    write(disk / "whole" / "unified" / "corpus.json")
    link(corpora / "part" / "unified", disk / "part")
    write(disk / "part" / "corpus.json")
    link(disk / "part" / "00000.jsonl", write(tmp_path / "third" / "00000.jsonl"))
    # As downloads from the hub are kept.
    link(corpora / "roberta-base", disk / "snapshots" / "12ab")
    link(disk / "snapshots" / "12ab" / "vocab.json", "../../blobs/34cd")
    write(disk / "blobs" / "34cd")
    spec, words = spec_and_words("512", *(("--corpora", corpora) if is_named else ()))
    inside = str(corpora) if is_named else "/data-preprocessing"
    container = Container(spec)
    for name in ("plain/unified", "whole/unified", "part/unified", "roberta-base"):
        assert same_files(container, f"{inside}/{name}", corpora / name)
    assert words == (["--corpora", str(corpora)] if is_named else [])


@pytest.mark.parametrize("kept", ["plain", "link"])
def test_a_tokenizer(home: Path, tmp_path: Path, kept: str) -> None:
    write(tmp_path / "blobs" / "1")
    link(tmp_path / "12ab" / "vocab.json", "../blobs/1")
    folder = tmp_path / "12ab" if kept == "plain" else link(tmp_path / "mine", "12ab")
    spec, words = spec_and_words("512", "--tokenizer", f"../{folder.name}")
    assert words == ["--tokenizer", str(folder)], "whose name goes into the manifest"
    assert same_files(Container(spec), str(folder), folder) == {"vocab.json"}


def test_tokenizers_that_are_no_folders(home: Path, tmp_path: Path) -> None:
    (Path() / "train").mkdir()
    for name in ("train", "roberta-large", "me/mine"):
        spec, words = spec_and_words("512", "--tokenizer", name)
        assert words == ["--tokenizer", name]
        assert len(spec.mounts) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["wiki", "--source", "/nowhere"], "--source /nowhere: no such folder"),
        (["wiki", "--source", ""], "--source: expected a folder, found nothing"),
        (
            ["wiki", "--source", "a", "--source", "b"],
            "--source: expected one folder for a container, found several",
        ),
        (["wiki", "--source", "data-preprocessing/preprocess_data_512.py"], "preprocess_data_512.py: no such folder"),
        (["512", "--corpora", "/nowhere"], "--corpora /nowhere: no such folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_folders_that_cannot_be_mounted(home: Path, words: list[str], said: str) -> None:
    with pytest.raises(UserError) as info:
        spec_and_words(*words)
    assert said in str(info.value)


def test_links_between_folders_of_data_preprocessing(home: Path) -> None:
    write(home / "stories" / "a")
    link(home / "mine" / "a", "../stories/a")
    link(home / "mine" / "more", "../stories")
    spec, _ = spec_and_words("wiki", "--source", home / "mine")
    assert same_files(Container(spec), "/data-preprocessing/mine", home / "mine") == {"a", "more/a"}
    assert [mount.target for mount in spec.mounts] == ["/data-preprocessing", "/code"], "as they are there already"


def test_on_another_machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nystromformer.container.mounts.PROJECT", home.parent)
    place = Place(is_here=False, remote_root="/there/project")
    words = ("--corpora", "/far/corpora", "--tokenizer", "/far/mine", "--out", "data-preprocessing/rows")
    spec = preprocess_spec("512", ScriptFlags(words), LaunchOptions(code="image"), place)
    assert spec.mounts == (
        Mount("/there/project/data-preprocessing", "/data-preprocessing"),
        Mount("/far/corpora", "/far/corpora", True),
        Mount("/far/mine", "/far/mine", True),
    )
    assert (spec.argv[-1], spec.to_make) == ("/data-preprocessing/rows", None)
    spec = preprocess_spec("wiki", ScriptFlags(("--source", "texts")), LaunchOptions(code="image"), place)
    assert spec.mounts[1:] == (Mount("/there/project/texts", "/there/project/texts", True),)
    assert spec.argv[-1] == "/there/project/texts"
