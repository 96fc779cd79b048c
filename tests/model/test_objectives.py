"""Batches, what is hidden in them, and what the models learn from them."""

import json
import pickle

import keras
import numpy as np
import objective_cases as cases
import plain_losses as plain
import pytest
from common import CHECKPOINTS, GPT, ROOT, SIM, load_golden, output_of
from objective_cases import (
    LENGTH,
    PAIRS,
    TEACHER_TOKENIZER,
    TOKENIZER,
    make_items,
    make_model,
    make_objective,
    make_trainer,
    model_for,
)

from roformer_keras import RoFormerBackbone, RoFormerCausalLM, RoFormerSim
from roformer_keras.base.errors import ConfigurationError, VocabularyError
from roformer_keras.objectives import (
    OBJECTIVES,
    CausalLM,
    CoSENT,
    MaskedLM,
    PairClassification,
    SimBERT,
)
from roformer_keras.text.encoders import Item
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.training.pretraining_settings import OBJECTIVE_NAMES as names

FIRST_PLAIN = len(cases.SPECIALS)
SIZE = TOKENIZER.vocabulary_size
UNK, CLS, SEP, MASK = map(TOKENIZER.token_to_id, ("[UNK]", "[CLS]", "[SEP]", "[MASK]"))


def rng(seed=0):
    return np.random.default_rng(seed)


def random_text(count, generator, words=False):
    """An item of plain tokens, whose words are of one to four of them."""
    ids = generator.integers(FIRST_PLAIN, SIZE, count).astype("int32")
    if not words:
        return Item((ids,))
    starts = np.zeros(count, bool)
    starts[np.cumsum(generator.integers(1, 5, count)) % max(count, 1)] = True
    starts[:1] = True
    return Item((ids,), (starts,))


def words_of(starts):
    """Arrays of indices, one for each word."""
    return np.split(np.arange(len(starts)), np.flatnonzero(starts)[1:])


def within(count, total, share):
    """True if a count is within five standard deviations of the expected one."""
    deviation = np.sqrt(total * share * (1 - share))
    return abs(count - total * share) <= 5 * deviation


def shapes(batch):
    return [
        {name: (array.shape, array.dtype) for name, array in part.items()}
        if isinstance(part, dict)
        else (part.shape, part.dtype)
        for part in batch
    ]


def loss_of(trainer, batch):
    """By `evaluate`, as a training reports it."""
    return trainer.evaluate(cases.batches(batch), steps=1, verbose=0, return_dict=True)


# === All of them ===


