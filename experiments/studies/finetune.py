"""all-MiniLM-L6-v2 fine-tuned, with softmax and with other attentions in its place, converted to them before
(docs/results/pretrained.md).

DIR holds glue, and what minilm.py needs, whose stages `reviews`, `original` and `converted` have to be done. The
learning rate was chosen by the stage `rates`: 1e-4 is the best of three for each. Some seven core-hours.
"""

from collections.abc import Sequence

from study import Line, Stage, main

KINDS = ("softmax", "near_far", "local", "nystrom", "linear")
COUNTED = "--epoch 3 --lr 1e-4 --predict last --batch_size 16 --device cpu"
"""Of runs that count: nothing is chosen by their validation rows."""
TRIED = "--validation 0.25 --epoch 1 --seed 7 --batch_size 16 --length 512 --device cpu"
SEEDS = "--seed 0,1,2"
REVIEWS = "code/run_classify.py --model {here} --train runs/minilm/reviews/train.jsonl --text text --label label"
TESTED = f"{REVIEWS} --test runs/minilm/reviews/test.jsonl {COUNTED}"
GLUE = "CoLA,SST-2,MRPC,STS-B,QQP,MNLI,QNLI,RTE,WNLI"


def started(kind: str) -> str:
    """The experiment that minilm.py made of a kind."""
    return f"../minilm/{'original' if kind == 'softmax' else 'converted'}/{kind}"


def each(kinds: Sequence[str], command: str) -> list[Line]:
    """A command for each kind, with baselines beside the first."""
    ends = {kind: " --baselines" if "run_glue" in command and kind == kinds[0] else "" for kind in kinds}
    return [Line(kind, command + end, started(kind)) for kind, end in ends.items()]


def glue(tasks: str, rows: int, more: str = "") -> str:
    """GLUE's own validation rows are the test."""
    return f"code/run_glue.py --model {{here}} --glue {{data}}/glue --task {tasks} --train_rows {rows} {COUNTED} {more}"


STAGES = {
    "rates": Stage(
        [
            Line(f"{kind}-{rate}", f"{REVIEWS} {TRIED} --lr {rate}", started(kind))
            for kind in KINDS
            for rate in ("3e-5", "1e-4", "3e-4")
        ],
        ("accuracy",),
    ),
    "reviews": Stage(each(KINDS, f"{TESTED} {SEEDS} --length 512"), ("accuracy",), "softmax"),
    "questions": Stage(each(KINDS, glue("QNLI", 3000, SEEDS)), ("accuracy",), "softmax"),
    # All rows have fewer than 64 tokens, for which Nyström attention with 64 landmarks is exact.
    "sentences": Stage(
        [
            *each(["softmax"], glue("SST-2", 3000)),
            Line("nystrom", glue("SST-2", 3000, "--set model.attn_type=nystrom"), started("softmax")),
        ],
        ("accuracy",), "softmax",
    ),
    "glue": Stage(
        [Line("softmax", glue(GLUE, 5000, "--baselines"), started("softmax"))],
        reports=["code/run_report.py table2 {out}/glue/softmax --out {results}/glue.md"],
    ),
}  # fmt: skip

if __name__ == "__main__":
    main(STAGES)
