"""The moments at which a campaign strikes: a folder as a user has it, the command that comes next, what it makes."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from campaign import trees, world
from campaign.commands import Command
from campaign.faults import dies_after
from campaign.results import results
from campaign.verdicts import SEALED, Undisturbed


@dataclass(frozen=True)
class Scene:
    """A moment in the life of an experiment or a dataset.

    commands: what the user runs next, one after the other.
    needs: what of the world lies in the folder; `cleared` of it is not there yet.
    outputs: where the results are.
    stopped_at: the file after whose writing an earlier attempt was killed, so that half of the work is done.
    first: what the user ran before.
    edited: what a user writes or edits, without a checksum: another content of it is another wish.
    parts: the folder of finished parts, of a command that has one for itself.
    read: of each file that it reads more than once, the openings after which its content may not change any more.
    """

    name: str
    commands: tuple[Command, ...]
    needs: tuple[str, ...]
    outputs: tuple[str, ...]
    cleared: tuple[str, ...] = ()
    stopped_at: str | None = None
    first: tuple[Command, ...] = ()
    edited: tuple[str, ...] = ()
    parts: str | None = None
    read: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Prepared:
    """A scene with its folder, and what its commands make of it when nothing disturbs them."""

    scene: Scene
    folder: Path
    before: trees.Tree = field(repr=False)
    after: trees.Tree = field(repr=False)
    expected: dict[str, str] = field(repr=False)
    seconds: float

    @property
    def undisturbed(self) -> Undisturbed:
        return Undisturbed(self.before, self.after, self.expected)

    @property
    def done(self) -> Path:
        """The folder after an undisturbed run."""
        return self.folder.with_name("after0")

    @property
    def is_preprocessing(self) -> bool:
        """Whether the results can be made from what the folder holds beside them."""
        return self.scene.name.startswith(("unify", "rows"))

    @cached_property
    def targets(self) -> list[str]:
        """Files of the folder that can be damaged."""
        return [path for path, kind in self.before.items() if kind.startswith("file:") and not path.endswith("lock")]

    def is_edited(self, path: str) -> bool:
        """Whether a path's content is the user's to choose, and nothing in the file vouches for it."""
        return self.is_users(path) and not path.endswith((".cp", *SEALED))

    def is_users(self, path: str) -> bool:
        """Whether a path is the user's: to edit, or at least to remove."""
        for_others = path.endswith("tokenizer_config.json")  # for other programs: this one does not read it
        return for_others or any(path == each or path.startswith(f"{each}/") for each in self.scene.edited)


def scenes() -> list[Scene]:
    """All of them."""
    return [
        *_pretraining(),
        *_finetuning(),
        *_stage_one(),
        *_stage_two(),
        *_reports(),
        *_exchange(),
        *_prediction(),
        *_arena(),
    ]


def prepare(scene: Scene, made: Path, folder: Path) -> Prepared:
    """Make a scene's folder from the world that was made, and run its commands twice elsewhere.

    Raises:
        SystemExit: two undisturbed runs differ, by which nothing can be judged.
    """
    stage = folder / scene.name
    stage.mkdir(parents=True)
    before = stage / "before"
    before.mkdir()
    for name in scene.needs:
        (before / name).parent.mkdir(parents=True, exist_ok=True)
        source = made / name
        if source.is_dir():
            trees.copy(source, before / name)
        else:
            (before / name).write_bytes(source.read_bytes())
    for name in scene.cleared:
        trees.remove(before / name)
    for command in scene.first:
        world.must(command, before)
    if scene.stopped_at is not None:
        world.must(scene.commands[0], before, dies_after(scene.stopped_at), status=137)
    seconds, made_twice = 0.0, []
    for number in range(2):
        after = stage / f"after{number}"
        trees.copy(before, after)
        seconds = sum(world.must(command, after).seconds for command in scene.commands)
        made_twice.append(results(after, scene.outputs))
    one, other = made_twice
    if one != other:
        differing = [path for path in {**one, **other} if one.get(path) != other.get(path)]
        raise SystemExit(f"the campaign cannot begin: two runs of {scene.name} differ in {', '.join(differing)}")
    return Prepared(scene, before, trees.listing(before), trees.listing(stage / "after1"), one, seconds)


NEW, EARLIER = "export-new", "export-earlier"
"""Scenes of exports that may replace nothing, of the last checkpoint and of the one before."""
_TASK_FOLDERS = tuple(f"model/model/{name}" for name in ("documents", "glue", "imdb", "wikihop"))
_SCORES = "model/model/validation.json"


