"""The campaign's own judgement: planted faults are called by their names, and good endings are not called faults."""

import json
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from campaign.commands import Command, Ended, Running, run
from campaign.damages import NotOfThisKind, any_damage, content_damage
from campaign.damaging import names_of
from campaign.faults import Mark, fails_to_open
from campaign.killing import is_before_the_script
from campaign.pool import Failure, in_forks
from campaign.scenes import Prepared, Scene, prepare, scenes
from campaign.schema import fits, schema_of_configs
from campaign.tally import add, count, failures, is_good, table
from campaign.tokenizer_files import is_consistent
from campaign.trees import listing
from campaign.trial import Outcome, Sandbox
from campaign.verdicts import Disturbance, Undisturbed, Verdict, condemned, judge
from processes import processes_of, wait_for

from nystromformer.training.archive import write_checkpoint

WEIGHTS, OTHER = "model/cp-0000.model", "model/cp-0001.model"
BEFORE = {"model": "folder", WEIGHTS: "file:aa", "model/cp-0000-step-1.cp": "file:bb", "config.json": "file:cc"}
AFTER = {"model": "folder", WEIGHTS: "file:aa", OTHER: "file:dd", "config.json": "file:cc"}
EXPECTED = {WEIGHTS: "a", OTHER: "d"}
REFERENCE = Undisturbed(BEFORE, AFTER, EXPECTED)
DAMAGED = Disturbance("cp-0000.model: a bit flipped", WEIGHTS, names_of(WEIGHTS))
HURT = BEFORE | {WEIGHTS: "file:ee"}
WELL = Ended(0, "done\n", "", 0.1)
REFUSED = Ended(2, "", "error: model/cp-0000.model: damaged\n", 0.1)


LEFT = AFTER | {WEIGHTS: "file:ee"}
UNREAD = EXPECTED | {WEIGHTS: "unreadable"}
OTHERS = {WEIGHTS: "a", OTHER: "x"}
SAYS = replace(WELL, stderr="cp-0000.model: damaged; going back to the checkpoint before it\n")
WISH = replace(DAMAGED, edited=True, path="config.json")
NO_END = Ended(None, "", "", 30)


@pytest.mark.parametrize(
    ("kind", "ended", "after", "got", "disturbance"),
    [
        ("identical", WELL, AFTER, EXPECTED, DAMAGED),
        ("identical", WELL, AFTER | {f"{WEIGHTS}.damaged": "file:ee"}, EXPECTED, DAMAGED),
        ("untouched", WELL, LEFT, UNREAD, DAMAGED),
        ("fallback", SAYS, LEFT, UNREAD, DAMAGED),
        ("legitimate", WELL, AFTER | {OTHER: "file:xx"}, OTHERS, WISH),
        ("silent", WELL, AFTER | {OTHER: "file:xx"}, OTHERS, DAMAGED),
        ("silent", WELL, AFTER, {WEIGHTS: "a"}, DAMAGED),
        ("clear error", REFUSED, HURT, {}, DAMAGED),
        ("hang", NO_END, HURT, {}, DAMAGED),
        *(
            ("lost", ended, after, EXPECTED | {WEIGHTS: "x"}, DAMAGED)
            for ended in (WELL, REFUSED)
            for after in (
                {path: kind for path, kind in AFTER.items() if path != WEIGHTS},
                AFTER | {"config.json": "file:ff"},
                AFTER | {WEIGHTS: "folder"},
            )
        ),
    ],
)
def test_how_a_run_ended(
    kind: str, ended: Ended, after: dict[str, str], got: dict[str, str], disturbance: Disturbance
) -> None:
    before = BEFORE if disturbance is WISH else HURT
    assert judge(disturbance, ended, before, after, got, REFERENCE).kind == kind


