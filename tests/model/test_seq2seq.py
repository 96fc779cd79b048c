"""RoFormerSeq2Seq: its numbers, what it writes, and where it is kept."""

import keras
import numpy as np
import plain_decoding as plain
import pytest
import tensorflow as tf
from keras import ops
from weight_cases import SIZES

from roformer_keras import RoFormerSeq2Seq, RoFormerTokenizer
from roformer_keras.errors import (
    CheckpointError,
    ConfigurationError,
    OutputError,
    SourceError,
    VocabularyError,
)
from roformer_keras.generation.encoder_decoder import EncoderDecoder
from roformer_keras.generation.prompts import as_prompt
from roformer_keras.models import Seq2SeqConfig

pytestmark = pytest.mark.slow

CHARACTERS = "天地玄黄宇宙洪荒日月"
TOKENIZER = RoFormerTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *CHARACTERS])
SMALL = {**SIZES, "vocabulary_size": TOKENIZER.vocabulary_size}
SMALL |= {"num_layers": 1, "hidden_dim": 16, "intermediate_dim": 24}
KINDS = [
    pytest.param({"position_embedding": position, "norm_first": norm_first}, id=name)
    for name, position, norm_first in (
        ("rotary-post", "rotary", False),
        ("rotary-pre", "rotary", True),
        ("sinusoidal-post", "sinusoidal", False),
        ("sinusoidal-pre", "sinusoidal", True),
    )
]
SOURCE = np.array([[2, 5, 6, 7, 8, 3], [2, 9, 3, 0, 0, 0], [2, 4, 5, 3, 0, 0]], "int32")
TARGET = np.array([[2, 10, 11, 12, 4], [2, 13, 4, 0, 0], [2, 7, 7, 7, 0]], "int32")


def make_model(tokenizer=TOKENIZER, scale=0.6, **changes):
    """With weights that show every term: no zeros in biases, no ones in gammas."""
    model = RoFormerSeq2Seq(Seq2SeqConfig.from_dict({**SMALL, **changes}))
    generator = np.random.default_rng(0)
    for weight in model.trainable_weights:
        drawn = scale * generator.normal(size=weight.shape)
        if len(weight.shape) == 1:
            # Larger ones would decide alone what is written.
            drawn = drawn / 8 + ("gamma" in weight.path)
        weight.assign(drawn)
    model.tokenizer = tokenizer
    return model


def logits_of(model, source, target):
    outputs = model(
        {"encoder_token_ids": source, "decoder_token_ids": target}, training=False
    )
    return ops.convert_to_numpy(outputs).astype("float64")


# === Numbers: float64 NumPy, from the formulas ===


