"""What a measurement will take, from shorter ones."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Of one forward and backward pass."""

    seconds: float
    memory: float
    """MiB at the peak."""


class Forecast:
    """The cost of one method by length, carried on from the lengths that are known."""

    def __init__(self) -> None:
        self._known: dict[int, Cost] = {}

    def learn(self, length: int, cost: Cost) -> None:
        self._known[length] = cost

    def at(self, length: int) -> Cost | None:
        """Along the line through the last two known lengths on logarithmic axes, no flatter than proportional and no
        steeper than with the square; with the square from one alone. None where nothing is known.
        """
        if not self._known:
            return None
        *before, last = sorted(self._known)
        known = self._known[last]

        def carried(now: float, then: float | None, distance: float) -> float:
            exponent = 2.0 if then is None or min(now, then) <= 0 else math.log(now / then) / distance
            growth = min(2.0, max(1.0, exponent)) if length > last else 1.0
            return now * math.exp(growth * math.log(length / last))

        if not before:
            return Cost(carried(known.seconds, None, 1), carried(known.memory, None, 1))
        then, distance = self._known[before[-1]], math.log(last / before[-1])
        return Cost(carried(known.seconds, then.seconds, distance), carried(known.memory, then.memory, distance))