@pytest.mark.parametrize(
    ("kind", "status", "stderr"),
    [
        ("traceback", 1, 'Traceback (most recent call last):\n  File "x.py", line 1\nKeyError: 3\n'),
        ("traceback", 2, "error: a.json: x\nTraceback (most recent call last):\nKeyError\n"),
        ("traceback", -signal.SIGSEGV, ""),
        ("traceback", 1, "something went wrong\n"),
        ("traceback", -signal.SIGABRT, "terminate called after throwing an instance of 'std::bad_alloc'\n"),
        ("unclear", 2, "error: something is wrong\n"),
        ("unclear", 2, ""),
        ("unclear", 2, "error: cp-0000.model: damaged\n" * 2),
        # It names the file in its own lines, or a folder as a path.
        ("unclear", 2, "reading cp-0000.model\nerror: something is wrong\n"),
        ("unclear", 2, "error: the model is wrong\n"),
        ("unclear", 2, "error: other-cp-0000.model is wrong\n"),
        ("clear error", 2, "error: model/: wrong\n"),
        ("clear error", 2, "error: something is wrong:\n  cp-0000.model\n"),
    ],
)
def test_what_an_error_says(kind: str, status: int, stderr: str) -> None:
    assert judge(DAMAGED, Ended(status, "", stderr, 0.1), HURT, HURT, {}, REFERENCE).kind == kind


@pytest.mark.parametrize(
    ("path", "cut", "kind"),
    [
        ("run/predictions/dev.tsv", False, "silent"),
        ("run/result.json", False, "silent"),
        ("model/validation.json", False, "silent"),
        ("run/baselines.json", False, "silent"),
        (WEIGHTS, True, "silent"),
        (WEIGHTS, False, "untouched"),
        ("dataset/tokens.bin", False, "untouched"),
    ],
)
def test_a_damaged_result_that_is_left_alone_is_not_identical(path: str, cut: bool, kind: str) -> None:
    """Weights with their checkpoint are made again where they were cut short, and refused by who reads them."""
    before = {path: "file:aa", "model/cp-0000.cp": "file:cp"}
    hurt, reference = before | {path: "file:ee"}, Undisturbed(before, before, {path: "a"})
    disturbance = Disturbance("damaged", path, names_of(path), cut=cut)
    assert judge(disturbance, WELL, hurt, hurt, {path: "x"}, reference).kind == kind
    assert judge(disturbance, WELL, hurt, before, {path: "a"}, reference).kind == "identical"


def test_what_is_set_aside_healthy_is_condemned() -> None:
    name = "model/cp-0000-step-1.cp"
    for suffix in (".damaged", ".damaged-2", ".other-run", ".renamed"):
        after = {path: kind for path, kind in BEFORE.items() if path != name} | {name + suffix: BEFORE[name]}
        assert condemned(BEFORE, after) == [name + suffix]
        assert condemned(BEFORE | {name: "file:hurt"}, after) == []
    assert condemned(BEFORE, AFTER) == []


def test_saved_steps_stay_behind_an_error(small: Prepared, tmp_path: Path) -> None:
    """Training from scratch gives the same weights, too: it is the checkpoints that tell."""
    sandbox = Sandbox(small, tmp_path / "trial")
    steps = [sandbox.folder / name for name in ("cp-0000.cp", "cp-0001-step-00000004.cp", "cp-0001-step-00000005.cp")]
    for path in steps:
        write_checkpoint({"format": 2}, path)
    before = sandbox.look()
    steps[1].unlink()
    assert not sandbox.fell()
    steps[2].write_bytes(steps[2].read_bytes()[:-9])
    assert sandbox.fell()
    assert sandbox.judge(Disturbance(""), REFUSED, before).kind == "lost"
    write_checkpoint({"format": 2}, sandbox.folder / "cp-0001.cp")
    assert not sandbox.fell()