class Reference:
    """The whole of it for one row of ids each, without padding."""

    def __init__(self, model):
        self.config = model.config
        self.weights = {
            weight.path: ops.convert_to_numpy(weight).astype("float64")
            for weight in model.trainable_weights
        }

    def logits(self, source, target):
        memory = self.side("encoder", source, None)
        hidden = self.side("decoder", target, memory)
        return hidden @ self.weights["token_embedding/embeddings"].T

    def side(self, name, ids, memory):
        table, config = self.weights["token_embedding/embeddings"], self.config
        x = table[ids] * np.sqrt(config.hidden_dim)
        if config.position_embedding == "sinusoidal":
            x = x + self.sinusoids(len(ids))
        for number in range(config.num_layers):
            path = f"{name}_layer_{number}"
            parts = {"attention": lambda y, p: self.attend(p, y, y, name == "decoder")}
            if memory is not None:
                parts["cross_attention"] = lambda y, p: self.attend(p, y, memory)
            parts["feed_forward"] = self.feed_forward
            for part, function in parts.items():
                part = f"{path}/{part}"
                norm = f"{part}_norm"
                if config.norm_first:
                    x = x + function(self.norm(norm, x), part)
                else:
                    x = self.norm(norm, x + function(x, part))
        return self.norm(f"{name}_norm", x) if config.norm_first else x

    def sinusoids(self, length):
        table = np.zeros((length, self.config.hidden_dim))
        for position in range(length):
            for pair in range(self.config.hidden_dim // 2):
                angle = position / 10000 ** (2 * pair / self.config.hidden_dim)
                table[position, 2 * pair] = np.sin(angle)
                table[position, 2 * pair + 1] = np.cos(angle)
        return table

    def attend(self, path, x, other, is_causal=False):
        config = self.config
        query, key, value = (
            self.dense(f"{path}/{name}", y).reshape(len(y), config.num_heads, -1)
            for name, y in (("query", x), ("key", other), ("value", other))
        )
        if config.position_embedding == "rotary" and "cross" not in path:
            query, key = self.turned(query), self.turned(key)
        scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(config.head_dim)
        if is_causal:
            hidden = np.triu(np.ones(scores.shape[1:], bool), 1)
            scores = np.where(hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, value)
        return self.dense(f"{path}/output_dense", mixed.reshape(len(x), -1))

    def turned(self, x):
        pairs = x[..., 0::2] + 1j * x[..., 1::2]
        frequencies = 10000 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
        angles = np.arange(len(x))[:, None] * frequencies
        pairs = pairs * np.exp(1j * angles)[:, None]
        return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)

    def feed_forward(self, x, path):
        inner = np.maximum(self.dense(f"{path}/intermediate_dense", x), 0)
        return self.dense(f"{path}/output_dense", inner)

    def dense(self, path, x):
        return x @ self.weights[f"{path}/kernel"] + self.weights[f"{path}/bias"]

    def norm(self, path, x):
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        gamma, beta = (self.weights[f"{path}/{name}"] for name in ("gamma", "beta"))
        return centred / deviation * gamma + beta


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_formulas(kind):
    # Of moderate weights, so that float32 is as good as it says.
    model = make_model(scale=0.3, num_layers=2, **kind)
    reference = Reference(model)
    logits = logits_of(model, SOURCE, TARGET)
    for row, (source, target) in enumerate(zip(SOURCE, TARGET, strict=True)):
        source, target = source[source > 0], target[target > 0]
        expected = reference.logits(source, target)
        assert np.abs(expected).max() > 0.5
        np.testing.assert_allclose(
            logits[row, : len(target)], expected, rtol=0, atol=2e-5
        )


def test_half_precision():
    model = make_model(scale=0.3)
    expected = logits_of(model, SOURCE, TARGET)
    for policy in ("mixed_bfloat16", "mixed_float16"):
        half = RoFormerSeq2Seq(model.config, dtype=policy)
        half.set_weights(model.get_weights())
        errors = np.abs(logits_of(half, SOURCE, TARGET) - expected)[TARGET > 0]
        assert errors.max() < 0.15 * np.abs(expected).max()
        assert {weight.dtype for weight in half.trainable_weights} == {"float32"}


# === Writing ===


SOURCES = ["天地玄黄", "宇", "洪荒日月天", "月日", "地玄"]
STOPS = {"stops": (TOKENIZER.sep_id,), "suppressed": (TOKENIZER.sep_id,)}


def ids_of(text):
    return TOKENIZER.encode(text)[0]


# The other two combine the same parts.
@pytest.mark.parametrize(
    ("kind", "has_beams"),
    [
        ({"position_embedding": "rotary", "norm_first": True}, True),
        ({"position_embedding": "sinusoidal", "norm_first": False}, False),
    ],
    ids=["rotary-pre", "sinusoidal-post"],
)
def test_greedy_texts_and_beams_with_a_cache_are_as_without(kind, has_beams):
    """Four rows in one program: as many texts, or two beams of two."""
    # A model of one layer writes the same after every source.
    model = make_model(num_layers=2, **kind)
    prompts = [ids_of(text) for text in SOURCES[:4]]
    plainly = [plain.EncoderDecoder(model, ids) for ids in prompts]
    generated = model.generate(prompts, method="greedy", max_length=30)
    for slow, ids, text in zip(plainly, prompts, generated, strict=True):
        assert text == plain.greedy(slow, ids, 30, draft=text, **STOPS)
    assert len({tuple(text) for text in generated}) > 1
    if not has_beams:
        return
    options = {"method": "beam", "num_beams": 2, "num_return_sequences": 2}
    options.update(length_penalty=0.6, max_length=8, return_scores=True)
    generated = model.generate(prompts[:2], **options)
    for slow, ids, outputs in zip(plainly, prompts, generated, strict=False):
        expected = plain.beam(slow, ids, 8, 2, 0.6, **STOPS)
        assert [one.output for one in outputs] == [text for _, text in expected]
        assert [one.score for one in outputs] == pytest.approx(
            [score for score, _ in expected], abs=1e-4
        )


