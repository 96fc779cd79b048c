"""Spans: from a user's labels to tokens and back, and the tasks that find them."""

import itertools

import keras
import numpy as np
import pytest
from common import CHARACTER, WORD
from finetuning_cases import load_small
from sources import weights

from roformer_keras import RoFormerTokenizer
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.tables.files import read_table
from roformer_keras.tables.tagged import TokenTags, join_tokens
from roformer_keras.tasks.span_extractor import RoFormerSpanExtractor
from roformer_keras.tasks.span_labels import Span, as_spans, spans_of_tags
from roformer_keras.tasks.spans import SpanRows, tags_of_spans
from roformer_keras.tasks.token_classifier import RoFormerTokenClassifier

TEXTS = ["她在北京大学", "我们不在上海，在北京", "今天天气不错", "北京人"]
LABELS = [
    [(2, 4, "LOC"), (2, 6, "ORG")],
    [(4, 6, "LOC"), (8, 10, "LOC")],
    [],
    [(0, 2, "LOC")],
]
FLAT = [[(2, 6, "ORG")], *LABELS[1:]]


def test_labels_in_any_form():
    text = "她在北京"
    expected = [(2, 4, "LOC")]
    assert as_spans(expected, text, 0) == expected
    assert as_spans([[2, 4, "LOC"]], text, 0) == expected
    assert as_spans([{"start": 2, "end": 4, "label": "LOC"}], text, 0) == expected
    assert as_spans([Span(2, 4, "LOC", "北京", 1.0)], text, 0) == expected
    assert as_spans((np.int64(2), np.int64(4), "LOC") and expected, text, 0) == expected
    assert as_spans(["O", "O", "B-LOC", "I-LOC"], text, 0) == expected
    assert as_spans([], text, 0) == []


def test_blanks_at_its_edges_are_none_of_a_span():
    text = "她\u3000 北京 \t\u200b工作"
    for start, end in ((3, 5), (2, 5), (3, 6), (1, 8)):
        assert as_spans([(start, end, "LOC")], text, 0) == [(3, 5, "LOC")]
        tags = ["O"] * len(text)
        tags[start:end] = ["B-LOC", *["I-LOC"] * (end - start - 1)]
        assert as_spans(tags, text, 0) == [(3, 5, "LOC")]


