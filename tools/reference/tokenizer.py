"""tests/data/tokenizer/golden.json: answers of bert4keras's tokenizer.

The file holds the questions too: for each level of vocabulary (`LEVEL_vocab.txt` in its
folder) texts, pairs, rows of ids and options, each with its answers. Writing it again
asks the same questions; to ask more, add them to the file with any answer.

`reference_worker("tools.reference.tokenizer:Tokenizer")` answers from another process.
"""

import copy
import functools
import json

from tools import ROOT
from tools.reference.bert4keras import save_json

FOLDER = ROOT / "tests" / "data" / "tokenizer"
LEVELS = ("character", "word")


def write(output):
    golden = json.loads((FOLDER / "golden.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer()
    answers = {
        level: answer_questions(golden[level], functools.partial(ask, tokenizer, level))
        for level in LEVELS
    }
    save_json(output / "data" / "tokenizer" / "golden.json", answers)


def ask(tokenizer, level, method, **arguments):
    path = str(FOLDER / f"{level}_vocab.txt")
    # bert4keras cuts lists of tokens in place.
    return getattr(tokenizer, method)(path, level, **copy.deepcopy(arguments))


def answer_questions(golden, ask):
    """The content of golden.json for one level; `ask` takes a method and arguments."""
    texts, _ = golden["tokenize"]
    first, second = golden["pairs"]
    rows, _ = golden["decode"]
    startswith, *_ = golden["simplified"]
    return {
        "tokenize": [texts, ask("tokenize", texts=texts)],
        "encode": [texts, ask("encode", texts=texts)],
        "pairs": [first, second],
        "encode_pairs": [
            [options, ask("encode", texts=first, pairs=second, **options)]
            for options, _ in golden["encode_pairs"]
        ],
        "decode": [rows, ask("decode", rows=rows)],
        "simplified": [startswith, *ask("simplify", startswith=startswith)],
    }


class Tokenizer:
    """bert4keras's tokenizers; the first arguments are a vocabulary and its level."""

    def __init__(self):
        self._tokenizer = functools.cache(make_tokenizer)

    def tokenize(self, vocabulary, level, texts):
        tokenize = self._tokenizer(vocabulary, level).tokenize
        return [tokenize(text) for text in texts]

    def encode(self, vocabulary, level, texts, pairs=None, max_length=None, **options):
        """Ids and segments of each text, or the name of the exception raised."""
        encode, answers = self._tokenizer(vocabulary, level).encode, []
        for first, second in zip(texts, pairs or [None] * len(texts), strict=True):
            try:
                answers.append(encode(first, second, maxlen=max_length, **options))
            except IndexError as error:
                answers.append(type(error).__name__)
        return answers

    def decode(self, vocabulary, level, rows):
        return [self._tokenizer(vocabulary, level).decode(ids) for ids in rows]

    def simplify(self, vocabulary, level, startswith):
        from bert4keras.tokenizers import load_vocab

        tokens, keep = load_vocab(vocabulary, simplified=True, startswith=startswith)
        return list(tokens), keep


def make_tokenizer(vocabulary, level):
    import jieba
    from bert4keras.tokenizers import Tokenizer

    if level == "character":
        return Tokenizer(vocabulary, do_lower_case=True)
    jieba.initialize()
    cut = functools.partial(jieba.cut, HMM=False)
    return Tokenizer(vocabulary, do_lower_case=True, pre_tokenize=cut)