def test_a_fault_leaves_a_mark_when_it_comes_to_pass(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    for name, expected in (("one", True), ("other", False)):
        script.write_text(f"import os\nfor name in ('x', '{name}'): open(name, 'a').close()")
        (tmp_path / "folder").mkdir(exist_ok=True)
        mark = Mark()
        run(Command(str(script), ()), tmp_path / "folder", hook=fails_to_open(tmp_path / "folder/one", "EIO", mark))
        assert bool(mark) is expected


@pytest.mark.parametrize("kind", ["silent", "traceback", "hang", "lost", "unclear"])
def test_only_silence_is_forgiven_where_size_and_time_stayed(kind: str) -> None:
    outcome = replace(_outcome(1, kind), row="damage, same size and time")
    assert is_good(count([outcome])) == (kind == "silent")
    assert (failures([outcome]) == []) == (kind == "silent")


def test_what_the_schema_does_not_allow_is_to_be_refused() -> None:
    config: dict[str, object] = {"model": {}, "pretraining_setting": {}, "gpu_setting": {}}
    schema = schema_of_configs()
    for section, key, good, bad in (
        ("model", "dropout_prob", [0, 0.5], [0.999, float("nan"), True, "0.1", None]),
        ("model", "num_layers", [1, 2.0], [0, 1.5, 10**30, float("inf")]),
        ("model", "conv_kernel_size", [None, 3], [2, -1]),
        ("model", "mixed_precision", [True, "bf16"], [1, "x", None]),
        ("model", "attn_type", ["nystrom"], ["x", [1]]),
        ("pretraining_setting", "objectives", [["mlm"], ["mlm", "sop"]], [["sop"], [], ["mlm", "mlm"]]),
        ("pretraining_setting", "max_grad_norm", [1, None], [1e-300, float("inf")]),
    ):
        rule = schema["$defs"][{"model": "ModelConfig"}.get(section, "PretrainingConfig")]["properties"][key]
        for value in good:
            assert fits(value, rule, schema), (key, value)
        for value in bad:
            assert not fits(value, rule, schema), (key, value)
    assert not fits(config | {"x": 1}, schema)


def test_a_tokenizers_files_belong_together(tmp_path: Path) -> None:
    letters = [chr(256 + number) for number in range(256)]
    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *letters, letters[0] + letters[1]]
    vocabulary = {word: number for number, word in enumerate(words)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{letters[0]} {letters[1]}\n")
    assert is_consistent(tmp_path)
    for merges in ("", f"{letters[0]} {letters[2]}\n", f"{letters[0]}{letters[1]}\n"):
        (tmp_path / "merges.txt").write_text(merges)
        assert not is_consistent(tmp_path), merges
    (tmp_path / "vocab.json").write_text("[" * 100_000 + "]" * 100_000)  # deeper than Python's reader goes
    assert not is_consistent(tmp_path)


PRINTER = """
import sys, time
from pathlib import Path
source, out = map(Path, sys.argv[1:3])
if out.exists():
    print("finished")
    sys.exit()
text = source.read_text()
if text == "raise":
    raise KeyError(text)
if text == "wait":
    time.sleep(60)
if text == "refuse":
    print(f"error: {source}: refused", file=sys.stderr)
    sys.exit(2)
if text == "remove":
    source.with_name("notes").unlink()
out.write_text(text.upper() if text != "lie" else "A")
"""


@pytest.fixture
def small(tmp_path: Path) -> Prepared:
    """A scene of a script that reads one file and writes another."""
    (tmp_path / "script.py").write_text(PRINTER)
    world = tmp_path / "world"
    world.mkdir()
    (world / "in").write_text("text")
    (world / "notes").write_text("what a user wrote")
    command = Command(str(tmp_path / "script.py"), ("in", "out"))
    return prepare(Scene("small", (command,), ("in", "notes"), ("out",)), world, tmp_path / "scenes")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("text", "identical"),
        ("lie", "silent"),
        ("raise", "traceback"),
        ("wait", "hang"),
        ("refuse", "clear error"),
        ("remove", "lost"),
    ],
)
@pytest.mark.parametrize("real", [False, True], ids=["forked", "real"])
def test_a_planted_fault_is_called_by_its_name(
    small: Prepared, tmp_path: Path, text: str, expected: str, real: bool
) -> None:
    sandbox = Sandbox(small, tmp_path / "trial")
    (sandbox.folder / "in").write_text(text)
    before = listing(sandbox.folder)
    ended = sandbox.run(limit=1 if text == "wait" else 20, real=real)
    verdict = sandbox.judge(Disturbance("planted", "in", names_of("in")), ended, before)
    assert verdict.kind == expected, ended


def test_what_a_run_started_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os, time\nprint(os.fork(), flush=True)\ntime.sleep(60)")
    (tmp_path / "folder").mkdir()
    running = Running(Command(str(tmp_path / "script.py"), ()), tmp_path / "folder")
    while "\n" not in running.so_far():
        assert running.poll() is None
    assert running.end(0).hung
    child = int(running.so_far().split()[0])
    wait_for(lambda: child not in processes_of(running.pid))


