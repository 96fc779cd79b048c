"""Makes the training data of the notebooks, in this folder.

    python notebooks/data/make.py --reviews FOLDER --pairs classical_modern.tsv.xz

FOLDER has sentiment.{train,valid,test}.tsv.gz with lines of a text, a tab, and 0 or 1.
Lines of the other file are a classical sentence, a modern one and the book, separated
by tabs. README.md names the sources. The result is the same each time.

Reviews are drawn at random. Titles are modern sentences without their title marks 《》;
the text between the marks is tagged. No book is in two of the three parts, and no title
is frequent.
"""

import argparse
import gzip
import lzma
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

FOLDER = Path(__file__).parent
REVIEWS = {"train": 4000, "valid": 500, "test": 1000}
TITLE = re.compile("《([^《》]{1,20})》")
# A model would learn more frequent titles by name, not from their context.
MAX_COUNT = 20
# Places among ten books in a drawn order.
HELD_OUT = {0: "valid", 1: "test", 2: "test"}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reviews", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    options = parser.parse_args()
    make_reviews(options.reviews)
    make_titles(options.pairs)


def make_reviews(folder):
    for part, count in REVIEWS.items():
        with gzip.open(folder / f"sentiment.{part}.tsv.gz", "rt", "utf-8") as file:
            lines = file.readlines()
        write(f"reviews.{part}.tsv", random.Random(0).sample(lines, count))


def make_titles(path):
    sentences = defaultdict(list)
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            _, text, book = line.rstrip("\n").split("\t")
            if set("《》") & set(text):
                sentences[book].append(text)
    books = sorted(sentences)
    random.Random(0).shuffle(books)
    parts, seen = defaultdict(list), Counter()
    for number, book in enumerate(books):
        for text in sentences[book]:
            titles = TITLE.findall(text)
            is_whole = text.count("《") == text.count("》") == len(titles)
            if is_whole and all(seen[title] < MAX_COUNT for title in titles):
                seen.update(titles)
                parts[HELD_OUT.get(number % 10, "train")].append(text)
    for part, texts in parts.items():
        random.Random(0).shuffle(texts)
        write(f"titles.{part}.bio", map(tag_titles, texts))


def tag_titles(text):
    """Lines of a character and its tag, without the title marks."""
    lines, tag = [], "O"
    for character in text:
        if character == "《":
            tag = "B-TITLE"
        elif character == "》":
            tag = "O"
        elif not character.isspace():
            lines.append(f"{character} {tag}\n")
            tag = tag.replace("B-", "I-")
    return "".join([*lines, "\n"])


def write(name, lines):
    with (
        open(FOLDER / f"{name}.gz", "wb") as file,
        # A time would change the bytes.
        gzip.GzipFile("", "wb", 9, file, mtime=0) as packed,
    ):
        packed.write("".join(lines).encode())


if __name__ == "__main__":
    main()
