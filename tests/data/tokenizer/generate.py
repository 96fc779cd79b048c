"""Writes the vocabularies and the golden answers beside this file.

Run from the checkout's root, with bert4keras installed as README says:

    PYTHONPATH=. python tests/data/tokenizer/generate.py

Every answer in golden.json is the real bert4keras's. The texts are written for it.
"""

import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent
TOOLS = FOLDER.parents[2] / "tools"

SPECIALS = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<S>", "<T>"]
CHARACTERS = [
    *"!\"#$%&'()*+,-./0123456789:;<=>?@[\\]^_`{|}~",
    *"abcdefghijklmnopqrstuvwxyz",
    *"·—“”…、。《》，：？！（）￥〇々",
    *"我爱北京天安门今气很不错好的人中国大学生喜欢读书有一二三上海长城雨",
    *"かㄱ한",
    *["hello", "good", "don", "it", "mask", "is", "##tan", "##b", "##ul", "##s"],
    *["un", "##believ", "##able"],
]
WORDS = ["北京", "天气", "不错", "中国", "大学生", "喜欢", "读书", "有一", "一二三"]

TEXTS = [
    "",
    " \t\n\r\u3000\u2003\u2028\u2029 ",
    "[MASK]",
    "今天[MASK]很好",
    "[CLS]hello[SEP]",
    "hello123",
    "hello",
    "unbelievable",
    "a" * 200,
    "a" * 201,
    "が",
    "がぎぐ",
    "한국",
    "ᄒ한",
    "İ",
    "İstanbul今",
    "ΑΣ ΣΑΣ今ΟΔΟΣ",
    "a\x0bb",
    "a\x1cb\x85c",
    "a\x00b\ufffdc\u200bd\ufeffe",
    "a々",
    "〇一〇",
    "a￥b＋c～d｜e€f",
    "a$b+c~d|e^f`g",
    "今天天气不错",
    "今天天气很不错，我喜欢。",
    "\u200b北京",
    "北\u200b京",
    "北 京\r\n上海",
    "我爱北京天安门",
    "中国大学生读书有一二三",
    "HELLO Good hello,good",
    "don't it's 1.2.3 3.14",
    "Àéîõü ça",
    "e\u0301\u0327x",
    "x\u302e\U0001d165y",
    "\u0301\u0301",
    "《上海》（长城）——“雨”…！",
    "𠀀𪜀丽",
    "😀今",
    "\ud800今",
    "c#c++ .net a-b a_b 50% a&b",
]
PAIRS = [
    ("今天天气", "我爱北京"),
    ("我爱北京天安门", "今天"),
    ("今天", "我爱北京天安门"),
    ("", ""),
    ("我", ""),
    ("", "我"),
    (["[CLS]", "今", "天", "[SEP]"], "北京"),
    (["今", "天", "不在", "气"], ["x", "我", "[MASK]", "爱"]),
    (["今", "天"], None),
    ([], ["我", "爱"]),
    ("今天天气很不错", None),
]
DECODE = [
    [],
    ["[CLS]", "今", "天", "[SEP]", "[PAD]", "[PAD]"],
    ["don", "'", "t"],
    ["it", "'", "s", "good"],
    ["1", ".", "2", ".", "3"],
    ["a", "1", ".", "2", "b"],
    ["今", "hello", "我"],
    ["a", "-", "b", "+", "c", "/", "d", "=", "e"],
    ["a", "(", "b", ")", "[", "c", "]", "{", "d", "}", "<", "e", ">"],
    ["今", "[UNK]", "天", "[MASK]", "。", "<S>", "[unused1]", "好"],
    ["is", "##tan", "##b", "##ul", "今", "##s"],
    ["hello", ",", "good", "!", "“", "it", "”", "、", "，", "a", "：", "b"],
    [".", "1", ".", "2", "·", "3", "—", "a", "…", "b", "￥", "c"],
    ["か", "今", "か", "々", "〇", "一"],
]
WORD_DECODE = [["天气", "hello", "北京"], ["不错", "a", "，", "北京", "天气", "a"]]
STARTSWITH = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def vocabulary(level):
    tokens = [*SPECIALS, *CHARACTERS, *(WORDS if level == "word" else [])]
    return list(dict.fromkeys(tokens))


def golden(reference, level):
    """The real answers to everything above."""
    tokens = vocabulary(level)
    ids = {token: index for index, token in enumerate(tokens)}

    def ask(method, **arguments):
        path = str(FOLDER / f"{level}_vocab.txt")
        return reference.call(method, vocabulary=path, level=level, **arguments)

    first, second = (list(texts) for texts in zip(*PAIRS, strict=True))
    rows = [[ids[t] for t in row] for row in DECODE]
    if level == "word":
        rows += [[ids[t] for t in row] for row in WORD_DECODE]
    truncations = [
        {"max_length": max_length, "truncate_from": truncate_from}
        for max_length in (None, 1, 2, 4, 9)
        for truncate_from in ("right", "left", 0, 2, -1, -3)
    ]
    simplified, keep_tokens = ask("simplify", startswith=STARTSWITH)
    return {
        "tokenize": [TEXTS, ask("tokenize", texts=TEXTS)],
        "encode": [TEXTS, ask("encode", texts=TEXTS)],
        "pairs": [first, second],
        "encode_pairs": [
            [options, ask("encode", texts=first, pairs=second, **options)]
            for options in truncations
        ],
        "decode": [rows, ask("decode", rows=rows)],
        "simplified": [STARTSWITH, list(simplified), keep_tokens],
    }


def main():
    sys.path.insert(0, str(TOOLS))
    from reference_tokenizer import ReferenceTokenizer

    for level in ("character", "word"):
        path = FOLDER / f"{level}_vocab.txt"
        path.write_text("".join(t + "\n" for t in vocabulary(level)), encoding="utf-8")
    with ReferenceTokenizer() as reference:
        answers = {level: golden(reference, level) for level in ("character", "word")}
    text = json.dumps(answers, indent=None, separators=(",", ":"))
    (FOLDER / "golden.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
