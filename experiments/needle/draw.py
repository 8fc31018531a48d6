"""Draw questions whose answer stands once in a long text of real sentences: does a model find it, and how far away?

A row has a question, "in which city is mason ?", and a text of sentences of a corpus, among which --facts sentences
such as "mason is in oslo ." stand at random places. Each has a name and a city of its own: with eight facts, the words
of a text do not tell which city is asked for. With --hops 2 the question names a person, who "works for" one of them.

Names are words that are one token, new in every row. Test rows are of other documents than training rows.
"""

import json
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from tokenizers import Tokenizer

from nystromformer.command_line import cli
from nystromformer.data.preprocessing.corpus import Document, read_documents
from nystromformer.data.preprocessing.unified import read_corpus
from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.errors import UserError
from nystromformer.files.writing import write_text
from nystromformer.interop.experiments.folders import check_free, write_folder

CITIES = ("london", "paris", "berlin", "rome", "madrid", "vienna", "dublin", "oslo")
FRAME = ("in", "which", "city", "is", "does", "work", "works", "for", *CITIES)
"""Words that are no names."""
SPECIAL = 3
"""Tokens of a pair's row beside its texts."""
LONGEST = 64
"""Tokens of a sentence at most, so that rows are nearly as long as asked for."""
MOST_DOCUMENTS = 10_000
"""Of the corpus, the first, of which every fifth is for the test."""


class Drawing:
    """Rows of a split's documents."""

    def __init__(self, documents: Sequence[Document], tokenizer: Tokenizer, length: int, facts: int, hops: int) -> None:
        self._tokenizer, self._length, self._facts, self._hops = tokenizer, length, facts, hops
        texts = list(chain.from_iterable(document.sentences for document in documents))
        ids = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
        cities = {token for city in CITIES for token in self._ids(city)}
        kept = [n for n, tokens in enumerate(ids) if 0 < len(tokens) <= LONGEST and cities.isdisjoint(tokens)]
        self._texts, self._sizes = [texts[n] for n in kept], [len(ids[n]) for n in kept]
        words = sorted({word.removeprefix("Ġ") for word in tokenizer.get_vocab()} - {*FRAME})
        words = [word for word in words if len(word) > 4 and word.isascii() and word.isalpha() and word.islower()]
        known = tokenizer.encode_batch(words, add_special_tokens=False)
        self._names = [word for word, encoding in zip(words, known, strict=True) if len(encoding.ids) == 1]
        needed = facts * hops
        if len(self._names) < needed:
            raise UserError(f"--facts {facts}: expected a tokenizer with {needed} names, found {len(self._names)}")
        if not self._texts:
            raise UserError("--corpus: expected sentences for both training and test rows, found none")

    def row(self, random: np.random.Generator) -> dict[str, Any]:
        """A row of at most `length` tokens, with as many sentences as there is room for.

        Returns:
            question; text; city, the answer; distance, the tokens of the text before the fact with the answer.
        """
        names = random.choice(self._names, self._facts * self._hops, replace=False)
        cities = random.permutation(CITIES)[: self._facts]
        places, people = names[: self._facts], names[self._facts :]
        facts = [f"{place} is in {city} ." for place, city in zip(places, cities, strict=True)]
        facts += [f"{person} works for {place} ." for person, place in zip(people, places, strict=False)]
        question = f"in which city does {people[0]} work ?" if len(people) else f"in which city is {places[0]} ?"
        needed = SPECIAL + sum(len(self._ids(text)) for text in (question, *facts))
        if needed > self._length:
            raise UserError(f"--length {self._length}: expected at least {needed}, for --facts {self._facts}")
        sentences = self._sentences(self._length - needed, random)
        # Which of all sentences of the text are facts: the first one holds the answer.
        of_facts = random.permutation(len(sentences) + len(facts))[: len(facts)]
        by_place, rest = dict(zip(of_facts.tolist(), facts, strict=True)), iter(sentences)
        text = [by_place.get(place) or next(rest) for place in range(len(sentences) + len(facts))]
        distance = len(self._ids(" ".join(text[: of_facts[0]])))
        return {"question": question, "text": " ".join(text), "city": str(cities[0]), "distance": distance}

    def _sentences(self, room: int, random: np.random.Generator) -> list[str]:
        """Sentences after a random one, around the end, until the next one has no room."""
        found, place = [], int(random.integers(len(self._texts)))
        while (room := room - self._sizes[place % len(self._sizes)]) >= 0:
            found.append(self._texts[place % len(self._texts)])
            place += 1
        return found

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def draw(
    corpus: Annotated[Path, typer.Option(help="Folder of a corpus in the unified format (data-preprocessing/).")],
    tokenizer: Annotated[Path, typer.Option(help="Folder with the model's tokenizer.")],
    length: Annotated[int, typer.Option(min=1, max=1 << 20, help="Tokens of the longest row.")],
    out: Annotated[Path, typer.Option(help="New folder for train.jsonl and test.jsonl.")],
    facts: Annotated[int, typer.Option(min=1, max=len(CITIES), help="Facts in a text, each of another city.")] = 8,
    hops: Annotated[int, typer.Option(min=1, max=2, help="Facts that have to be joined for an answer.")] = 1,
    train: Annotated[int, typer.Option(min=0, max=10**7, help="Training rows.")] = 400,
    test: Annotated[int, typer.Option(min=0, max=10**7, help="Test rows.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
) -> None:
    """Draw rows for `run_classify.py --text question,text --label city`."""
    check_free(out)
    opened = load_tokenizer(tokenizer)
    opened.no_padding()
    opened.no_truncation()
    files = (read_documents(corpus / name) for name in read_corpus(corpus).shards)
    documents = list(islice(chain.from_iterable(files), MOST_DOCUMENTS))
    splits = {"test": (documents[::5], test), "train": ([d for n, d in enumerate(documents) if n % 5], train)}
    drawings = {name: Drawing(own, opened, length, facts, hops) for name, (own, _) in splits.items()}
    rows = {}
    for number, (name, (_, count)) in enumerate(splits.items()):
        random = np.random.default_rng([seed, number])
        rows[name] = [drawings[name].row(random) for _ in range(count)]

    def write(folder: Path) -> None:
        for name, own in rows.items():
            write_text(folder / f"{name}.jsonl", "".join(f"{json.dumps(row)}\n" for row in own))

    write_folder(out, write)
    typer.echo(f"{train:,} rows to train on and {test:,} to test: {out}")


if __name__ == "__main__":
    cli.run(draw)