def test_labels_that_are_none():
    for labels, message in (
        ([(2, 4)], r"must be \(start, end, label\).* in row 7"),
        ([(2.0, 4, "LOC")], "must be"),
        ([(4, 2, "LOC")], "and be at least one character long, got 4 to 2"),
        ([(2, 7, "LOC")], "got 2 to 7 in row 7"),
        ([(2, 2, "LOC")], "got 2 to 2"),
        ([(-1, 2, "LOC")], "got -1 to 2"),
        ([{"start": 2, "end": 4}], "must be"),
        ([(4, 6, "LOC")], r"hold more than blanks, got 4 to 6, ' \\u3000' in row 7"),
        (["O", "O"], "got 2 tags for 6 characters in row 7"),
        (["B", *"OOOOO"], "a tag must be O, or a letter .* got 'B' in row 7"),
        (["O-LOC", *"OOOOO"], "got 'O-LOC'"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            as_spans(labels, "她在北京 \u3000", 7)


def test_spans_of_tags():
    for tags, expected in (
        ("O O", []),
        ("B-A I-A O B-A", [(0, 2, "A"), (3, 4, "A")]),
        ("B-A B-A", [(0, 1, "A"), (1, 2, "A")]),
        # As `seqeval` takes them.
        ("O I-A I-A", [(1, 3, "A")]),
        ("B-A I-B", [(0, 1, "A"), (1, 2, "B")]),
        ("B-A-B I-A-B", [(0, 2, "A-B")]),
        # BMES and BIOES.
        ("B-A M-A E-A S-B O", [(0, 3, "A"), (3, 4, "B")]),
        ("B-A E-A B-A I-A E-A", [(0, 2, "A"), (2, 5, "A")]),
        ("B-A I-A E-A S-A S-A", [(0, 3, "A"), (3, 4, "A"), (4, 5, "A")]),
        ("E-A O M-A E-A I-B", [(0, 1, "A"), (2, 4, "A"), (4, 5, "B")]),
    ):
        assert spans_of_tags(tags.split()) == expected, tags
    for tags, names, expected in (
        ("n n v O n", "n v O", [(0, 2, "n"), (2, 3, "v"), (4, 5, "n")]),
        # Parts of speech that are letters of a scheme, and `o`, which is no `O`.
        (
            "m m o b-x B",
            "m o b-x B n",
            [(0, 2, "m"), (2, 3, "o"), (3, 4, "b-x"), (4, 5, "B")],
        ),
        ("b_A i_A O", "O b_A i_A", [(0, 2, "A")]),
    ):
        assert spans_of_tags(tags.split(), None, names.split()) == expected, tags
    with pytest.raises(ConfigurationError, match="must be O, or one of n, v, got 'x'"):
        spans_of_tags(["n", "x"], 3, ["n", "v"])


def test_plain_tags_of_tokens_and_other_schemes():
    words = TokenTags(("New", "York", "is", "big"), ("ns", "ns", "v", "a"))
    names = ["v", "a", "ns"]
    text = join_tokens(words.tokens)
    spans = [(0, 8, "ns"), (9, 11, "v"), (12, 15, "a")]
    assert as_spans(words, text, 0, names) == spans
    model = RoFormerTokenClassifier.from_preset(CHARACTER, tags=names, num_layers=1)
    assert (model.tags, model.labels) == (names, names)
    rows = model.make_rows([("她在北京",)])
    (targets,) = model.make_targets([[(1, 2, "v"), (2, 4, "ns")]], rows)
    # Without a tag for what is outside, it is not learned.
    assert list(targets) == [-1, -1, 0, 2, 2, -1]
    scores = np.zeros((1, 6, 3), "float32")
    scores[0, range(6), [0, 1, 0, 2, 2, 0]] = 5
    (found,) = model._find_spans(scores, rows, np.array([0]))
    assert [(one.start, one.end, one.label) for one in found] == [
        (0, 1, "a"),
        (1, 2, "v"),
        (2, 4, "ns"),
    ]
    for scheme, expected in (
        ("B-A M-A E-A S-A O", [3, 0, 1, 2]),
        ("O B-A I-A E-A S-A", [4, 1, 2, 3]),
        ("O I-A", [1, 1, 1, 1]),
        ("O B-A I-A", [1, 1, 2, 2]),
        ("O A", [1, 1, 1, 1]),
    ):
        numbers = tags_of_spans([(0, 1, "A"), (1, 4, "A")], rows, 0, scheme.split())
        assert list(numbers[1:5]) == expected, scheme
    for options, message in (
        ({"tags": ["n", "n"]}, "tags must be different names"),
        ({"tags": ["n", "v"], "labels": ["x"]}, "labels must be those of tags"),
        ({}, "labels must be a list of names, got None"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            RoFormerTokenClassifier.from_preset(CHARACTER, **options)


@pytest.mark.parametrize(
    "scheme",
    ["O B I", "O I E", "O B I E S", "B M E S O", "O B I L U", "O B M E W", "o u l b i"],
)
def test_schemes_in_every_way(scheme, backbone, tmp_path):
    letters = scheme.split()
    tags = [
        tag
        for letter in letters
        for tag in ([letter] if letter in "Oo" else [f"{letter}-A", f"{letter}_B"])
    ]
    text, spans = "她在北京大学", [(0, 1, "A"), (1, 4, "B"), (4, 6, "A")]
    model = RoFormerTokenClassifier(backbone, backbone.tokenizer, tags=tags)
    assert model.labels == ["A", "B"]
    numbers = model.make_targets([spans], model.make_rows([(text,)]))[0][1:-1].tolist()
    names = [tags[number] for number in numbers]
    (tmp_path / "x.bio").write_text("".join(map("{} {}\n".format, text, names)))
    words = TokenTags(tuple(text), tuple(names))
    file = read_table(tmp_path / "x.bio", 1, has_tokens=True).labels[0]
    for labels in (numbers, names, words, " ".join(names).split(), file):
        assert as_spans(labels, text, None, tags) == spans


@pytest.mark.parametrize("tags", ["O A-B A-I", "O B:A I:A", "O F-A X-A", "b/A i/A o"])
def test_tags_of_other_schemes_are_refused(tags, backbone):
    with pytest.raises(
        ConfigurationError, match="before each label, such as B-A, got "
    ):
        RoFormerTokenClassifier(backbone, backbone.tokenizer, tags=tags.split())


@pytest.mark.parametrize("source", [CHARACTER, WORD], ids=lambda path: path.stem)
def test_spans_go_to_tokens_and_back(source):
    tokenizer = RoFormerTokenizer.from_preset(source)
    text = "ＮＥＷ 今天天气，  她在北京！"
    rows = SpanRows(tokenizer, [(text,)], 64)
    offsets = rows.offsets(0)
    assert len(offsets) == rows.lengths[0] == len(tokenizer.encode(text)[0])
    assert (offsets[[0, -1]] == -1).all()
    for token in range(1, len(offsets) - 1):
        start, end = (int(place) for place in offsets[token])
        assert rows.tokens_of(0, start, end)[0] <= token
        span = rows.span(0, token, token, "X", 0.5)
        assert span == Span(start, end, "X", text[start:end], 0.5)
    # What a user marks in the middle of a token is of that token.
    start = text.index("京")
    first, last = rows.tokens_of(0, start, start + 1)
    assert first == last and offsets[first, 0] <= start < offsets[first, 1]
    # Spaces next to it belong to no token.
    start, end = text.index("她"), text.index("她") + 1
    assert rows.tokens_of(0, start - 2, end) == rows.tokens_of(0, start, end)
    # Nothing is where there are spaces only.
    assert rows.tokens_of(0, 3, 4) is None


def test_what_is_cut_off_has_no_tokens():
    tokenizer = RoFormerTokenizer.from_preset(CHARACTER)
    rows = SpanRows(tokenizer, [("今天天气不错",)], 5)
    assert list(rows.offsets(0)[:, 0]) == [-1, 0, 1, 2, -1]
    assert rows.tokens_of(0, 0, 3) == (1, 3)
    assert rows.tokens_of(0, 2, 4) is None
    assert rows.tokens_of(0, 4, 6) is None
    # A blank is not what was cut off, even where the row ends before it.
    rows = SpanRows(tokenizer, [("今天 天气",), ("今天 ",)], 4)
    for number in (0, 1):
        assert rows.tokens_of(number, 0, 3) == (1, 2)
    assert rows.tokens_of(0, 0, 4) is None
    rows = SpanRows(tokenizer, [("今天天气不错",)], 5)
    np.testing.assert_array_equal(
        rows.visible(np.array([0]), 7), [[False, True, True, True, *[False] * 3]]
    )


def test_offsets_behind_a_question_are_of_the_second_text():
    tokenizer = RoFormerTokenizer.from_preset(CHARACTER)
    rows = SpanRows(tokenizer, [("天气", "今天不错")], 64)
    assert list(rows.offsets(0)[:, 0]) == [-1, -1, -1, -1, 0, 1, 2, 3, -1]
    assert rows.span(0, 4, 5, "", 0).text == "今天"


def test_tags_of_tokens():
    tokenizer = RoFormerTokenizer.from_preset(CHARACTER)
    tags = {"O": 0, "B-LOC": 1, "I-LOC": 2, "B-ORG": 3, "I-ORG": 4}
    rows = SpanRows(tokenizer, [("她在北京大学",)], 64)
    numbers = tags_of_spans([(2, 4, "LOC"), (4, 6, "ORG")], rows, 0, tags)
    assert list(numbers) == [-1, 0, 0, 1, 2, 3, 4, -1]
    with pytest.raises(ConfigurationError, match="RoFormerSpanExtractor"):
        tags_of_spans([(2, 6, "ORG"), (2, 4, "LOC")], rows, 0, tags)
    spaced = SpanRows(tokenizer, [("她在 北京 大学",)], 64)
    for span in ((2, 5), (3, 6), (2, 6)):
        numbers = tags_of_spans([(*span, "LOC")], spaced, 0, tags)
        assert list(numbers) == [-1, 0, 0, 1, 2, 0, 0, -1]
    latin = SpanRows(tokenizer, [("她在ЖЖЖЖЖЖ",)], 64)
    first = latin.tokens_of(0, 2, 3)[0]
    assert latin.tokens_of(0, 2, 8) == (first, first)
    with pytest.raises(ConfigurationError, match="a token of its own, but ORG from 5"):
        tags_of_spans([(2, 5, "ORG"), (5, 8, "ORG")], latin, 0, tags)
    latin = SpanRows(tokenizer, [("她在ЖЖЖЖЖЖ北京",)], 64)
    numbers = tags_of_spans([(2, 5, "ORG"), (5, 10, "LOC")], latin, 0, tags)
    assert list(numbers) == [-1, 0, 0, 3, 1, 2, -1]
    short = SpanRows(tokenizer, [("她在北京大学",)], 6)
    numbers = tags_of_spans([(2, 4, "LOC"), (4, 6, "ORG")], short, 0, tags)
    assert list(numbers) == [-1, 0, 0, 1, 2, -1]


def found_by(model, texts=TEXTS):
    extracted = model.extract(texts, verbose=0)
    for text, spans in zip(texts, extracted, strict=True):
        assert all(span.text == text[span.start : span.end] for span in spans)
    return [[(s.start, s.end, s.label) for s in spans] for spans in extracted]


def taught(kind, labels, epochs, **options):
    keras.utils.set_random_seed(0)
    model = load_small(kind, labels=["LOC", "ORG"], **options)
    model.compile(keras.optimizers.Adam(1e-2))
    model.fit(TEXTS, labels, epochs=epochs, verbose=0)
    return model


@pytest.fixture(scope="module")
def taught_tagger():
    return taught(RoFormerTokenClassifier, FLAT, 40)


@pytest.fixture(scope="module", params=[False, True], ids=["softmax", "crf"])
def tagger(request, taught_tagger):
    """A tagger that was taught, also with a field whose transitions are all 0."""
    if not request.param:
        return taught_tagger
    model = load_small(RoFormerTokenClassifier, labels=["LOC", "ORG"], crf=True)
    values = weights(taught_tagger)
    for weight in model.trainable_weights:
        weight.assign(values.get(weight.path, np.zeros(weight.shape)))
    model.compile(run_eagerly=True)
    return model


@pytest.fixture(scope="module")
def extractor():
    return taught(RoFormerSpanExtractor, LABELS, 60, head_dim=16)


def test_a_tagger_finds_spans(tagger):
    assert found_by(tagger) == FLAT
    assert found_by(tagger, TEXTS[::-1]) == FLAT[::-1]
    assert all(
        0 < span.score <= 1 for row in tagger.extract(TEXTS, verbose=0) for span in row
    )
    loss, accuracy = tagger.evaluate(TEXTS, FLAT, verbose=0)
    # With a field that of the tags without their transitions.
    assert accuracy > 0.6 and loss < 2


def test_padding_has_no_say_in_the_loss(tagger):
    """Alone or next to a longer one, a text has the same loss."""
    alone = [
        tagger.evaluate([text], [labels], verbose=0)[0]
        for text, labels in zip(TEXTS, FLAT, strict=True)
    ]
    together = tagger.evaluate(TEXTS, FLAT, verbose=0)[0]
    if tagger.crf is not None:
        expected = np.mean(alone)
    else:
        # The mean over tokens.
        expected = np.average(alone, weights=[len(text) for text in TEXTS])
    assert together == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_nested_spans_are_found(extractor):
    assert found_by(extractor) == [
        sorted(row, key=lambda s: (s[0], -s[1])) for row in LABELS
    ]
    loss, f1 = extractor.evaluate(TEXTS, LABELS, verbose=0)
    assert f1 == 1 and loss < 0.5


def test_no_span_holds_what_is_no_text(extractor):
    inputs = extractor.tokenizer(["她在北京", "好"])
    scores = keras.ops.convert_to_numpy(extractor(inputs))
    is_seen = np.isfinite(scores)
    assert is_seen[0, 0, 1:5, 1:5].sum() == 10
    assert is_seen[0].sum() == 2 * 10
    assert is_seen[1].sum() == 2


def test_wrong_spans_and_names(extractor):
    for y, message in (
        ([[(0, 1, "PER")], [], [], []], r"of \['LOC', 'ORG'\], got 'PER' in row 0"),
        ([[], [(0, 99, "LOC")], [], []], "in row 1"),
        ([[]], "got 4 rows and 1 labels"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            extractor.fit(TEXTS, y)
    for labels in (None, "LOC", [], ["LOC", "LOC"]):
        with pytest.raises(ConfigurationError, match="labels must be"):
            RoFormerTokenClassifier.from_preset(CHARACTER, labels=labels)


# One text in each scheme of tags.
SCHEMES = {
    "BIO": "她 O\n在 O\n北 B-LOC\n京 I-LOC\n大 I-LOC\n好 B-X\n坏 B-X\n学 I-X",
    "BIOES": "她 O\n在 O\n北 B-LOC\n京 I-LOC\n大 E-LOC\n好 S-X\n坏 B-X\n学 E-X",
    "BMES": "她 O\n在 O\n北 B-LOC\n京 M-LOC\n大 E-LOC\n好 S-X\n坏 B-X\n学 E-X",
}


def test_schemes_and_separators_of_tags(tmp_path):
    path, expected = tmp_path / "a.bio", [(2, 5, "LOC"), (5, 6, "X"), (6, 8, "X")]
    betweens = [" ", "\t", "  ", " \t", "\tNN\t", " x y "]
    for scheme, between, end in itertools.product(SCHEMES, betweens, ["\n", "\r\n"]):
        text = SCHEMES[scheme].replace(" ", between)
        path.write_bytes(f"{text}\n\n{text}\n".replace("\n", end).encode())
        table = read_table(path, 1)
        assert table.texts == [("她在北京大好坏学",)] * 2
        assert table.lines == [1, 10]
        assert all(spans_of_tags(tags) == expected for tags in table.labels)
