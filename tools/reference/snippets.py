"""tests/data/bert4keras/snippets.json: answers of bert4keras's functions of texts.

The questions are here. `answers` asks any module with bert4keras's names, so that the
tests ask ours the same.
"""

import copy
import importlib

import numpy as np

from tools import ROOT
from tools.reference.bert4keras import save_json

VOCABULARY = ROOT / "tests" / "data" / "tokenizer" / "character_vocab.txt"
TEXTS = [
    "今天天气不错",
    "Hello, World! don't",
    "é è が [MASK] 1.2.3",
    "a\x00b\ufffdc\u200bd e",
    "北京 unaffable￥３",
    "",
]
PAIRS = [("今天天气不错", "我爱北京"), ("a b c d", ""), ("", "今天")]
OPTIONS = [
    {},
    {"maxlen": 6},
    {"maxlen": 7, "truncate_from": "left"},
    {"maxlen": 7, "truncate_from": 2, "pattern": "S*ES*E"},
    {"pattern": "S*ES*E"},
]
TOKENIZERS = [
    {"do_lower_case": True},
    {"do_lower_case": False},
    {"do_lower_case": True, "token_start": None},
    {"do_lower_case": True, "token_end": None},
    {"do_lower_case": True, "token_translate": {"天": "地"}},
    {"do_lower_case": True, "word_maxlen": 3},
    {"do_lower_case": True, "pre_tokenize": True},
]
# Name of a function and its arguments.
CALLS = [
    ("string_matching", ["abc", ["x", "b."]]),
    ("string_matching", ["abc", ["x", "^b"]]),
    ("is_string", ["a"]),
    ("is_string", [1]),
    ("lowercase_and_normalize", ["ÀÉ Straße İ が"]),
    ("truncate_sequences", [5, -2, [1, 2, 3, 4], [5, 6, 7, 8], [], None]),
    ("truncate_sequences", [3, [0, -1], [1, 2, 3, 4], [5, 6, 7]]),
    ("text_segmentate", ["今天。天气，不错！我们，去\n玩吧", 4, "\n。！，"]),
    ("text_segmentate", ["aa,bb,,cc,dd,", 6, ",", ","]),
    ("text_segmentate", ["aaa bbb", 20]),
    ("sequence_padding", [[[1, 2, 3], [4]]]),
    ("sequence_padding", [[[1, 2, 3], [4]], 2, 9]),
    ("sequence_padding", [[[1, 2, 3], [4]], 5, 0, 1, "pre"]),
]


def write(output):
    path = output / "data" / "bert4keras" / "snippets.json"
    save_json(path, answers("bert4keras"))


def answers(package):
    """The answers of a package with bert4keras's modules, as plain JSON."""
    return plain(
        {"snippets": of_snippets(package), "tokenizers": of_tokenizers(package)}
    )


def of_snippets(package):
    snippets = importlib.import_module(f"{package}.snippets")
    results = {
        "calls": [
            getattr(snippets, name)(*copy.deepcopy(arguments))
            for name, arguments in CALLS
        ]
    }
    random = np.random.RandomState(0)
    # Sequences of several axes.
    rows = [random.randint(9, size=size) for size in ((2, 3, 2), (1, 4, 2))]
    equal = [rows[0][:, :2], rows[1][:, :2]]
    results["axes"] = [
        snippets.sequence_padding(equal),
        snippets.sequence_padding(rows, seq_dims=2, value=-1, mode="pre"),
        snippets.sequence_padding(rows, [3, 2], seq_dims=2),
    ]
    matrix = random.randn(4, 6)
    scores = random.randn(5, 3)
    results["viterbi"] = [
        snippets.ViterbiDecoder(matrix[:3, :3], *ends).decode(scores.copy())
        for ends in ((), ([0], [2]), ([1], None))
    ]
    results["softmax"] = snippets.softmax(matrix, axis=0)
    return {**results, **of_decoders(snippets), **of_generators(snippets)}


