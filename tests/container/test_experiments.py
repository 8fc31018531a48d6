"""Which folders, program and flags each script gets in its container."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from finetuning import write_sst2
from small import small_data

from nystromformer.container import per_gpu
from nystromformer.container.command_line import ScriptFlags
from nystromformer.container.experiments import experiment_spec, find_experiment
from nystromformer.container.mounts import Place
from nystromformer.container.options import LaunchOptions, Mount
from nystromformer.container.scripts import CODE_FOLDER, SCRIPTS
from nystromformer.container.spec import RunSpec
from nystromformer.errors import UserError
from nystromformer.files.paths import EXPERIMENTS, PROJECT

CPU = LaunchOptions(gpus="none")
HERE = Place(is_here=True, user="1000:1000")
ELSEWHERE = Place(is_here=False)
CODE = Mount(str(CODE_FOLDER), "/code", True)


def write_config(folder: Path, **top: Any) -> Path:
    """An experiment; `top` are keys outside the sections."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(small_data() | top))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_config(tmp_path / "experiment")


def flags(*words: str) -> ScriptFlags:
    return ScriptFlags(words)


def spec(command: str, folder: Path, *words: str, options: LaunchOptions = CPU, place: Place = HERE) -> RunSpec:
    return experiment_spec(SCRIPTS[command], folder, flags(*words), options, place)


def others(made: RunSpec) -> list[Mount]:
    """The mounts beside those of the experiment and the code, which every container has."""
    assert made.mounts[0].target == "/model"
    assert not made.mounts[0].read_only
    assert CODE in made.mounts
    return [mount for mount in made.mounts[1:] if mount != CODE]


def test_pretraining(folder: Path, dataset_folder: Path) -> None:
    options = LaunchOptions(gpus="none", name="mine")
    words = ("--workers", "2", "--set", "model.dropout_prob=0")
    made = spec("pretrain", folder, "--dataset", str(dataset_folder), *words, options=options)
    assert made == RunSpec(
        name="mine",
        options=options,
        argv=("python3", "/code/run_pretrain.py", *words),
        output="/model/mine.txt",
        mounts=(Mount(str(folder), "/model"), CODE, Mount(str(dataset_folder), "/dataset", True)),
        command="pretrain",
        home=str(folder),
        user="1000:1000",
    )


@pytest.mark.parametrize(
    ("command", "file", "data"),
    [
        ("pretrain", "run_pretrain.py", "data-preprocessing/32-roberta:/dataset"),
        ("validate", "run_validation.py", "data-preprocessing/32-roberta:/dataset"),
        ("glue", "run_glue.py", "glue:/glue"),
        ("imdb", "run_imdb.py", "data/imdb:/imdb"),
        ("wikihop", "run_wikihop.py", "wikihop:/wikihop"),
    ],
)
def test_the_authors_folders_where_nothing_else_is_named(folder: Path, command: str, file: str, data: str) -> None:
    made = spec(command, folder, place=ELSEWHERE)
    source, _, target = data.partition(":")
    assert others(made) == [Mount(str(PROJECT / source), target, True)]
    assert made.argv == ("python3", f"/code/{file}")
    assert made.output == f"/model/{command}.txt"
    assert made.name == f"experiment-{command}"
    assert (PROJECT / "code" / file).is_file()


def test_each_length_has_its_folder() -> None:
    """That of the run, not of the file."""
    for change, length in (((), 512), (("--set", "model.max_seq_len=1024"), 1024)):
        made = spec("pretrain", PROJECT / "nystrom-512", *change, place=ELSEWHERE)
        assert others(made) == [Mount(str(PROJECT / f"data-preprocessing/{length}-roberta"), "/dataset", True)]


