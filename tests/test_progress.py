"""How far a command is, as a line of its log."""

from nystromformer.progress import WorkDone


def test_words() -> None:
    work = WorkDone("wiki", 345.24, 1200, "MB", 120_400, "words", 184)
    assert str(work) == "wiki: 345.2 of 1200.0 MB, 120k words/s, 3:04 left"
    assert str(WorkDone("cp-0003", 7, 10, "batches")) == "cp-0003: 7 of 10 batches"
    assert str(WorkDone("hub", 7, None, "MB")) == "hub: 7.0 MB"