def test_objectives_have_the_names_of_the_settings():
    assert tuple(OBJECTIVES) == names


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_batch_is_a_function_of_items_and_generator(name):
    objective = make_objective(name)
    items = make_items(objective)
    before = pickle.dumps(items)
    first, again = objective.batch(items, rng(1)), objective.batch(items, rng(1))
    for ours, theirs in zip(
        keras.tree.flatten(first), keras.tree.flatten(again), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert pickle.dumps(items) == before
    if name in ("mlm", "simbert", "distillation"):
        others = [objective.batch(items, rng(seed))[0]["token_ids"] for seed in (2, 3)]
        assert (others[0] != others[1]).any()
    # Encoders go to other processes.
    encode = objective.encoder(TOKENIZER, LENGTH)
    record = ("天地玄黄", "宇宙", "1")[: objective.fields or 3]
    ours, theirs = encode(record), pickle.loads(pickle.dumps(encode))(record)
    assert repr(ours) == repr(theirs) != "[]"
    # Shapes depend on the number of items only.
    label = ("1",) if objective.fields == 3 else ()
    texts = (cases.CHARACTERS[:1], cases.CHARACTERS[: LENGTH - 2])
    short, full = (encode((text, text, *label))[0] for text in texts)
    assert len(full.ids[0]) == LENGTH - 2
    few = objective.batch([short] * 3, rng())
    assert shapes(few) == shapes(objective.batch([full] * 3, rng()))
    rows = 3 * objective.rows_per_item
    for array in few[0].values():
        assert len(array) == rows and array.dtype == "int32"
    long = np.full(LENGTH - 1, FIRST_PLAIN)
    item = {0: Item((long,)), 2: Item((long,) * 4), 3: Item((long, long), None, 0.0)}
    with pytest.raises(ConfigurationError, match="at most 8 tokens"):
        objective.batch([item[objective.fields]], rng())


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_given_model_is_trained(name):
    objective = make_objective(name)
    model = model_for(objective)
    trainer = make_trainer(
        objective, model, keras.optimizers.Adam(0.01), run_eagerly=True
    )
    ids = {id(weight) for weight in model.weights}
    shared = [weight for weight in trainer.trainable_weights if id(weight) in ids]
    others = [w.path for w in trainer.trainable_weights if id(w) not in ids]
    assert others == (["labels/kernel"] if name == "classification" else [])
    # Labelled pairs train vectors only, not the output.
    trained = model.backbone if objective.fields == 3 else model
    assert len(shared) == len(trained.trainable_weights)
    before = [weight.numpy().copy() for weight in shared]
    batch = objective.batch(make_items(objective), rng())
    losses = cases.fit(trainer, batch, 2)
    assert losses[1] < losses[0]
    for weight, old in zip(shared, before, strict=True):
        assert (weight.numpy() != old).any(), weight.path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lm", "simbert", "classification"])
def test_one_batch_is_learned_by_heart(name):
    objective = make_objective(name)
    optimizer = keras.optimizers.Adam(0.01)
    model = model_for(objective)
    trainer = make_trainer(objective, model, optimizer, jit_compile=False)
    batch = objective.batch(make_items(objective), rng())
    losses = cases.fit(trainer, batch, 80)
    # Nothing predicts the first token of a text.
    minimum = 8 * np.log(8) / batch[2].sum() if name == "lm" else 0
    assert np.isfinite(losses).all()
    assert losses[-1] < minimum + 0.1 * losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", cases.COARSE)
def test_mixed_bfloat16(name):
    """About the loss of float32; the model computes in bfloat16, the loss does not."""
    objective = make_objective(name)
    batch = objective.batch(make_items(objective), rng())
    losses = []
    for dtype in ("float32", "mixed_bfloat16"):
        model = model_for(objective, dtype=dtype)
        trainer = make_trainer(
            objective, model, keras.optimizers.Adam(0.01), run_eagerly=True
        )
        assert trainer.dtype_policy.name == dtype
        losses.append(loss_of(trainer, batch)["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    outputs = keras.tree.flatten(trainer(batch[0]))
    kinds = {keras.backend.standardize_dtype(output.dtype) for output in outputs}
    assert ("bfloat16" in kinds) == (objective.fields != 3)
    losses = cases.fit(trainer, batch, 3)
    assert losses[-1] < losses[0]
    assert all(weight.dtype == "float32" for weight in trainer.trainable_weights)


@pytest.mark.e2e
def test_jax_trains_to_the_same_losses():
    """The same weights, batches and steps, in a process without TensorFlow."""
    variables = {"KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)}
    output = output_of(ROOT / "tests" / "objective_cases.py", **variables)
    theirs = json.loads(output.splitlines()[-1])
    assert theirs["backend"] == "jax"
    for name in cases.ELSEWHERE:
        ours = cases.fitted(name, 3, run_eagerly=True)
        assert ours[2] < ours[0], name
        np.testing.assert_allclose(theirs[name], ours, rtol=1e-4, err_msg=name)
        if f"{name} bfloat16" in theirs:
            coarse = theirs[f"{name} bfloat16"]
            np.testing.assert_allclose(coarse, ours[:2], rtol=0.1, err_msg=name)


def test_wrong_models_and_options():
    tokenizer = RoFormerTokenizer([*cases.SPECIALS, "天"])
    placed = make_model("RoFormerMaskedLM", custom_position_ids=True)
    unilm = RoFormerCausalLM.from_preset(SIM, attention="unilm")
    for objective, model, message in (
        (make_objective("mlm"), make_model("RoFormerCausalLM"), "a RoFormerMaskedLM"),
        (make_objective("simbert"), make_model("RoFormerMaskedLM"), "a RoFormerSim"),
        (CausalLM(tokenizer, LENGTH), make_model("RoFormerCausalLM"), "one vocabulary"),
        (make_objective("mlm"), placed, "texts give no position_ids"),
        # It must not see what it predicts.
        (CausalLM(unilm.tokenizer, LENGTH), unilm, "got 'unilm'"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            objective.training_model(model)
    for kind, options, message in (
        (MaskedLM, {"length": 3}, "length must be an integer of at least 4, got 3"),
        (CausalLM, {"length": 8.0}, "length must be"),
        (MaskedLM, {"rate": 1.5}, "rate must be a number from 0 to 1, got 1.5"),
        (SimBERT, {"mask_share": -1}, "mask_share must be"),
        (SimBERT, {"scale": 0}, "scale must be a finite number above 0, got 0"),
        (CoSENT, {"scale": float("inf")}, "a finite number above 0, got inf"),
        (PairClassification, {"label_sets": ((0, 1), (1, 2))}, "each once"),
        (PairClassification, {"label_sets": (0, 1)}, "label_sets must be lists"),
        (PairClassification, {"label_sets": ()}, "label_sets must be lists"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            kind(TOKENIZER, **{"length": LENGTH, **options})
    tokenizer = RoFormerTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "天"])
    for kind in (MaskedLM, SimBERT):
        with pytest.raises(VocabularyError, match=r"no \[MASK\]"):
            kind(tokenizer, LENGTH)
    CausalLM(tokenizer, LENGTH)


# === Masked LM ===


def hidden_in(batch):
    """For each row of a batch the positions that are predicted."""
    inputs, _, weights = batch
    assert set(np.unique(weights)) <= {0, 1}
    return [
        positions[row > 0]
        for positions, row in zip(inputs["masked_positions"], weights, strict=True)
    ]


@pytest.mark.parametrize("whole_word", [False, True])
def test_masked_tokens_are_15_percent_of_each_row(whole_word):
    length = 64
    objective = MaskedLM(TOKENIZER, length, whole_word=whole_word)
    generator = rng()
    items = [random_text(n, generator, whole_word) for n in range(1, length - 1)] * 3
    batch = objective.batch(items, generator)
    assert batch[1].shape == (len(items), 10)
    for (own, starts, _), positions in zip(items, hidden_in(batch), strict=True):
        ids = own[0]
        count = max(1, round(0.15 * len(ids)))
        assert len(set(positions)) == len(positions) <= 10
        assert (positions >= 1).all() and (positions <= len(ids)).all()
        if not whole_word:
            assert len(positions) == count
            continue
        chosen = set(positions - 1)
        for word in words_of(starts[0]):
            assert len(chosen & set(word)) in (0, len(word))
        # The last word may exceed the share, but not the length of the row.
        assert count <= len(positions) < count + 4 or len(positions) > 10 - 4


def test_80_10_10():
    objective = MaskedLM(TOKENIZER, 128)
    generator = rng(1)
    items = [random_text(126, generator) for _ in range(400)]
    inputs, targets, weights = objective.batch(items, generator)
    seen = np.take_along_axis(inputs["token_ids"], inputs["masked_positions"], axis=1)
    seen, targets = seen[weights > 0], targets[weights > 0]
    total = len(seen)
    assert total == 400 * 19
    plain_tokens = SIZE - FIRST_PLAIN
    assert within((seen == MASK).sum(), total, 0.8)
    # A random token may be the one that was there.
    assert within((seen == targets).sum(), total, 0.1 + 0.1 / plain_tokens)
    others = seen[(seen != MASK) & (seen != targets)]
    assert within(len(others), total, 0.1 - 0.1 / plain_tokens)
    counts = np.bincount(others, minlength=SIZE)
    assert (counts[:FIRST_PLAIN] == 0).all()
    assert (counts[FIRST_PLAIN:] > 0).all()


def test_every_token_is_as_likely_to_be_hidden():
    objective = MaskedLM(TOKENIZER, 22)
    items = [random_text(20, rng())] * 4000
    positions = np.concatenate(hidden_in(objective.batch(items, rng())))
    counts = np.bincount(positions, minlength=22)
    assert counts[0] == counts[21] == 0
    assert all(within(count, 4000, 3 / 20) for count in counts[1:21])


@pytest.mark.parametrize("whole_word", [False, True])
def test_masking_leaves_the_rest_and_the_specials_alone(whole_word):
    objective = MaskedLM(TOKENIZER, 40, whole_word=whole_word)
    generator = rng(2)
    items = []
    for _ in range(300):
        item = random_text(30, generator, words=True)
        (ids,) = item.ids
        # As packed documents, with unknown characters.
        ids[[10, 20]], ids[[5, 6, 25]] = SEP, UNK
        items.append(item)
    batch = objective.batch(items, generator)
    inputs, targets, weights = batch
    whole = np.zeros((300, 40), "int32")
    whole[:, 0], whole[:, 31] = CLS, SEP
    whole[:, 1:31] = [item.ids[0] for item in items]
    changed = inputs["token_ids"] != whole
    for row, positions in enumerate(hidden_in(batch)):
        assert (whole[row, positions] >= FIRST_PLAIN).all()
        np.testing.assert_array_equal(
            targets[row, : len(positions)], whole[row, positions]
        )
        assert set(np.flatnonzero(changed[row])) <= set(positions)
    assert changed.sum() > 0.8 * weights.sum()
    assert (inputs["segment_ids"] == 0).all()
    assert set(np.unique(inputs["token_ids"][changed])) <= {
        MASK,
        *range(FIRST_PLAIN, SIZE),
    }


def test_text_without_anything_to_hide():
    objective = MaskedLM(TOKENIZER, LENGTH, whole_word=True)
    items = [
        Item((np.array([UNK, SEP]),), (np.ones(2, bool),)),
        Item((np.zeros(0, int),)),
    ]
    _, _, weights = objective.batch(items, rng())
    assert weights.sum() == 0


def test_masked_lm_loss_equals_numpy():
    objective = make_objective("mlm", 20)
    model = make_model("RoFormerMaskedLM")
    generator = rng(3)
    items = [random_text(n, generator) for n in (18, 7, 1, 12)]
    batch = objective.batch(items, generator)
    inputs, targets, weights = batch
    logits = model({name: inputs[name] for name in ("token_ids", "segment_ids")})
    logits = np.take_along_axis(
        np.asarray(logits), inputs["masked_positions"][..., None], axis=1
    )
    trainer = make_trainer(objective, model, run_eagerly=True)
    np.testing.assert_allclose(trainer(inputs), logits, atol=1e-5)
    logs = loss_of(trainer, batch)
    assert logs["loss"] == pytest.approx(
        plain.token_loss(targets, logits, weights), abs=1e-5
    )
    right = (logits.argmax(-1) == targets)[weights > 0]
    assert logs["accuracy"] == pytest.approx(right.mean(), abs=1e-6)


# === Causal LM ===


def test_causal_lm_predicts_the_next_token():
    objective = CausalLM(TOKENIZER, 7)
    inputs, targets, weights = objective.batch(
        [Item((np.arange(9, 9 + count),)) for count in (3, 4, 5)], rng()
    )
    assert inputs["token_ids"].tolist() == [
        [CLS, 9, 10, 11, SEP, 0, 0],
        [CLS, 9, 10, 11, 12, SEP, 0],
        [CLS, 9, 10, 11, 12, 13, SEP],
    ]
    assert targets.tolist() == [
        [9, 10, 11, SEP, 0, 0, 0],
        [9, 10, 11, 12, SEP, 0, 0],
        [9, 10, 11, 12, 13, SEP, 0],
    ]
    # That a row is full is no reason for a text to end.
    assert weights.tolist() == [
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0, 0],
    ]


def test_causal_lm_loss_equals_numpy():
    objective = CausalLM(RoFormerTokenizer.from_preset(GPT), 16)
    model = RoFormerCausalLM.from_preset(GPT)
    items = objective.encoder(model.tokenizer, 16)(("今天天气不错。", "我爱北京"))
    batch = objective.batch(items, rng())
    inputs, targets, weights = batch
    expected = plain.token_loss(targets, np.asarray(model(inputs)), weights)
    trainer = make_trainer(objective, model, run_eagerly=True)
    assert loss_of(trainer, batch)["loss"] == pytest.approx(expected, abs=1e-5)


# === SimBERT ===


def pair_item(generator, *counts):
    sides = [random_text(n, generator, True) for n in counts]
    ids, starts, _ = zip(*sides, strict=True)
    return Item(*(tuple(np.array(own) for (own,) in part) for part in (ids, starts)))


def test_a_pair_gives_two_rows():
    objective = SimBERT(TOKENIZER, 6, mask_share=0)
    a, b = np.array([9, 10]), np.array([11, 12, 13])
    inputs, targets, weights = objective.batch([Item((a, b))], rng())
    assert inputs["token_ids"].tolist() == [
        [CLS, 9, 10, SEP, 11, 12, 13, SEP, 0, 0, 0, 0],
        [CLS, 11, 12, 13, SEP, 9, 10, SEP, 0, 0, 0, 0],
    ]
    assert inputs["segment_ids"].tolist() == [
        [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0],
    ]
    assert inputs["predicting_positions"].tolist() == [[3, 4, 5, 6, 0], [4, 5, 6, 0, 0]]
    assert targets["logits"].tolist() == [[11, 12, 13, SEP, 0], [9, 10, SEP, 0, 0]]
    assert weights["logits"].tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]
    assert targets["vectors"].tolist() == [1, 0]


@pytest.mark.parametrize("whole_word", [True, False])
def test_words_of_half_of_the_first_texts_are_hidden(whole_word):
    objective = SimBERT(TOKENIZER, 42, whole_word=whole_word)
    generator = rng(4)
    items = [pair_item(generator, 40, 40) for _ in range(600)]
    for (a, _), *_ in items:
        a[[3, 4]] = UNK
    inputs, _, _ = objective.batch(items, generator)
    plain_rows, _, _ = SimBERT(TOKENIZER, 42, mask_share=0).batch(items, rng())
    changed = inputs["token_ids"] != plain_rows["token_ids"]
    # The second text, which is predicted, and all specials stay.
    assert not changed[:, 41:].any() and not changed[:, 0].any()
    assert not changed[plain_rows["token_ids"] == UNK].any()
    new = inputs["token_ids"][changed]
    assert set(new) <= {MASK, *range(FIRST_PLAIN, SIZE)}
    # A row in which no word is drawn looks as one that was left alone.
    starts = [s for item in items for s in item.starts]
    draws = [int(s.sum()) if whole_word else 40 for s in starts]
    hidden_share = 0.15 * (0.8 + 0.1 * (1 - 1 / (SIZE - FIRST_PLAIN)))
    untouched = np.mean([(1 - hidden_share) ** count for count in draws])
    touched = changed.any(axis=1)
    # Words of nothing but [UNK] make a little difference.
    assert abs(touched.mean() - 0.5 * (1 - untouched)) < 0.06
    assert abs((new == MASK).mean() - 0.8 / (0.8 + 0.1)) < 0.03
    if whole_word:
        ids = plain_rows["token_ids"]
        for row in np.flatnonzero(touched):
            for word in words_of(starts[row]):
                word = 1 + word[ids[row, 1 + word] != UNK]
                masked = inputs["token_ids"][row, word] == MASK
                assert masked.all() or not masked.any()


def test_mask_rate_is_of_words():
    objective = SimBERT(TOKENIZER, 42, mask_share=1, mask_rate=0.4)
    generator = rng(5)
    items = [pair_item(generator, 40, 40) for _ in range(300)]
    token_ids = objective.batch(items, generator)[0]["token_ids"]
    masked = total = 0
    for row, starts in enumerate(s for item in items for s in item.starts):
        words = words_of(starts)
        masked += sum((token_ids[row, 1 + word] == MASK).all() for word in words)
        total += len(words)
    assert within(masked, total, 0.4 * 0.8)


def test_the_vector_of_a_row_is_that_of_its_first_text():
    """The first position does not see the second segment."""
    objective = make_objective("simbert", mask_share=0)
    model = make_model("RoFormerSim")
    trainer = objective.training_model(model)
    inputs, _, _ = objective.batch(make_items(objective), rng())
    model.tokenizer = TOKENIZER
    texts = [text for pair in PAIRS for text in pair]
    vectors = model.encode(texts)
    computed = plain.unit(trainer(inputs)["vectors"])
    np.testing.assert_allclose(computed, vectors, atol=1e-5)
    assert np.abs(computed[0] - computed[1]).max() > 0.01


# === Against bert4keras ===


@pytest.fixture(scope="module")
def golden():
    return load_golden(ROOT / "tests" / "data" / "pretraining" / "losses.npz")


def from_golden(metadata, name):
    return RoFormerSim.from_preset(
        CHECKPOINTS / f"{metadata[name]}.zip",
        layer_norm_epsilon=metadata["layer_norm_epsilon"],
        dropout=0.0,
        attention_dropout=0.0,
    )


def golden_batch(metadata, objective, tokenizer):
    encode = objective.encoder(tokenizer, metadata["length"])
    records = metadata["pairs"]
    if objective.fields == 3:
        labels = map(str, metadata["labels"])
        records = [(*pair, n) for pair, n in zip(records, labels, strict=True)]
    items = [item for record in records for item in encode(tuple(record))]
    return objective.batch(items, rng())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simbert", "distillation", "classification"])
def test_losses_equal_bert4keras(name, golden):
    """Texts in, loss out: its rows, its model and its operations."""
    expected, metadata = golden
    model = from_golden(metadata, "source")
    kind, options = OBJECTIVES[name], {"mask_share": 0}
    rows = {"token_ids": "token_ids", "segment_ids": "segment_ids"}
    losses = {"logits_loss": "seq2seq", "vectors_loss": "similarity"}
    if name == "distillation":
        teacher = from_golden(metadata, "teacher")
        options.update(teacher=teacher, teacher_tokenizer=teacher.tokenizer)
        rows = {"token_ids": "token_ids", "teacher_token_ids": "teacher_ids"}
        losses = {"logits_loss": "seq2seq", "similarities_loss": "distillation"}
    elif name == "classification":
        options, rows = {}, {"token_ids": "text_ids"}
        losses = {"loss": "classification"}
    objective = kind(model.tokenizer, metadata["length"], **options)
    batch = golden_batch(metadata, objective, model.tokenizer)
    for ours, theirs in rows.items():
        np.testing.assert_array_equal(batch[0][ours], expected[theirs])
    trainer = make_trainer(objective, model, run_eagerly=True)
    if name == "classification":
        trainer.get_layer("labels").kernel.assign(expected["kernel"])
    logs = loss_of(trainer, batch)
    total = sum(expected[theirs] for theirs in losses.values())
    assert logs["loss"] == pytest.approx(total, abs=1e-5)
    for ours, theirs in losses.items():
        assert logs[ours] == pytest.approx(expected[theirs], abs=1e-5)
    outputs = trainer(batch[0])
    if name == "simbert":
        cosines = plain.cosines(outputs["vectors"])
        np.fill_diagonal(cosines, -2)
        is_right = cosines.argmax(-1) == batch[1]["vectors"]
        assert logs["vectors_accuracy"] == pytest.approx(is_right.mean())
    elif name == "classification":
        # Of the labels 0 and 1, or of the others.
        best = [
            row[:2].argmax() if label < 2 else 2 + row[2:].argmax()
            for row, label in zip(np.asarray(outputs), metadata["labels"], strict=True)
        ]
        is_right = np.equal(best, metadata["labels"])
        assert logs["accuracy"] == pytest.approx(is_right.mean())


# === Distillation ===


def test_the_teacher_sees_first_texts_whole_and_by_its_own_tokenizer():
    objective = make_objective("distillation", mask_share=1, mask_rate=1)
    inputs, _, _ = objective.batch(make_items(objective), rng())
    assert (inputs["token_ids"] == MASK).any(axis=1).mean() > 0.5
    texts = [text for pair in PAIRS for text in pair]
    expected = TEACHER_TOKENIZER(texts, max_length=LENGTH, padding="max_length")
    np.testing.assert_array_equal(inputs["teacher_token_ids"], expected["token_ids"])


def test_the_teacher_stays_as_it_is():
    """Its weights, and its vectors in training, where others are dropped."""
    teacher = make_model("RoFormerSim", TEACHER_TOKENIZER, 1, dropout=0.5)
    model, losses = make_model("RoFormerSim"), []
    for source in (teacher, teacher.backbone):
        objective = make_objective("distillation", teacher=source)
        batch = objective.batch(make_items(objective), rng())
        trainer = make_trainer(objective, model, run_eagerly=True)
        losses.append(loss_of(trainer, batch)["loss"])
    assert losses[0] == losses[1]
    before = teacher.get_weights()
    vectors = [trainer(batch[0], training=True)["similarities"] for _ in range(2)]
    np.testing.assert_array_equal(*vectors)
    cases.fit(trainer, batch, 2)
    for weight, old in zip(teacher.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)


def test_wrong_teachers():
    model = make_model("RoFormerSim")
    for teacher in (model, model.backbone):
        objective = make_objective(
            "distillation", teacher=teacher, teacher_tokenizer=TOKENIZER
        )
        with pytest.raises(ConfigurationError, match="another model"):
            objective.training_model(model)
    with pytest.raises(ConfigurationError, match="one vocabulary"):
        make_objective("distillation", teacher=model)
    plain_encoder = RoFormerBackbone(model.config.replace(pooler_activation=None))
    with pytest.raises(ConfigurationError, match="must have a pooler"):
        make_objective(
            "distillation", teacher=plain_encoder, teacher_tokenizer=TOKENIZER
        )


# === Labelled pairs ===


def test_labelled_pairs_give_rows_side_by_side():
    a, b = np.array([9, 10]), np.array([11, 12, 13])
    first, second = [CLS, 9, 10, SEP, 0, 0], [CLS, 11, 12, 13, SEP, 0]
    for objective in (CoSENT(TOKENIZER, 6), PairClassification(TOKENIZER, 6)):
        inputs, labels, *weights = objective.batch(
            [Item((a, b), None, 1.0), Item((b, a), None, 4.0)], rng()
        )
        assert inputs["token_ids"].tolist() == [first, second, second, first]
        assert labels.tolist() == [1, 4]
        # CoSENT is one number for all rows.
        is_weighted = isinstance(objective, PairClassification)
        assert [one.tolist() for one in weights] == [[1, 1]] * is_weighted


def test_labels_that_are_in_no_set():
    objective = PairClassification(TOKENIZER, LENGTH, [[0, 1]])
    encode = objective.encoder(TOKENIZER, LENGTH)
    assert encode(("天", "地", "1"))[0].label == 1
    for label in ("2", "0.5", "-1"):
        with pytest.raises(ConfigurationError, match=f"one of 0, 1, got '{label}'"):
            encode(("天", "地", label))


def test_cosent_loss_equals_numpy():
    objective = make_objective("cosent", scale=10.0)
    model = make_model("RoFormerSim")
    batch = objective.batch(make_items(objective), rng())
    vectors = plain.unit(model(batch[0])["pooled_output"])
    similarities = (vectors[::2] * vectors[1::2]).sum(-1)
    trainer = make_trainer(objective, model, run_eagerly=True)
    np.testing.assert_allclose(trainer(batch[0]), similarities, atol=1e-6)
    loss = loss_of(trainer, batch)["loss"]
    expected = plain.cosent(cases.LABELS, similarities, 10.0)
    assert loss == pytest.approx(expected, abs=1e-5)