def test_samples_of_many_texts_leave_one_by_one(monkeypatch):
    """Rows end at different times, and what was read is shared no more."""
    model = make_model(num_layers=2, norm_first=True)
    prompts = [ids_of(text) for text in SOURCES] + [ids_of("荒" * n) for n in (1, 2, 3)]
    stops = (TOKENIZER.sep_id, 6, 7, 8)
    rows_of_texts, select = [], EncoderDecoder.select

    def noted(self, state, rows):
        select(self, state, rows)
        rows_of_texts.append((state.prefix[0][0].shape[0], state.all_rows))

    monkeypatch.setattr(EncoderDecoder, "select", noted)
    samples = model.generate(
        prompts,
        num_return_sequences=4,
        max_length=24,
        top_p=1.0,
        stop_tokens=stops,
        seed=5,
        engine="keras",
    )
    assert any(texts == rows for texts, rows in rows_of_texts)
    for number in (0, 3, 7):
        ids = prompts[number]
        for copy, text in enumerate(samples[number]):
            expected = plain.sample(
                *(plain.EncoderDecoder(model, ids), ids, 24, 5, 4 * number + copy),
                {"top_p": 1.0},
                draft=text,
                stops=stops,
                suppressed=(TOKENIZER.sep_id,),
            )
            assert text == expected


def test_what_is_written_may_be_longer_than_what_was_read():
    model = make_model()
    assert as_prompt(model, ids_of("宇")).max_new_tokens == 3 + 50
    assert as_prompt(model, ids_of("宇"), min_length=300).max_new_tokens == 300
    for name in ("max_length", "max_new_tokens"):
        assert as_prompt(model, ids_of("宇"), **{name: 7}).max_new_tokens == 7
    # Nothing ends it.
    (found,) = model.generate([ids_of("宇")], method="greedy", stop_tokens=())
    assert len(found) == 3 + 50
    pieces = list(model.stream("天地玄黄", method="greedy", max_length=8))
    assert "".join(pieces) == model.generate("天地玄黄", method="greedy", max_length=8)


# === Learning ===


def test_fit_takes_pairs_of_texts():
    model = make_model(dropout=0.0)
    model.compile(run_eagerly=True)
    pairs = (["天地", "玄黄宇", "日" * 30], ["地天", "宇黄玄", "月"])
    # The third pair is too long, and left out.
    left_out = "1 of 3 pairs are left out: a text has more than max_length=8 tokens"
    with pytest.warns(UserWarning, match=left_out):
        loss = model.evaluate(*pairs, max_length=8, verbose=0)
    short = [texts[:2] for texts in pairs]
    assert loss == pytest.approx(model.evaluate(*short, verbose=0), rel=1e-6)
    with pytest.warns(UserWarning, match=left_out):
        history = model.fit(
            *pairs, epochs=2, max_length=8, validation_data=short, verbose=0
        )
    assert history.history["val_loss"][0] > 0
    # Its own optimizer, with the rate of the second update next.
    step = model.optimizer.learning_rate
    assert float(step) == pytest.approx((16 * 4000) ** -0.5 * 3 / 4000, rel=1e-5)


def test_pairs_are_held_out_or_come_from_a_dataset():
    model = make_model(dropout=0.0)
    model.compile(run_eagerly=True)
    pairs = (["天地", "玄黄宇", "日"], ["地天", "宇黄玄", "月"])
    dataset = tf.data.Dataset.from_tensor_slices(pairs)
    expected = model.evaluate(*pairs, verbose=0)
    assert model.evaluate(dataset, verbose=0) == pytest.approx(expected, rel=1e-6)
    history = model.fit(*pairs, validation_split=0.34, verbose=0).history
    assert history["val_loss"][0] > 0


# === Files ===


def test_files_give_the_model_back(tmp_path):
    model = make_model(norm_first=True, position_embedding="sinusoidal")
    model.tokenizer = RoFormerTokenizer(TOKENIZER.vocabulary, lower_case=False)
    model.save_to_preset(tmp_path / "preset")
    model.save(tmp_path / "model.keras")
    preset = RoFormerSeq2Seq.from_preset(tmp_path / "preset")
    assert preset.tokenizer.vocabulary == TOKENIZER.vocabulary
    assert not preset.tokenizer.lower_case
    for again in (preset, keras.saving.load_model(tmp_path / "model.keras")):
        assert again.config == model.config
        np.testing.assert_array_equal(
            logits_of(again, SOURCE, TARGET), logits_of(model, SOURCE, TARGET)
        )
    changed = RoFormerSeq2Seq.from_preset(tmp_path / "preset", dropout=0.3)
    assert changed.config.dropout == 0.3
    with pytest.raises(OutputError, match="exists"):
        model.save_to_preset(tmp_path / "preset")