def test_data_from_elsewhere(folder: Path, tmp_path: Path) -> None:
    """From the network, which only GLUE's are, and an archive; with a tokenizer."""
    made = spec("glue", folder, "--task", "MRPC", "--glue", "hub")
    assert (others(made), made.argv[2:]) == ([], ("--task", "MRPC", "--glue", "hub"))
    archive = tmp_path / "aclImdb_v1.tar.gz"
    archive.write_bytes(b"")
    (tmp_path / "roberta-base").mkdir()
    words = ("--imdb", str(archive), "--length", "512", "--tokenizer")
    made = spec("imdb", folder, *words, str(tmp_path / "roberta-base"))
    assert others(made) == [
        Mount(str(archive), "/imdb/aclImdb_v1.tar.gz", True),
        Mount(str(tmp_path / "roberta-base"), "/tokenizer", True),
    ]
    assert made.argv[2:] == ("--length", "512", "--imdb", "/imdb/aclImdb_v1.tar.gz", "--tokenizer", "/tokenizer")
    for wrong in (("--imdb", "hub"), (*words, str(tmp_path / "nowhere"))):
        with pytest.raises(UserError, match=f"{wrong[-1]}: no such folder"):
            spec("imdb", folder, *wrong)


def test_tables_are_mounted_one_by_one(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("reviews.csv", "more/reviews.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    columns = ("--text", "body", "--label", "stars")
    made = spec("classify", folder, "--train", "reviews.csv", *columns, "--test", str(tmp_path / "more/reviews.csv"))
    mounted = {"/tables/train/reviews.csv": "reviews.csv", "/tables/test/reviews.csv": "more/reviews.csv"}
    assert others(made) == [Mount(str(tmp_path / name), target, True) for target, name in mounted.items()]
    named = ("--train", "/tables/train/reviews.csv", "--test", "/tables/test/reviews.csv")
    assert made.argv == ("python3", "/code/run_classify.py", *columns, *named)
    # A share and a table of the hub are no files, and in a folder that is named the files are found by their names.
    options = replace(CPU, name="box")
    made = spec("classify", folder, "--train", "reviews.csv", *columns, "--task", "mine", options=options)
    assert made.name == "box"
    assert "--task mine" in " ".join(made.argv), "which the container's name is not"
    made = spec("classify", folder, "--train", "hub:a/b.c:train", *columns, "--validation", "0.2")
    assert (others(made), made.argv[2:4]) == ([], ("--train", "hub:a/b.c:train"))
    made = spec("classify", folder, "--train", "reviews.csv", *columns, "--documents", str(tmp_path))
    assert others(made) == [Mount(str(tmp_path), "/documents", True)]
    assert made.argv[2:4] == ("--train", "reviews.csv")
    (tmp_path / "texts" / "good").mkdir(parents=True)
    made = spec("classify", folder, "--train", "texts", *columns)
    assert others(made) == [Mount(str(tmp_path / "texts"), "/tables/train/texts", True)]
    with pytest.raises(UserError, match=r"--train nowhere.csv: no such file, here or in .*documents"):
        spec("classify", folder, "--train", "nowhere.csv", *columns)


def test_data_beside_the_config_come_with_it() -> None:
    made = spec("lra", EXPERIMENTS / "lra" / "listops", "--task", "listops", place=ELSEWHERE)
    assert others(made) == []
    assert made.argv == ("python3", "/code/run_lra.py", "--task", "listops")
    assert made.name == "listops-lra"


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("../data", "data", "/data"),
        ("../../data", "../data", "/data"),
        ("/dataset/", None, "/dataset"),
        ("/mnt/rows", "/mnt/rows", "/mnt/rows"),
    ],
)
def test_data_where_the_config_says(tmp_path: Path, name: str, source: str | None, target: str) -> None:
    folder = write_config(tmp_path / "experiment", data_folder=name)
    made = spec("pretrain", folder, place=ELSEWHERE)
    expected = (tmp_path / source).resolve() if source else PROJECT / "data-preprocessing/32-roberta"
    assert others(made) == [Mount(str(expected), target, True)]


def test_data_in_the_experiment_folder(tmp_path: Path, dataset_folder: Path) -> None:
    folder = write_config(tmp_path / "experiment", data_folder="data", glue_dataset_folder="/model/glue")
    with pytest.raises(UserError, match=r"data: no such folder\. Make it .*launch\.py preprocess 512 --length 32"):
        spec("pretrain", folder)
    write_sst2(folder / "glue")
    assert others(spec("glue", folder)) == []
    (folder / "data").symlink_to("../rows")
    (tmp_path / "rows").symlink_to(dataset_folder)
    assert others(spec("pretrain", folder)) == [Mount(str(dataset_folder), "/rows", True)], "where the link leads"
    (folder / "data").unlink()
    (folder / "kept").symlink_to(dataset_folder)
    (folder / "data").symlink_to("kept")
    assert others(spec("pretrain", folder)) == [Mount(str(dataset_folder), str(dataset_folder), True)], (
        "from link to link"
    )