def test_a_fork_ends_as_a_process_does(tmp_path: Path) -> None:
    """Exit statuses, output that was not flushed, and what runs at an exit."""
    script = tmp_path / "script.py"
    for text, status in (("", 0), ("import sys; sys.exit(3)", 3), ("1 / 0", 1), ("raise SystemExit('x')", 1)):
        script.write_text(f"import atexit\natexit.register(print, 'at the exit')\nprint('out', end=' ')\n{text}")
        (tmp_path / "folder").mkdir(exist_ok=True)
        ended = [run(Command(str(script), ()), tmp_path / "folder", real=real) for real in (False, True)]
        assert [(each.status, each.stdout) for each in ended] == [(status, "out at the exit\n")] * 2


@pytest.mark.parametrize("ending", [".cp", ".json", ".jsonl", ".bin", ".txt"])
def test_damage_changes_the_file_and_repeats_by_its_seed(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"file{ending}"
    content = b'{"a": 1, "b": [2, {"c": 3}]}\n{"type": "train", "step": 4}\n'

    def damaged(seed: int, choose: object = any_damage) -> dict[str, str]:
        (path.rmdir if path.is_dir() and not any(path.iterdir()) else lambda: None)()
        for each in tmp_path.iterdir():
            os.system(f"rm -rf {each}")
        path.write_bytes(content)
        draw = random.Random(seed)
        try:
            choose(draw, path).apply(draw, path)  # type: ignore[operator]
        except NotOfThisKind:
            return {}
        return listing(tmp_path)

    path.write_bytes(content)
    untouched = listing(tmp_path)
    for seed in range(40):
        assert damaged(seed) == damaged(seed) != untouched
    for seed in range(20):
        damaged(seed, content_damage)
        assert path.stat().st_size == len(content)


def _outcome(number: int, kind: str = "identical") -> Outcome:
    return Outcome("damage", f"damage:{number}", "scene", "what", Verdict(kind), number % 13 == 0, 0.1)


def _planted(number: int) -> int:
    if number == 3:
        raise RuntimeError("a fault of the campaign's own")
    if number == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 5:
        time.sleep(60)
    return 2 * number


def test_forks_side_by_side_and_those_that_fail() -> None:
    results = dict(in_forks(_planted, range(7), workers=3, limit=2))
    failed = {number for number, result in results.items() if isinstance(result, Failure)}
    assert failed == {3, 4, 5}
    assert "a fault of the campaign's own" in results[3]
    assert [results[number] for number in (0, 1, 2, 6)] == [0, 2, 4, 12]
    assert list(in_forks(_planted, [1], workers=1, until=0)) == [], "it is too late to begin"


def test_the_table_of_some_trials() -> None:
    outcomes = [_outcome(0), _outcome(1, "silent"), _outcome(2), _outcome(3, "unclear")]
    counts = count(outcomes)
    assert {column: number for column, number in counts["damage"].items() if number} == {
        "tried": 4, "identical": 2, "silent": 1, "unclear": 1, "real processes": 1,
    }  # fmt: skip
    assert {each.name for each in failures(outcomes)} == {"damage:1", "damage:3"}
    assert not is_good(counts)
    twice = add([counts, counts])
    assert twice["damage"]["tried"] == 8
    assert table(twice).splitlines()[1].split()[:2] == ["damage", "8"]


def test_scenes_have_names_of_their_own() -> None:
    names = [scene.name for scene in scenes()]
    assert len(set(names)) == len(names) > 20


def test_an_interrupt_before_a_scripts_first_line_is_the_interpreters() -> None:
    before = (
        'Traceback (most recent call last):\n  File "/x/code/run_glue.py", line 3, in <module>\n'
        "    import nystromformer.command_line.interrupt  # first of all\n"
        '  File "<frozen importlib._bootstrap>", line 1176, in _find_and_load\nKeyboardInterrupt\n'
    )
    later = before.replace("import nystromformer.command_line.interrupt", "from nystromformer.command_line import cli")
    assert is_before_the_script(before)
    assert not is_before_the_script(later)
    assert not is_before_the_script("")
