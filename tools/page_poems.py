"""Makes the lines that the page of `serve` searches.

    python -m tools.page_poems tang_poems.jsonl.gz

The file has a JSON object of each poem, with title, author and lines; the lines come
from https://github.com/chinese-poetry/chinese-poetry (MIT). Short poems of well-known
authors are taken, as many of each as there are of the others if they have them.
"""

import gzip
import io
import json
import sys
from collections import defaultdict
from pathlib import Path

from tools import ROOT
from tools.commands import Parser, command

TARGET = ROOT / "roformer_keras" / "server" / "page" / "poems.tsv.gz"
AUTHORS = (
    *("李白", "杜甫", "王维", "孟浩然", "王昌龄", "白居易", "李商隐", "杜牧"),
    *("刘禹锡", "柳宗元", "韩愈", "王之涣", "岑参", "高适", "韦应物", "李贺"),
    *("元稹", "贾岛", "温庭筠", "王勃", "骆宾王", "陈子昂", "张九龄", "贺知章"),
)
POEMS_EACH, LINES_EACH = 100, 2


@command
def main(arguments=None):
    parser = Parser(__doc__)
    parser.add_argument("poems", type=Path)
    options = parser.parse_args(arguments)
    found = defaultdict(list)
    with gzip.open(options.poems, "rt", encoding="utf-8") as file:
        for poem in map(json.loads, file):
            if poem["author"] in AUTHORS and len(poem["lines"]) == LINES_EACH:
                found[poem["author"]].append(poem)
    rows = {
        (line, poem["title"], author): None
        for author in AUTHORS
        for poem in found[author][:POEMS_EACH]
        for line in poem["lines"]
    }
    text = "".join("\t".join(row) + "\n" for row in rows)
    stream = io.BytesIO()
    # Without the time, the same file each time.
    with gzip.GzipFile(fileobj=stream, mode="wb", mtime=0) as packed:
        packed.write(text.encode("utf-8"))
    TARGET.write_bytes(stream.getvalue())
    print(f"{len(rows)} lines in {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
