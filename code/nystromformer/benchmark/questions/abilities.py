"""Small tasks that tell attentions apart."""

from collections.abc import Sequence
from dataclasses import dataclass

from nystromformer.benchmark.flags import ATTENTIONS, Results, count, flag, numbers
from nystromformer.command_line.runtime import this_command


@dataclass(frozen=True)
class Abilities:
    """Every combination of tasks, lengths, pairs, attentions, convolutions and seeds."""

    tasks: list[str] = flag([], "A task; may be given several times. Default: all.", name="task")
    attentions: list[str] = flag([], f"{ATTENTIONS} With about a quarter of the keys unless told.", name="attention")
    lengths: Sequence[int] = numbers(
        (128,), "Tokens of a row, several numbers separated by commas.", least=16, name="length"
    )
    pairs: Sequence[int] = numbers(
        (),
        "Number of key-value pairs in lookup and recall, several separated by commas. Default: a half and a quarter "
        "of the tokens.",
    )
    taps: Sequence[int] = numbers(
        (0,),
        "Taps of the convolution, 0 for none, several numbers separated by commas.",
        least=0,
        name="conv_kernel_size",
    )
    seeds: int = count(1, "Runs of each, with seeds from 0 on.")
    seconds: float = flag(120.0, "Seconds on one core after which a run ends that has not learned its task.", 1)
    workers: int = count(2, "Runs at once, a process and a core each.")


def abilities(settings: Abilities, results: Results) -> str:
    """Small tasks that softmax learns within minutes: which attention can look things up, shift, copy, find and count.

    It resumes when it is started again; another command with the same --out adds to its tables.
    """
    from nystromformer.benchmark.abilities import measure_abilities

    return measure_abilities(settings, results.out, this_command())
