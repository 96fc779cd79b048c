"""Writes CLUE's files of C3 and CHID as JSON lines, which `finetune` reads.

    python -m tools.clue_choices c3/d-train.json c3/m-train.json > train.jsonl
    python -m tools.clue_choices chid/train.json > train.jsonl

A file of C3 is a JSON list of `[sentences, questions, id]`. A file of CHID has a JSON
object a line, with passages that have blanks such as `#idiom000123#`; the answers of
`train.json` are in `train_answer.json` next to it, except for a test set.

Layouts: https://github.com/CLUEbenchmark/CLUE; Sun et al. 2020, arXiv:1904.09679 (C3);
Zheng et al. 2019, arXiv:1906.01265 (CHID).
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_BLANK = re.compile(r"#idiom\d+#")
# An idiom has four characters. Other blanks of the passage are no question of the row.
_MASKS, _OTHER_BLANK = 4 * "[MASK]", "____"


def read_c3(text: str) -> Iterator[dict]:
    """Rows of the questions of C3."""
    for sentences, questions, *_ in json.loads(text):
        for question in questions:
            row = {
                "context": "\n".join(sentences),
                "question": question["question"],
                "choices": question["choice"],
            }
            if "answer" in question:
                row["label"] = question["answer"]
            yield row


def read_chid(text: str, answers: dict) -> Iterator[dict]:
    """Rows of the blanks of CHID; `blank` is the name of each."""
    for line in filter(str.strip, text.split("\n")):
        content = json.loads(line)
        for passage in content["content"]:
            for match in _BLANK.finditer(passage):
                before, after = (
                    _BLANK.sub(_OTHER_BLANK, part).replace("[MASK]", _OTHER_BLANK)
                    for part in (passage[: match.start()], passage[match.end() :])
                )
                row = {
                    "context": f"{before}{_MASKS}{after}",
                    "choices": content["candidates"],
                    "blank": match[0],
                }
                if match[0] in answers:
                    row["label"] = answers[match[0]]
                yield row


def main() -> None:
    """Writes the rows of the files that the command names to standard output."""
    for name in sys.argv[1:]:
        path = Path(name)
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("["):
            rows = read_c3(text)
        else:
            file = path.with_name(f"{path.stem}_answer.json")
            has_answers = file.is_file()
            answers = json.loads(file.read_text("utf-8")) if has_answers else {}
            rows = read_chid(text, answers)
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))


if __name__ == "__main__":
    main()