@pytest.mark.parametrize("name", ["aclImdb_v1.tar.gz", "../reviews.tar.gz"])
def test_a_file_where_the_config_says(tmp_path: Path, name: str) -> None:
    folder = write_config(tmp_path / "experiment", imdb_dataset_folder=name)
    (folder / name).touch()
    made = spec("imdb", folder)
    assert others(made) == ([Mount(str(tmp_path / name[3:]), f"/{name[3:]}", True)] if name[:2] == ".." else [])
    assert made.argv == ("python3", "/code/run_imdb.py"), "which finds it there by config.json"


def test_a_flag_goes_before_the_config(tmp_path: Path, dataset_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_config(tmp_path / "experiment", data_folder="/mnt/rows")
    monkeypatch.chdir(dataset_folder.parent)
    made = spec("pretrain", folder, "--dataset", "nowhere", "--dataset", dataset_folder.name)
    assert others(made) == [Mount(str(dataset_folder), "/mnt/rows", True)], "where the script looks for it"
    assert "--dataset" not in made.argv


def test_links_and_parents_are_followed_as_this_machine_does(
    tmp_path: Path, dataset_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_config(tmp_path / "experiment")
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "link").symlink_to("deep/deeper")
    (tmp_path / "deep" / "rows").symlink_to(dataset_folder)
    (tmp_path / "deep" / "code").symlink_to(CODE_FOLDER)
    (tmp_path / "deep" / "tokenizer").mkdir()
    monkeypatch.chdir(tmp_path)
    options = LaunchOptions(gpus="none", code="link/../code")
    made = spec("pretrain", folder, "--dataset", "link/../rows", options=options)
    assert others(made) == [Mount(str(dataset_folder), "/dataset", True)]
    write_sst2(tmp_path / "deep" / "glue")
    made = spec("glue", folder, "--glue", "link/../glue", "--tokenizer", "link/../tokenizer")
    assert [mount.source for mount in others(made)] == [str(tmp_path / "deep" / name) for name in ("glue", "tokenizer")]


@pytest.mark.parametrize(
    ("from_cp", "target"),
    [
        ("../other/model/cp-0001.model", "/other/model/cp-0001.model"),
        ("{tmp_path}/other/model/cp-0001.model", "{tmp_path}/other/model/cp-0001.model"),
        ("/model/../other/model/cp-0001.model", "/other/model/cp-0001.model"),
    ],
    ids=["relative", "absolute", "from within"],
)
def test_another_models_checkpoint(tmp_path: Path, dataset_folder: Path, from_cp: str, target: str) -> None:
    folder = write_config(tmp_path / "experiment", from_cp=from_cp.format(tmp_path=tmp_path))
    words = ("--dataset", str(dataset_folder))
    assert len(others(spec("pretrain", folder, *words))) == 1, "a run that goes on does not need it"
    checkpoint = tmp_path / "other" / "model" / "cp-0001.model"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    made = Mount(str(checkpoint), target.format(tmp_path=tmp_path), True)
    assert made in others(spec("pretrain", folder, *words))
    assert made not in others(spec("validate", folder, *words)), "nobody reads it"
    (checkpoint.parents[1] / "config.json").touch()  # which describes the authors' checkpoints
    assert len(others(spec("pretrain", folder, *words))) == 3


def test_a_folder_to_begin_with(tmp_path: Path, dataset_folder: Path) -> None:
    folder = write_config(tmp_path / "experiment", from_cp="../bert")
    words = ("--dataset", str(dataset_folder))
    assert len(others(spec("pretrain", folder, *words))) == 1, "a run that goes on does not need it"
    (tmp_path / "bert").mkdir()
    assert Mount(str(tmp_path / "bert"), "/bert", True) in others(spec("pretrain", folder, *words))


def test_transactions_are_called_as_their_folder_here(folder: Path, tmp_path: Path) -> None:
    for name in ("drawn", "earlier"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
    made = spec("transactions", folder, "--data", str(tmp_path / "drawn"), "--from_run", str(tmp_path / "earlier"))
    assert others(made) == [
        Mount(str(tmp_path / "drawn"), "/dataset", True),
        Mount(str(tmp_path / "earlier"), "/tables/from_run/earlier", True),
    ]
    assert made.argv[2:] == ("--task", "drawn", "--from_run", "/tables/from_run/earlier")
    made = spec("transactions", folder, "--data", str(tmp_path / "drawn"), "--task", "mine")
    assert made.argv[2:] == ("--task", "mine")


def test_data_of_a_flag_have_no_place_in_the_experiment(tmp_path: Path) -> None:
    """Where an engine would make a folder for them, its own."""
    folder = write_config(tmp_path / "experiment", data_folder="data")
    (tmp_path / "listops").mkdir()
    (tmp_path / "listops" / "manifest.json").touch()
    made = spec("lra", folder, "--task", "listops", "--data", str(tmp_path / "listops"))
    assert others(made) == [Mount(str(tmp_path / "listops"), "/dataset", True)]
    assert made.argv[2:] == ("--task", "listops", "--data", "/dataset")


def test_links_within_the_folder(tmp_path: Path, dataset_folder: Path) -> None:
    folder = write_config(tmp_path / "experiment", from_cp="/model/cp-0001.model")
    words = ("--dataset", str(dataset_folder))
    (tmp_path / "elsewhere.model").touch()
    (folder / "cp-0001.model").symlink_to("../elsewhere.model")
    (folder / "kept").mkdir()
    (folder / "model").symlink_to("kept")
    dataset = Mount(str(dataset_folder), "/dataset", True)
    checkpoint = Mount(str(tmp_path / "elsewhere.model"), "/elsewhere.model", True)
    assert others(spec("pretrain", folder, *words)) == [dataset, checkpoint]
    (folder / "model").unlink()
    (folder / "model").symlink_to(folder / "kept")
    kept = Mount(str(folder / "kept"), str(folder / "kept"))
    made = others(spec("pretrain", folder, *words))
    assert made == [kept, dataset, checkpoint], "the name that the link has in the container, too"


@pytest.mark.parametrize(
    ("name", "link", "target"),
    [
        ("/model/model", "{tmp_path}/disk", "{tmp_path}/disk"),
        ("/model/model", "../disk", "/disk"),
        ("/model/deep/model", "../../disk", "/disk"),
        ("model", "../../../../../disk", "/disk"),
    ],
)
def test_checkpoints_on_another_disk(tmp_path: Path, name: str, link: str, target: str) -> None:
    folder = write_config(tmp_path / "a" / "b" / "c" / "experiment", model_checkpoints=name)
    place = folder / name.removeprefix("/model/")
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(link.format(tmp_path=tmp_path))
    place.resolve().mkdir(exist_ok=True)
    made = spec("glue", folder, "--glue", "hub")
    assert others(made) == [Mount(str(place.resolve()), target.format(tmp_path=tmp_path))], "and writable"


@pytest.mark.parametrize("name", ["/elsewhere", "../models", "/model/../x", "/modelx"])
def test_checkpoints_that_would_be_lost(tmp_path: Path, name: str) -> None:
    folder = write_config(tmp_path / "experiment", model_checkpoints=name)
    with pytest.raises(UserError, match=r"config\.json: model_checkpoints: .* not below /model"):
        spec("glue", folder, "--glue", "hub")


@pytest.mark.parametrize(
    ("command", "gpus", "device", "program"),
    [
        ("pretrain", "none", "", ("python3",)),
        ("pretrain", "0", "cuda", ("python3",)),
        ("pretrain", "0,1,3", "cuda", per_gpu.expecting(3)),
        ("pretrain", "0,1,3", "cpu", per_gpu.torchrun(3)),
        ("pretrain", "all", "cuda", ("python3", "-m", "nystromformer.container.per_gpu")),
        ("pretrain", "all", "cpu", ("python3",)),
        ("validate", "0,1", "cuda", ("python3",)),
        ("validate", "all", "cuda", ("python3",)),
    ],
)
def test_a_process_for_each_gpu(folder: Path, command: str, gpus: str, device: str, program: tuple[str, ...]) -> None:
    given = ("--device", "cpu") if device == "cpu" else ()
    made = spec(command, folder, *given, options=LaunchOptions(gpus=gpus), place=ELSEWHERE)
    assert made.argv == (*program, f"/code/{SCRIPTS[command].file}", *(("--device", device) if device else ()))
    assert made.gpus == ("none" if (gpus, device) == ("all", "cpu") else gpus), "of which none is used"


@pytest.mark.parametrize(
    ("name", "container"),
    [
        ("my run (2)", "my-run--2-"),
        ("größer", "gr--er"),
        ("_x", "x_x"),
        (".x", "x.x"),
        ("ñ", "x-"),
        ("a'b\"$c", "a-b--c"),
    ],
)
def test_names_of_folders(tmp_path: Path, name: str, container: str) -> None:
    made = spec("pretrain", write_config(tmp_path / name), place=ELSEWHERE)
    assert made.name == f"{container}-pretrain"
    assert made.mounts[0].source == made.home == str(tmp_path / name)


def test_on_another_machine(tmp_path: Path) -> None:
    """Nothing is looked for here but the config, and paths of this project are that machine's."""
    options = LaunchOptions(gpus="none", remote_root="/srv/nystromformer", code="elsewhere/code")
    place = Place(is_here=False, remote_root="/srv/nystromformer")
    made = spec("pretrain", PROJECT / "nystrom-512", options=options, place=place)
    assert made.mounts == (
        Mount("/srv/nystromformer/nystrom-512", "/model"),
        Mount(str(Path("elsewhere/code").absolute()).replace(str(PROJECT), "/srv/nystromformer"), "/code", True),
        Mount("/srv/nystromformer/data-preprocessing/512-roberta", "/dataset", True),
    )
    assert made.home == "/srv/nystromformer/nystrom-512"
    made = spec(
        "pretrain", PROJECT / "nystrom-512", "--dataset", str(PROJECT / "../rows"), options=options, place=place
    )
    assert made.mounts[-1].source == str(PROJECT.parent / "rows"), "outside the project, though written within it"
    outside = write_config(tmp_path / "experiment")
    made = spec("imdb", outside, "--imdb", "/data/imdb", options=options, place=place)
    assert [made.mounts[0].source, made.mounts[-1].source] == [str(outside), "/data/imdb"]


def test_a_dataset_that_does_not_do(folder: Path, dataset_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for data, change, said in (
        (
            tmp_path / "nowhere",
            "model.dropout_prob=0",
            "no such folder. Make it .*preprocess 512 --length 32.*--dataset",
        ),
        (tmp_path / "file", "model.dropout_prob=0", "file"),
        (dataset_folder, "model.vocab_size=299", "vocab_size.*299"),
        (dataset_folder, "model.max_seq_len=16", "max_seq_len.*16"),
    ):
        with pytest.raises(UserError, match=said):
            spec("pretrain", folder, "--dataset", str(data), "--set", change)


@pytest.mark.parametrize("name", ["glue", "imdb", "wikihop"])
def test_a_data_folder_with_nothing_but_its_readme(folder: Path, tmp_path: Path, name: str) -> None:
    data, folder_of = tmp_path / "data", SCRIPTS[name].data.folder
    data.mkdir()
    says = f"no data in it. {folder_of}/README.md says which files go there.*--{name}"
    for _ in range(2):
        with pytest.raises(UserError, match=says):
            spec(name, folder, f"--{name}", str(data))
        (data / "README.md").touch()
    with pytest.raises(UserError, match=f"no such folder. {folder_of}/README.md says"):
        spec(name, folder, f"--{name}", str(tmp_path / "nowhere"))


def test_finding_experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_experiment("nystrom-512") == PROJECT / "nystrom-512", "from anywhere"
    assert find_experiment("nystrom-tiny-conv") == EXPERIMENTS / "nystrom-tiny-conv"
    (tmp_path / "nystrom-512").mkdir()
    assert find_experiment("nystrom-512/") == tmp_path / "nystrom-512"
    (tmp_path / "link").symlink_to("nystrom-512")
    assert find_experiment("link") == tmp_path / "nystrom-512"
    (tmp_path / "file").touch()
    for name in ("nowhere", "file"):
        with pytest.raises(UserError, match=rf"^{name}: no such folder.*nystrom-512"):
            find_experiment(name)
