"""What becomes of a part whose worker fails, by a stand-in for Ray: tests with Ray itself run where it is installed."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nystromformer.errors import UserError
from nystromformer.tasks.prediction.inputs import ParquetFolder
from nystromformer.tasks.prediction.on_ray import TRIES, _predict


class RayError(Exception):
    """Ray's own."""


class RayActorError(RayError):
    """A worker ended."""


class OutOfMemoryError(RayError):
    """Ray ended a worker."""


JOB = SimpleNamespace(source=ParquetFolder("/in", ("a.parquet", "b.parquet")))


def predict(answers: dict[int, list[Any]]) -> list[Any]:
    """The parts 0 and 1, by two workers that give these answers in turn, or raise them."""

    def get(number: int) -> Any:
        answer = answers[number].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    ray = SimpleNamespace(
        exceptions=SimpleNamespace(RayError=RayError, RayActorError=RayActorError, OutOfMemoryError=OutOfMemoryError),
        wait=lambda refs, num_returns: (refs[:num_returns], refs[num_returns:]),
        get=get,
    )
    worker = SimpleNamespace(predict=SimpleNamespace(remote=lambda number: number))
    actor = SimpleNamespace(remote=lambda job: worker)
    return list(_predict(ray, actor, JOB, [0, 1], 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [RayActorError, OutOfMemoryError])
def test_a_part_whose_worker_ends_is_computed_again(error: Callable[[str], Exception]) -> None:
    done = [SimpleNamespace(name="a"), SimpleNamespace(name="b")]
    assert sorted(predict({0: [error("it ended"), done[0]], 1: [done[1]]}), key=lambda part: part.name) == done
    with pytest.raises(UserError) as raised:
        predict({0: [error("it ended\n\nbecause of this\n")] * TRIES, 1: [done[1]]})
    assert str(raised.value).startswith("/in/a.parquet: 3 workers ended while they computed it")
    assert str(raised.value).endswith(": because of this")


def test_other_errors_are_said_once() -> None:
    done = SimpleNamespace(name="b")
    with pytest.raises(UserError, match=r"^/in/a.parquet: Ray: OSError: no space$"):
        predict({0: [RayError("a traceback\nOSError: no space\n")], 1: [done]})
    with pytest.raises(UserError, match=f"^{Path('/in/a.parquet')}, row 2: the text is empty$"):
        predict({0: ["/in/a.parquet, row 2: the text is empty"], 1: [done]})
