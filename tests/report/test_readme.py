"""What README.md and docs/ say is so."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from documents import README, TEXTS
from small import ROOT, SHIPPED, run_command

from nystromformer.attention import Holds, Needs, create_attention
from nystromformer.config import NystromConfig, load_config
from nystromformer.config.attention import ATTENTIONS
from nystromformer.model import PretrainingModel, count_parameters
from nystromformer.runs.figures import Spread
from nystromformer.tables import markdown


def docs(name: str) -> str:
    return TEXTS[f"docs/{name}"]


def one_line(text: str) -> str:
    return " ".join(text.split())


def measured(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))
    return content


def test_the_table_of_exceptions_is_current() -> None:
    """A row per attention, and settings of one, that does not hold the whole contract or needs something."""
    rows = []
    for name, config in ATTENTIONS.items():
        for settings in ({}, *config.exceptional):
            module = create_attention(name, num_heads=1, head_dim=1, max_length=1, **settings)
            missing = [field.name for field in fields(Holds) if not getattr(module.holds, field.name)]
            needed = [field.name for field in fields(Needs) if getattr(module.needs, field.name)]
            if missing or needed:
                said = (key if value is True else f"{key}={json.dumps(value)}" for key, value in settings.items())
                lists = (", ".join(names).replace("_", " ") or "-" for names in (missing, needed))
                rows.append([f"`{', '.join([name, *said])}`", *lists])
    assert markdown(["attention", "does not hold", "needs"], rows) in docs("library.md")


def test_the_library_example_runs() -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    assert code[0] in docs("library.md")
    names: dict[str, torch.Tensor] = {}
    exec(code[1], names)  # our own text
    assert names["out"].shape == (2, 12, 1000, 64)
    assert not names["out"][1, :, 37:].any()


def test_the_authors_protocol_is_the_line_it_names() -> None:
    (override,) = re.findall(r"--pad_to 512 --set (model\.attn_type=\S+)", docs("fine-tuning.md"))
    model = load_config(ROOT / "nystrom-512" / "config.json", [override]).model
    wanted = NystromConfig(
        num_landmarks=64, conv_kernel_size=33, segments="padded", pinv_start="batch", ignore_mask=True
    )
    assert set(model.attentions) == {wanted}


def test_the_disk_that_checkpoints_take() -> None:
    config = load_config(ROOT / "nystrom-512" / "config.json")
    with torch.device("meta"):
        parameters = count_parameters(PretrainingModel(config.model, config.pretraining_setting.objectives))
    epochs, state, weights = config.pretraining_setting.epoch, 12 * parameters, 4 * parameters
    sizes = f"{state / 1e9:.2f} GB and {weights / 1e9:.2f} GB, and {epochs * (state + weights) / 1e9:.0f} GB"
    sentence = f"for the {parameters / 1e6:.0f} million of `nystrom-512` {sizes} for its {epochs} epochs"
    assert sentence in one_line(docs("checkpoints.md"))


def test_the_shipped_experiments_are_counted() -> None:
    assert f"{len(SHIPPED)} shipped experiments" in README


def test_the_attentions_are_counted() -> None:
    for page in (README, docs("comparing.md")):
        assert f"{len(ATTENTIONS)} attentions" in page


def test_the_demos_table_is_what_was_measured() -> None:
    runs = measured("demo/results.json")["runs"]
    ours = ["nystrom-demo-conv", "near_far-demo-noconv", "softmax-demo-noconv", "nystrom-demo-noconv"]
    baselines = runs[ours[0]]["baselines"]
    accuracies = [runs[run]["scores"][-1]["metrics"]["mlm_accuracy"] for run in ours]
    accuracies += [baselines["bigram_table"], baselines["most_frequent_token"]]
    rows = re.findall(r"^\| [^|]+ \| (\d+\.\d) % \| (\d\.\d) \|", docs("results/encoders.md"), re.MULTILINE)
    assert rows == [(f"{100 * each:.1f}", f"{each / accuracies[-1]:.1f}") for each in accuracies]


def test_the_first_pages_table_is_what_was_measured() -> None:
    def firsts(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {record["method"].partition(" (num_")[0].partition(" (block")[0]: record for record in records[::-1]}

    cells = measured("equal-keys/efficiency.json")["records"] + measured("equal-keys/linear/efficiency.json")["records"]
    costs = firsts([cell for cell in cells if cell["length"] == 8192])
    encoders = measured("pretraining/pretraining.json")["encoders"]
    learned = {
        name: Spread.of([metrics["mlm_accuracy"] for metrics in seeds.values()]) for name, seeds in encoders.items()
    }
    found, reviews = measured("needle/512.json")["figures"], measured("long/read.json")["figures"]
    row = (
        r"^\| (\w+)[^|]* \| ([\d. ±]+) % \| ([\d. ±]+) % \| ([\d. ±]+) % "
        r"\| (?:([\d. ±]+) %|–) \| ([\d,]+) ms \| ([\d,]+) MiB \|$"
    )
    shown = re.findall(row, README, re.MULTILINE)
    methods = {name: name for name in ("softmax", "near_far", "local", "Nyström", "linear")}
    methods |= {"softmax": "softmax (SDPA)", "Nyström": "nystrom"}
    assert [name for name, *_ in shown] == list(methods)
    for name, alone, convolved, far, long, time, memory in shown:
        kind = {"Nyström": "nystrom"}.get(name, name)
        assert far == str(Spread.of([record["metrics"]["to 512"] for record in found[kind]]))
        assert [alone, convolved] == [str(learned[f"{kind}-{end}"]) for end in ("noconv", "conv")]
        cost = costs[methods[name]]
        assert (time, memory) == (f"{cost['both']['median']:,.0f}", f"{cost['memory']:,.0f}")
        read = [record["metrics"]["accuracy"] for record in reviews.get(f"{kind}-1024", [])]
        assert long == (str(Spread.of(read)) if read else "")


def test_the_attentions_table_is_what_was_measured() -> None:
    rows = {(row["length"], row["method"]): row for row in measured("attention-cpu/attention.json")["records"]}
    page = docs("results/speed.md")
    table = re.findall(r"^\| (\d+) \| ([\d.]+) \([^|]*\| (?:([\d.]+) \()?", page, re.MULTILINE)
    assert len(table) == 6
    for length, ours, softmax in table:
        expected = [rows[int(length), "nystrom"]]
        expected += [rows[int(length), "softmax (SDPA)"]] if softmax else []
        for text, row in zip((ours, softmax), expected, strict=False):
            digits = len(text.partition(".")[2])
            assert float(text) == pytest.approx(row["both"]["median"], abs=0.51 * 10**-digits)


@pytest.mark.slow
def test_the_picture_is_drawn_from_the_results(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    done = run_command("experiments/studies/speed.py", "picture", "--out", picture)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert (ROOT / "docs" / "attention-time.png").is_file()


def test_the_table_of_the_other_attentions_is_what_was_measured() -> None:
    """Forward and backward of ours over those of the fastest other implementation, at 4096 tokens; memory likewise."""
    row = r"^\| `(\w+)` \| ([\d.]+) \| (\d+) \| [^|]+ \| ([\d.]+) \| ([\d.]+) \|$"
    table = re.findall(row, docs("results/speed.md"), re.MULTILINE)
    assert len(table) == 8
    for name, time, memory, of_time, of_memory in table:
        rows = [each for each in measured(f"attention-cpu/attention-{name}.json")["records"] if each["length"] == 4096]
        (ours,) = (each for each in rows if each["method"] == name)
        others = [each for each in rows if each["method"] not in (name, "softmax (SDPA)", "elementwise control")]
        median, peak = min(each["both"]["median"] for each in others), min(each["memory"] for each in others)
        assert (time, memory) == (f"{ours['both']['median']:.1f}", f"{ours['memory']:.0f}")
        assert (of_time, of_memory) == (f"{ours['both']['median'] / median:.2f}", f"{ours['memory'] / peak:.2f}")
