"""What is to be said of a disturbed run: whether it ended well, and if not, how badly.

A run may end in three good ways: with the results of an undisturbed one (`identical`; `fallback` where it says that it
passed over what is damaged), or with status 2 and one message that names the file (`clear error`), after which what it
found is as it was, and the same command gives the undisturbed results once the damage is taken back. Where no checksum
can exist, because the content is the user's own to choose (config.json, raw text, labelled examples), another valid
content is another wish, and a run that does as it says is `legitimate`. A damaged result that a finished run did not
look at and left as it was is `untouched`, unless the project promises to mend or to refuse it.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from campaign.commands import Ended
from campaign.results import SET_ASIDE, is_result
from campaign.trees import Tree

GOOD = ("identical", "clear error", "fallback", "legitimate", "untouched")
BAD = ("silent", "traceback", "hang", "lost", "unclear")
KINDS = (*GOOD, *BAD)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|^thread '.*' panicked|terminate called", re.MULTILINE)
_SAID = re.compile(
    r"damaged|going back|set aside|passed over|skipped|skipping|left out|made again|written again|not a checkpoint|"
    r"cannot be read|warning",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Verdict:
    """One of `KINDS`, and a sentence on why."""

    kind: str
    why: str = ""

    @property
    def good(self) -> bool:
        return self.kind in GOOD


@dataclass(frozen=True)
class Disturbance:
    """What was done to a run.

    path: the damaged file, relative to the folder; None: none is.
    names: words of which an error has to say one.
    edited: whether it is another valid wish for all that can be known.
    cut: whether the file is shorter than it was, or no file.
    """

    what: str
    path: str | None = None
    names: tuple[str, ...] = ()
    edited: bool = False
    cut: bool = False


@dataclass(frozen=True)
class Undisturbed:
    """What the same commands do when nothing disturbs them: the folder before and after, and its results' digests."""

    before: Tree
    after: Tree
    expected: Mapping[str, str]


def judge(
    disturbance: Disturbance,
    ended: Ended,
    before: Tree,
    after: Tree,
    got: Mapping[str, str],
    reference: Undisturbed,
    fell: bool = False,
) -> Verdict:
    """The verdict on a run.

    Args:
        before: the folder when the run began, with the damage in it.
        after, got: the folder when the run was over, and its results' digests.
        fell: whether the newest step among the checkpoints that are whole is an earlier one than it was.
    """
    crashed = crash(ended, (0, 2))
    if crashed:
        return crashed
    if ended.status != 0 and fell:
        return Verdict("lost", f"status {ended.status}: steps that had been saved")
    gone = lost(disturbance, before, after, got, reference)
    if gone:
        return Verdict("lost", f"status {ended.status}: {', '.join(gone)}")
    if ended.status == 2:
        return _error(disturbance, ended)
    differing = differences(disturbance, got, reference)
    left = differing == [disturbance.path] and after.get(differing[0]) == before.get(differing[0])
    untouched = left and not is_promised(disturbance, before)
    if not differing or untouched:
        told = [line for line in ended.text.splitlines() if disturbance.path and _mentions(disturbance, line)]
        good = "untouched" if untouched else "identical"
        return Verdict("fallback" if any(map(_SAID.search, told)) else good)
    if disturbance.edited:
        return Verdict("legitimate")
    return Verdict("silent", f"other results: {', '.join(differing)}")


def crash(ended: Ended, statuses: Collection[int]) -> Verdict | None:
    """What is to be said of a command that hung, crashed or ended with none of the statuses; None of others."""
    if ended.hung:
        return Verdict("hang", f"at work after {ended.seconds:.0f} seconds")
    if _TRACEBACK.search(ended.text) or ended.status not in statuses:
        return Verdict("traceback", f"status {ended.status}: {_last_line(ended.text)}")
    return None


def lost(
    disturbance: Disturbance, before: Tree, after: Tree, got: Mapping[str, str], reference: Undisturbed
) -> list[str]:
    """What was there and is gone, or is something else now, though an undisturbed run leaves it as it is.

    What moved to another name is not lost, nor is what a run made again as it was.
    """
    kept = set(after.values())
    gone = []
    for path, kind in before.items():
        same = after.get(path) == kind or (kind.startswith("file:") and kind in kept)
        moved = any(
            other.startswith((f"{path}.damaged", f"{path}.other-run")) and after[other] == kind for other in after
        )
        made_again = path in got and got[path] == reference.expected.get(path)
        usual = path in reference.before and reference.after.get(path) != reference.before[path]
        # Of other text another corpus is made; weights stay all the same.
        wished = disturbance.edited and got and path in reference.expected and not path.endswith((".cp", ".model"))
        nothing = kind == f"file:{_EMPTY}"
        if not (same or moved or made_again or usual or wished or nothing or not is_result(path)):
            gone.append(path)
    return gone


def is_promised(disturbance: Disturbance, before: Tree) -> bool:
    """Whether the project promises that a finished run mends or refuses the damaged result.

    A finished pretraining looks for weights that were cut short; other damage is seen when they are read.
    """
    path = Path(disturbance.path or "")
    if path.suffix == ".model":
        return disturbance.cut and str(path.with_suffix(".cp")) in before
    return path.name in SEALED or "predictions" in path.parts


def differences(disturbance: Disturbance, got: Mapping[str, str], reference: Undisturbed) -> list[str]:
    """Results that are not an undisturbed run's."""
    return [
        path
        for path in sorted({*got, *reference.expected})
        if got.get(path) != reference.expected.get(path)
        and not (path == disturbance.path and Path(path).name == "log.jsonl")
        and not (disturbance.path is not None and path.startswith(f"{disturbance.path}/"))
    ]


def condemned(before: Tree, after: Tree) -> list[str]:
    """Files that were set aside with nothing wrong in them: after a passing fault, all that were."""
    contents = {kind for kind in before.values() if kind.startswith("file:")}
    return [
        path
        for path, kind in after.items()
        if path not in before and kind in contents and any(each in Path(path).name for each in SET_ASIDE)
    ]


def _error(disturbance: Disturbance, ended: Ended) -> Verdict:
    lines = [line for line in ended.stderr.splitlines() if re.search(r"\berror: ", line, re.IGNORECASE)]
    if len(lines) != 1:
        return Verdict("unclear", f"{len(lines)} lines begin with `error:` ({_last_line(ended.text)})")
    if re.search(r": None\b", lines[0]):
        return Verdict("unclear", f"gives no reason: {lines[0][:300]}")
    if not _mentions(disturbance, _message(ended.stderr)):
        return Verdict("unclear", f"says nothing of {' or '.join(disturbance.names)}: {lines[0][:300]}")
    return Verdict("clear error", lines[0])


def _message(stderr: str) -> str:
    """The error's line, and those that go on from it: what stands before it are warnings, or another command's."""
    lines = stderr.splitlines()
    first = next(place for place, line in enumerate(lines) if re.search(r"\berror: ", line, re.IGNORECASE))
    return "\n".join(lines[first:])


def _mentions(disturbance: Disturbance, text: str) -> bool:
    """Whether a text has one of the names, and not as a part of another word."""
    return not disturbance.names or any(
        re.search(rf"(?<![\w-]){re.escape(name)}" + r"(?![\w-])" * name[-1].isalnum(), text)
        for name in disturbance.names
    )


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"


SEALED = ("result.json", "validation.json", "baselines.json")
_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""SHA-256 of nothing: an empty file has nothing to lose."""