def _pretraining() -> Iterable[Scene]:
    needs, out, edited = ("model", "dataset"), ("model/model", "model/config.json"), ("model/config.json",)
    tuned = (*_TASK_FOLDERS, _SCORES)
    run = (world.PRETRAIN,)
    yield Scene("pretrain", run, needs, out, cleared=("model/model",), edited=edited)
    yield Scene("pretrain-stopped", run, needs, out, ("model/model",), "cp-0001-step-00000005.cp", edited=edited)
    yield Scene("pretrain-killed-at-the-end", run, needs, out, ("model/model",), "cp-0001.cp", edited=edited)
    yield Scene("pretrain-finished", run, needs, out, tuned, edited=edited)
    yield Scene("validate", (world.VALIDATE,), needs, out, tuned, edited=edited)
    command = Command(world.PRETRAIN.script, ("--model", "next", *world.PRETRAIN.flags[2:]))
    yield Scene("pretrain-from", (command,), ("next", "dataset"), ("next",), edited=("next/config.json",))


def _finetuning() -> Iterable[Scene]:
    for name, command, stop in (
        ("glue", world.GLUE, "cp-0001-step-00000004.cp"),
        ("imdb", world.IMDB, "cp-0001-step-00000003.cp"),
        ("documents", world.DOCUMENTS, "cp-0001-step-00000004.cp"),
        ("wikihop", world.WIKIHOP, "cp-0000.cp"),
    ):
        others = tuple(folder for folder in _TASK_FOLDERS if not folder.endswith(name))
        needs, out = ("model", name), (f"model/model/{name}",)
        edited = ("model/config.json", *((name,) if name != "imdb" else ()))
        new = (*_TASK_FOLDERS, _SCORES)
        yield Scene(name, (command,), needs, out, new, edited=edited)
        yield Scene(f"{name}-stopped", (command,), needs, out, new, stop, edited=edited)
        yield Scene(f"{name}-finished", (command,), needs, out, (*others, _SCORES), edited=edited)


def _stage_one() -> Iterable[Scene]:
    for name in (*world.CORPORA, "docstrings"):
        command, raw = (world.corpus_command(name),), f"raw/{name}"
        yield Scene(f"unify-{name}", command, (raw,), (f"corpora/{name}",), edited=(raw,))
        if name in ("wiki", "realnews"):
            stop = "00000.jsonl"
            yield Scene(f"unify-{name}-stopped", command, (raw,), (f"corpora/{name}",), (), stop, edited=(raw,))
    wiki = world.corpus_command("wiki")
    yield Scene("unify-wiki-finished", (wiki,), ("raw/wiki",), ("corpora/wiki",), first=(wiki,), edited=("raw/wiki",))


def _stage_two() -> Iterable[Scene]:
    needs, out = tuple(f"corpora/{name}" for name in ("wiki", "stories", "docstrings")), ("dataset",)
    command = world.rows_command()
    yield Scene("rows", (command,), needs, out)
    yield Scene("rows-stopped", (command,), needs, out, stopped_at="stories-00000.json")
    yield Scene("rows-finished", (command,), (*needs, "dataset"), out)
    parts = [world.rows_command("--array_index", str(number), "--array_size", "2") for number in range(2)]
    yield Scene("rows-in-parts", (parts[1], command), needs, out, first=(parts[0],))
    given = world.rows_command(tokenizer="tokenizer")
    yield Scene("rows-tokenizer", (given,), (*needs, "tokenizer"), out, edited=("tokenizer",))


def _reports() -> Iterable[Scene]:
    # What they read is written for people to read and edit; a report shows what it says.
    edited = ("model/config.json", "model/model")
    yield Scene("table2", (world.TABLE,), ("model",), ("table2.md", "table2.json"), edited=edited)
    yield Scene("curves", (world.CURVES,), ("model",), ("curves.png",), edited=edited)


def _exchange() -> Iterable[Scene]:
    # The card, README.md, quotes the log and the scores, or says that it cannot read them.
    exported = tuple(f"exported/{name}" for name in ("model.safetensors", "config.json", "tokenizer.json"))
    edited = ("model/config.json",)
    for name, command in ((NEW, world.EXPORT_NEW), (EARLIER, world.EXPORT_EARLIER)):
        yield Scene(name, (command,), ("model",), exported, _TASK_FOLDERS, edited=edited)
    yield Scene("export", (world.EXPORT,), ("model",), exported, _TASK_FOLDERS, edited=edited)
    yield Scene("import", (world.IMPORT,), ("model",), ("imported",), first=(world.EXPORT,), edited=("exported",))


def _prediction() -> Iterable[Scene]:
    needs, out, parts = ("finished", "new.csv"), ("predictions.csv",), "predictions.csv.parts"
    for name, stop in (("predict", None), ("predict-stopped", "00000001")):
        yield Scene(
            name, (world.PREDICT,), needs, out, (), stop, edited=("new.csv",), parts=parts, read=(("new.csv", 2),)
        )


def _arena() -> Iterable[Scene]:
    out, parts = ("arena",), "arena/parts"
    yield Scene("lra-listops", (world.LISTOPS,), (), out, parts=parts)
    yield Scene("lra-listops-stopped", (world.LISTOPS,), (), out, stopped_at="train-1000-2000", parts=parts)
    yield Scene("lra-release", (world.RELEASE,), ("release",), out, edited=("release",), parts=parts)
    yield Scene("lra-text", (world.REVIEWS,), ("imdb",), out, parts=parts)
