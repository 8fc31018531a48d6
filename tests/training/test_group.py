"""How processes find each other, and what they agree on; threads over one store stand in for the processes."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore, Store

from nystromformer.errors import UserError
from nystromformer.training.group import Group, ProcessLost, join_group, store_of_attempt


def meet(store: Store, size: int, late: int | None = None) -> set[str]:
    """What each process reads under a key that process 0 writes after they have met."""

    def process(rank: int) -> str:
        if rank == late:
            time.sleep(0.1)
        mine = store_of_attempt(store, rank, size, timeout=20)
        if rank == 0:
            mine.set("address", f"{time.monotonic()}")
        return mine.get("address").decode()

    with ThreadPoolExecutor(size) as pool:
        return set(pool.map(process, range(size)))


@pytest.mark.parametrize("late", [None, 0, 2])
def test_every_attempt_has_its_own_part_of_the_store(late: int | None) -> None:
    store = HashStore()
    attempts = [meet(store, size=3, late=late) for _ in range(3)]
    assert [len(values) for values in attempts] == [1, 1, 1], "all of an attempt read the same"
    assert len(set.union(*attempts)) == 3, "and nothing of another attempt's"


def test_an_attempt_that_never_became_complete_does_not_disturb_the_next() -> None:
    store = HashStore()
    failures: list[str] = []

    def alone(rank: int) -> None:
        with pytest.raises(ProcessLost, match=f"process {rank} waited"):
            store_of_attempt(store, rank, 3, timeout=0.3)
        failures.append(f"{rank}")

    threads = [threading.Thread(target=alone, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failures) == 2
    assert len(meet(store, size=3)) == 1
    assert len(meet(store, size=2)) == 1, "nor one of another size"


def test_alone_everything_is_trivial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with join_group() as group:
        assert group == Group()
        assert group.is_main
        assert group.highest(3, False) == (3, False)
        assert torch.equal(group.sum(torch.ones(2)), torch.ones(2))
        assert group.check(lambda: 5) == group.on_main(lambda: 5) == 5
        with pytest.raises(UserError, match="mine"):
            group.check(_fail)


def _fail() -> None:
    raise UserError("mine")
