"""Files of texts that the benchmarks read."""

import json

import numpy as np


def write_texts(folder):
    """Twenty reviews of 5 to 24 characters, and twenty poems of 10."""
    random = np.random.default_rng(0)

    def text(count):
        codes = random.integers(106, 200, count)
        return "".join(chr(0x4E00 + code) for code in codes)

    reviews, poems = folder / "reviews.tsv", folder / "poems.jsonl"
    lines = [f"{text(5 + i)}\t{'ab'[i % 2]}\n" for i in range(20)]
    reviews.write_text("".join(lines), encoding="utf-8")
    rows = [{"title": "天地", "lines": [text(5)] * 2} for _ in range(20)]
    poems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [reviews, poems]