def test_a_keras_file_resumes_its_training(tmp_path):
    model = make_model(dropout=0.0)
    pairs = (["天地", "玄黄宇"], ["地天", "宇黄玄"])
    model.compile(run_eagerly=True)
    model.fit(*pairs, epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    again.tokenizer = TOKENIZER
    for one in (model, again):
        one.fit(*pairs, epochs=2, verbose=0)
    np.testing.assert_allclose(
        logits_of(again, SOURCE, TARGET), logits_of(model, SOURCE, TARGET), atol=1e-5
    )


def test_files_that_are_not_what_they_should_be(tmp_path):
    folder = tmp_path / "preset"
    make_model().save_to_preset(folder)
    with pytest.raises(CheckpointError, match="missing encoder_layer_1"):
        RoFormerSeq2Seq.from_preset(folder, num_layers=2)
    with pytest.raises(CheckpointError, match="has shape"):
        RoFormerSeq2Seq.from_preset(folder, intermediate_dim=32)
    (folder / "model.weights.h5").unlink()
    with pytest.raises(SourceError, match=r"model\.weights\.h5"):
        RoFormerSeq2Seq.from_preset(folder)


# === Wrong input ===


def test_configurations_and_pairs_that_break_a_rule():
    for changes, message in (
        ({"num_layers": 0}, "num_layers must be an integer"),
        ({"hidden_dim": 18, "num_heads": 4}, "hidden_dim must be a multiple of num_h"),
        ({"hidden_dim": 6, "num_heads": 2}, "even number of features a head"),
        ({"position_embedding": "learned"}, "position_embedding must be one of"),
        ({"dropout": 1.0}, "dropout must be a number"),
        ({"norm_first": 1}, "norm_first must be True or False"),
        ({"layer_norm_epsilon": 0.0}, "epsilon must be a number in"),
        ({"attention": "causal"}, "has no field attention"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            Seq2SeqConfig.from_dict({**SMALL, **changes})
    model = make_model()
    for sources, targets, options, message in (
        (["天"], None, {}, "need targets"),
        ("天", ["地"], {}, "must be a list of str"),
        (["天", "地"], ["地"], {}, "got 2 sources and 1 targets"),
        ([], [], {}, "at least one"),
        (["天"], [" "], {}, "not be empty, got ' ' in row 0"),
        (["天"], [3], {}, "got 3 in row 0"),
        (["天地"], ["天"], {"max_length": 3}, "none of 1 has"),
        (["天地"], ["天"], {"max_length": 2}, "max_length must be an integer"),
        (["天"], ["地"], {"batch_size": 0}, "batch_size must be an integer"),
        (["天"], ["地"], {"batch_size": 2.5}, "batch_size must be an integer"),
        (["天"], ["地"], {"validation_data": [["天"]]}, "a pair of texts.*got 1"),
        (["天"], ["地"], {"validation_data": ([], [], [])}, "have no weights"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            model.fit(sources, targets, verbose=0, **options)


def test_what_cannot_be_written_from():
    model = make_model()
    with pytest.raises(ConfigurationError, match="must hold text"):
        model.generate("")
    with pytest.raises(ConfigurationError, match="token ids must be integers from 0"):
        model.generate([[2, 99, 3]])
    with pytest.raises(ConfigurationError, match="max_length must be"):
        model.generate("天", max_length=0)
    with pytest.raises(ConfigurationError, match="from 0 to 5, got 6"):
        model.generate("天", max_length=5, min_length=6)
    model.tokenizer = None
    with pytest.raises(VocabularyError, match="no vocabulary"):
        model.generate("天")


def test_another_vocabulary_begins_with_its_own_token():
    model = make_model()
    assert model._decoder("keras").start_id == model._reading().start_id == 2
    other = ["[PAD]", "[UNK]", "[SEP]", "[CLS]", *CHARACTERS]
    model.tokenizer = RoFormerTokenizer(other)
    assert model._decoder("keras").start_id == model._reading().start_id == 3
