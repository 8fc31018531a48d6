"""The moments at which a campaign strikes: a folder as a user has it, the command that comes next, what it makes."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from campaign import world
from campaign.commands import Command
from campaign.damages import dies_after
from campaign.files import Tree, copy, look, remove


@dataclass(frozen=True)
class Scene:
    """A moment in the life of an experiment or a dataset.

    commands: what the user runs next, one after the other.
    needs: what of the world lies in the folder; `cleared` of it is not there yet.
    outputs: where the results are.
    stopped_at: the file after whose writing an earlier attempt was killed, so that half of the work is done.
    first: what the user ran before.
    edited: what a user writes or edits, without a checksum: another content of it is another wish.
    """

    name: str
    commands: tuple[Command, ...]
    needs: tuple[str, ...]
    outputs: tuple[str, ...]
    cleared: tuple[str, ...] = ()
    stopped_at: str | None = None
    first: tuple[Command, ...] = ()
    edited: tuple[str, ...] = ()

    def is_output(self, path: str) -> bool:
        """Whether a path is a result, or a finished part of one."""
        return _is_below(path, (*self.outputs, *(f"{each}.parts" for each in self.outputs)))

    def is_edited(self, path: str) -> bool:
        """Whether a path's content is the user's to choose, and nothing in the file vouches for it."""
        for_others = path.endswith("tokenizer_config.json")  # for other programs: this one does not read it
        return for_others or (_is_below(path, self.edited) and not path.endswith((".cp", *SEALED)))


@dataclass(frozen=True)
class Prepared:
    """A scene with its folder, and what its commands make of it when nothing disturbs them."""

    scene: Scene
    folder: Path
    expected: Tree
    seconds: float


SEALED = ("result.json", "validation.json", "baselines.json")
"""Results with a checksum."""


def _is_below(path: str, places: Iterable[str]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in places)


def prepare(scene: Scene, made: Path, folder: Path) -> Prepared:
    """Make a scene's folder from the world that was made, and run its commands twice elsewhere.

    Raises:
        SystemExit: two undisturbed runs differ, by which nothing can be judged.
    """
    before = folder / scene.name / "before"
    before.mkdir(parents=True)
    for name in scene.needs:
        (before / name).parent.mkdir(parents=True, exist_ok=True)
        source = made / name
        if source.is_dir():
            copy(source, before / name)
        else:
            (before / name).write_bytes(source.read_bytes())
    for name in scene.cleared:
        remove(before / name)
    for command in scene.first:
        world.must(command, before)
    if scene.stopped_at is not None:
        world.must(scene.commands[0], before, dies_after(scene.stopped_at), status=137)
    seconds, trees = 0.0, []
    for number in range(2):
        after = before.with_name(f"after{number}")
        copy(before, after)
        seconds = sum(world.must(command, after).seconds for command in scene.commands)
        trees.append({path: digest for path, digest in look(after).items() if scene.is_output(path)})
        remove(after)
    if differing := [path for path in {**trees[0], **trees[1]} if trees[0].get(path) != trees[1].get(path)]:
        raise SystemExit(f"the campaign cannot begin: two runs of {scene.name} differ in {', '.join(differing)}")
    return Prepared(scene, before, trees[0], seconds)


def scenes() -> list[Scene]:
    """All of them."""
    parts = (_pretraining, _finetuning, _preprocessing, _reports, _exchange, _use, _arena)
    return [scene for part in parts for scene in part()]


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


def _preprocessing() -> Iterable[Scene]:
    for name in (*world.CORPORA, "docstrings"):
        command, raw = (world.corpus_command(name),), f"raw/{name}"
        yield Scene(f"unify-{name}", command, (raw,), (f"corpora/{name}",), edited=(raw,))
        if name in ("wiki", "realnews"):
            stop = "00000.jsonl"
            yield Scene(f"unify-{name}-stopped", command, (raw,), (f"corpora/{name}",), (), stop, edited=(raw,))
    wiki = world.corpus_command("wiki")
    yield Scene("unify-wiki-finished", (wiki,), ("raw/wiki",), ("corpora/wiki",), first=(wiki,), edited=("raw/wiki",))
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
    config = ("model/config.json",)
    yield Scene("export", (world.EXPORT,), ("model",), exported, _TASK_FOLDERS, edited=config)
    yield Scene("import", (world.IMPORT,), ("model",), ("imported",), first=(world.EXPORT,), edited=("exported",))


def _use() -> Iterable[Scene]:
    for name, stop in (("predict", None), ("predict-stopped", "00000001")):
        needs, out = ("finished", "new.csv"), ("predictions.csv",)
        yield Scene(name, (world.PREDICT,), needs, out, (), stop, edited=("new.csv",))


def _arena() -> Iterable[Scene]:
    out = ("arena",)
    yield Scene("lra-listops", (world.LISTOPS,), (), out)
    yield Scene("lra-listops-stopped", (world.LISTOPS,), (), out, stopped_at="train-1000-2000")
    yield Scene("lra-release", (world.RELEASE,), ("release",), out, edited=("release",))
    yield Scene("lra-text", (world.REVIEWS,), ("imdb",), out)