def of_decoders(snippets):
    random = np.random.RandomState(1)
    table = random.randn(12, 12)

    class Writer(snippets.AutoRegressiveDecoder):
        @snippets.AutoRegressiveDecoder.wraps("logits", use_states=True)
        def predict(self, inputs, output_ids, states):
            (prompt,) = inputs
            states = (states or 0) + 1
            ids = np.concatenate([prompt, output_ids], axis=1)
            return table[ids[:, -1]] + 0.5 * table[ids[:, -2]] + 0.01 * states, states

    class Probable(snippets.AutoRegressiveDecoder):
        @snippets.AutoRegressiveDecoder.wraps(default_rtype="probas")
        def predict(self, inputs, output_ids, states):
            return snippets.softmax(table[output_ids[:, -1]])

    sampled, searched = [], []
    for options in (
        {"n": 4},
        {"n": 6, "topk": 3},
        {"n": 6, "topp": 0.7},
        {"n": 5, "topk": 8, "topp": 0.9, "temperature": 0.8},
        {"n": 5, "min_ends": 2},
    ):
        np.random.seed(5)
        writer = Writer(start_id=None, end_id=3, maxlen=12, minlen=3)
        sampled.append(writer.random_sample([[4, 5]], **options))
        probable = Probable(start_id=1, end_id=3, maxlen=9)
        sampled.append(probable.random_sample([[4, 5]], **options))
    for options in ({"topk": 1}, {"topk": 4}, {"topk": 5, "min_ends": 2}):
        for writer in (
            Writer(None, 3, 12, minlen=2),
            Probable(1, 3, 9),
            Probable(1, 3, 20, minlen=6),
        ):
            for temperature in (1, 0.5):
                searched.append(
                    writer.beam_search([[4, 5]], temperature=temperature, **options)
                )
    return {"sampled": sampled, "searched": searched}


def of_generators(snippets):
    class Samples(snippets.DataGenerator):
        def __iter__(self, random=False):
            batch = []
            for is_end, sample in self.sample(random):
                batch.append(sample)
                if len(batch) == self.batch_size or is_end:
                    yield [[batch], batch]
                    batch = []

    results = []
    for data, options in (
        (list(range(7)), {"batch_size": 3}),
        (map(int, range(9)), {"batch_size": 2, "buffer_size": 4}),
    ):
        np.random.seed(3)
        samples = Samples(data, **options)
        batches = samples.__iter__(random=True)
        results.append([samples.steps, samples.buffer_size, list(batches)])
    samples = Samples(list(range(5)), 2)
    results.append([next(samples.fortest()), next(samples.forfit(False)), len(samples)])
    return {"generators": results}


def of_tokenizers(package):
    tokenizers = importlib.import_module(f"{package}.tokenizers")
    vocabulary = str(VOCABULARY)
    tokens, keep = tokenizers.load_vocab(
        vocabulary, simplified=True, startswith=["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    )
    results = {"simplified": [list(tokens), keep]}
    results["each"] = [
        of_tokenizer(tokenizers.Tokenizer(vocabulary, **arguments(options)))
        for options in TOKENIZERS
    ]
    return results


def arguments(options):
    if options.get("pre_tokenize"):
        # Halves of a text, and a special token.
        return {**options, "pre_tokenize": lambda text: [text[:3], "[MASK]", text[3:]]}
    return options


def of_tokenizer(tokenizer):
    names = ("pad", "unk", "mask", "start", "end")
    return {
        "ids": [getattr(tokenizer, f"_token_{name}_id", None) for name in names],
        "size": tokenizer._vocab_size,
        "tokens": [tokenizer.tokenize(text) for text in TEXTS],
        "cut": [tokenizer.tokenize(text, maxlen=5) for text in TEXTS],
        "encoded": [tokenizer.encode(text) for text in TEXTS],
        "pairs": [
            tokenizer.encode(*pair, **options) for pair in PAIRS for options in OPTIONS
        ],
        "decoded": [tokenizer.decode(tokenizer.encode(text)[0]) for text in TEXTS],
        "joined": tokenizer.decode([], ["[CLS]", "it", "'", "s", "天", "hel", "##lo"]),
        "rematched": [
            tokenizer.rematch(text, tokenizer.tokenize(text))
            for text in TEXTS
            if not tokenizer._token_translate and tokenizer._pre_tokenize is None
        ],
        "stems": [tokenizer.stem("##ab"), tokenizer.stem("ab")],
    }


def plain(value):
    """Arrays as lists, and floats that JSON keeps."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return round(value, 9) if isinstance(value, float) else value
