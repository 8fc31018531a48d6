"""What each attention learns of eight small tasks, and by how many landmarks and blocks (docs/results/abilities.md).

It needs no data. Some six core-hours, most of them for tasks that an attention does not learn.
"""

from study import Line, Stage, main

BENCHMARK = "code/run_benchmark.py abilities --out {results}"
VARIED = (
    "nystrom,num_landmarks=8/16/32",
    "near_far,num_blocks=0/1/2/4",
    "mra,num_blocks=2/4/8",
    "local,block_size=4/8/16",
)
CHOSEN = " ".join(f"--attention {each}" for each in ("softmax", "linear", *VARIED))
ROWS = "--task lookup --task shift_half --length 64 --pairs 16 --seeds 3 --seconds 30"
BUDGETS = f"{BENCHMARK}/budgets {ROWS} {CHOSEN}"
STAGES = {
    # `lookup` has 120 seconds for each attention, the other tasks 60.
    "tasks": Stage([Line("all", f"{BENCHMARK} --task lookup && {BENCHMARK} --seconds 60")]),
    "budgets": Stage([Line("all", f"{BUDGETS} && {BUDGETS} --conv_kernel_size 9")]),
}

if __name__ == "__main__":
    main(STAGES)
