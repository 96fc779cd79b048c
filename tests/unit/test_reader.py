"""Every kind of source gives the same tensors; every bad one says what is wrong.

That the zips give what TensorFlow reads of them is tested in `model/test_reader.py`.
"""

import json
import random
import shutil
import zipfile

import ml_dtypes
import numpy as np
import pytest
from common import (
    CHARACTER,
    GPT,
    SAVED,
    SMALL,
    V2,
    V2_EMBEDDING_SIZE,
    write_file,
    zipped,
    zipped_json,
)
from safetensors.numpy import save_file
from sources import (
    SHARD,
    assert_same,
    copied,
    listing,
    packed,
    tensors_of,
    unpacked,
    write_checkpoint,
)

from roformer_keras import convert
from roformer_keras.base.config import RoFormerConfig
from roformer_keras.base.errors import (
    CheckpointError,
    ConfigurationError,
    RoFormerError,
    SourceError,
    VocabularyError,
)
from roformer_keras.conversion.checkpoint import model_of, weights_to_read
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.conversion.weights import model_heads
from roformer_keras.hub.catalog import resolve

# Nothing may be left in the temporary folder.
pytestmark = pytest.mark.usefixtures("scratch")

CONFIG = zipped_json(SMALL)
VOCABULARY = zipped(SMALL, "vocab.txt").decode().split()
TENSORS = tensors_of(SMALL)
STRANGERS = ("__MACOSX/._bert_model.ckpt.index", ".DS_Store", "readme.txt")


def load(source, model="RoFormerSim", config=None, ignore=(), **changes):
    """The configuration of a model, whose weights are read as `from_preset` does."""
    with open_checkpoint(resolve(source), config) as checkpoint:
        fields = checkpoint.config_for(model, **changes)
        heads = model_heads(model, fields)
        for row in weights_to_read(checkpoint, fields, heads, ignore):
            checkpoint.weight(row.name)
    return fields


def message_of(error, action, *arguments, **options):
    with pytest.raises(error) as caught:
        action(*arguments, **options)
    assert type(caught.value) is error
    return str(caught.value)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A function that copies the small checkpoint, in another format, to a folder."""
    folder = tmp_path_factory.mktemp("converted")

    def make(name, target):
        if not (folder / name).exists():
            convert(SMALL, folder / name, verbose=0)
        return copied(folder / name, target)

    return make


# === Sources that work ===


def form_of(name, folder, converted):
    """The small zip in another form; the source and its configuration, or None."""
    files = unpacked(SMALL, folder / "unpacked")
    zips = {
        "stored": {},
        "deflated": {"method": zipfile.ZIP_DEFLATED},
        "renamed": {"prefix": "任意 folder/"},
        "flat": {"prefix": ""},
        "strangers": {"prefix": f"{files.name}/", "strangers": STRANGERS},
    }
    if name in zips:
        options = {"prefix": f"{files.name}/", **zips[name]}
        return packed(files, folder / "x.zip", **options), None
    if name == "folder":
        return files, None
    if name == "outer-folder":
        return files.parent, None
    if name in ("prefix", "index"):
        suffix = ".index" if name == "index" else ""
        return files / f"bert_model.ckpt{suffix}", None
    if name in ("unilm-pool", "unilm-pool.h5", "unilm-pool-model.h5"):
        return SAVED / name, CONFIG
    if name == "object-prefix":
        return SAVED / "unilm-pool" / "best_model.weights", CONFIG
    if name == "h5-with-config":
        shutil.copy(SAVED / "unilm-pool.h5", folder / "best_model.weights")
        shutil.copy(files / "bert_config.json", folder)
        return folder / "best_model.weights", None
    if name == "h5-in-zip":
        for part in files.glob("bert_model*"):
            part.unlink()
        shutil.copy(SAVED / "unilm-pool.h5", files / "best_model.h5")
        return packed(files, folder / "x.zip"), None
    wrapped, _, name = name.rpartition("zipped ")
    source = converted(name, folder)
    if wrapped and source.is_file():
        (folder / "alone").mkdir()
        source = source.rename(folder / "alone" / name).parent
    if wrapped:
        return packed(source, folder / "x"), None
    return source, CONFIG if name.endswith(".h5") else None


FORMS = (
    *("stored", "deflated", "renamed", "flat", "strangers", "folder", "outer-folder"),
    *("prefix", "index", "unilm-pool", "unilm-pool.h5", "unilm-pool-model.h5"),
    *("object-prefix", "h5-with-config", "h5-in-zip", "x.zip", "x.keras"),
    *("x.weights.h5", "x.safetensors", "preset", "zipped preset"),
    "zipped x.safetensors",
)


def test_every_form_gives_the_same_tensors_and_configuration(tmp_path, converted):
    """So every model of them is the same."""
    expected = load(SMALL)
    for name in FORMS:
        (tmp_path / name).mkdir()
        source, config = form_of(name, tmp_path / name, converted)
        assert_same(tensors_of(source, config=config), TENSORS)
        assert load(source, config=config) == expected, name


HEADS_OF = {"encoder": (), "lm": ("mlm",), "unilm": ("pooler", "mlm")}


def test_what_users_saved_holds_the_tensors_of_the_zip():
    for name in sorted(path.name for path in SAVED.iterdir() if "v2" not in path.name):
        if name == "unilm-pool.weights.h5":
            message_of(CheckpointError, load, SAVED / name, config=CONFIG)
            continue
        with open_checkpoint(SAVED / name, CONFIG) as checkpoint:
            tensors = {n: np.array(t.read()) for n, t in checkpoint.tensors.items()}
            config, unexpected = checkpoint.config, checkpoint.unexpected
            stem = name.split("-")[0].removesuffix(".h5")
            of_condition = ("mlm",) if name == "condition-hidden.h5" else ()
            assert checkpoint.heads == HEADS_OF.get(stem, of_condition), name
        shared = {n: value for n, value in tensors.items() if n in TENSORS}
        assert_same(shared, {n: TENSORS[n] for n in shared})
        assert {n for n in TENSORS if n.startswith("bert/e")} <= set(shared), name
        others = set(tensors) - set(shared)
        if name.startswith("condition"):
            assert unexpected == ()
            assert config.layer_norm_cond_size == 5
            width = 7 if "hidden" in name else None
            assert config.layer_norm_cond_hidden_size == width
            # Five norms, and that of the head; two or three kernels each.
            assert len(others) == (6 * 3 if "hidden" in name else 5 * 2)
        else:
            assert others == set(unexpected)
            count = 2 if "dense" in name or "nested" in name else 0
            assert len(others) == count, name


def test_the_mapping_that_only_a_users_file_holds():
    config = zipped_json(V2_EMBEDDING_SIZE)
    tensors = tensors_of(SAVED / "v2-embedding-size-mlm.h5", config=config)
    mapping = tensors.pop("cls/predictions/output_mapping/kernel")
    assert mapping.shape == (24, 16)
    assert_same(tensors, tensors_of(V2_EMBEDDING_SIZE))


def test_float16_is_read_as_it_is_stored(tmp_path):
    halves = {n: value.astype("float16") for n, value in TENSORS.items()}
    for name in ("x.zip", "x.keras", "x.weights.h5", "x.safetensors"):
        source = convert(SMALL, tmp_path / name, dtype="float16", verbose=0)
        assert_same(tensors_of(source, config=CONFIG), halves)


def test_bfloat16_safetensors_of_elsewhere(tmp_path):
    path = tmp_path / "x.safetensors"
    values = {n: value.astype(ml_dtypes.bfloat16) for n, value in TENSORS.items()}
    floats = {n: value.astype("float32") for n, value in values.items()}
    save_file(values, path)
    tensors = tensors_of(path, config=CONFIG)
    assert_same({n: v.astype("float32") for n, v in tensors.items()}, floats)
    load(path, config=CONFIG)
    made = convert(path, tmp_path / "y.keras", config=CONFIG, verbose=0)
    assert_same(tensors_of(made), floats)


def test_a_config_that_is_passed_goes_before_the_stored_one(tmp_path, converted):
    changed = {**CONFIG, "hidden_dropout_prob": 0.5}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(changed), encoding="utf-8-sig")
    whole = RoFormerConfig.from_bert_config(changed, attention="unilm")
    for name in ("x.zip", "x.keras", "x.safetensors", "preset"):
        source = converted(name, tmp_path)
        for config in (changed, path, str(path)):
            fields = load(source, config=config)
            assert (fields.dropout, fields.attention) == (0.5, "unilm")
        with open_checkpoint(source, whole) as checkpoint:
            assert checkpoint.config == whole


def test_a_vocabulary_that_is_passed_goes_before_the_stored_one(tmp_path):
    path = tmp_path / "vocab.txt"
    tokens = [f"t{i}" for i in range(260)]
    path.write_text("\n".join(tokens), encoding="utf-8")
    with open_checkpoint(SMALL, vocabulary=path) as checkpoint:
        assert checkpoint.vocabulary == tuple(tokens)
    with (
        pytest.raises(VocabularyError, match=r"there is no file .*nowhere"),
        open_checkpoint(SMALL, vocabulary=tmp_path / "nowhere"),
    ):
        pass


def test_gpt_is_told_by_its_folder_where_the_file_has_no_name(tmp_path):
    folder = unpacked(GPT, tmp_path)
    for part in ("", "bert_model.ckpt", "bert_model.ckpt.index"):
        with open_checkpoint(folder / part) as checkpoint:
            assert model_of(checkpoint) == "RoFormerCausalLM"


def test_optimizer_slots_and_counters_are_passed_over(tmp_path):
    state = {"global_step": np.array(7), "beta1_power": np.float32(0.9)}
    for name, value in TENSORS.items():
        for slot in ("adam_m", "adam_v", "Adam", "Adam_1"):
            state[f"{name}/{slot}"] = np.zeros_like(value)
    folder = write_checkpoint(tmp_path / "x", {**TENSORS, **state}, CONFIG, VOCABULARY)
    with open_checkpoint(folder) as checkpoint:
        assert set(checkpoint.training_state) == set(state)
        assert set(checkpoint.tensors) == set(TENSORS)
    load(folder)
    made = convert(folder, tmp_path / "x.keras", verbose=0)
    assert_same(tensors_of(made), TENSORS)


# === Sources that are refused ===

INTERMEDIATE = "bert/encoder/layer_1/intermediate/dense/kernel"
QUERY = "bert/encoder/layer_0/attention/self/query/kernel"
QUERY_BIAS = "bert/encoder/layer_0/attention/self/query/bias"
BIAS = "bert/pooler/dense/bias"
POSITIONS = "bert/embeddings/position_embeddings"
EXTRA = "bert/encoder/layer_0/extra"

# Rows have the class of the error, a function of a folder that makes the bad source,
# and parts of the message. More are in `hostile`: damage and lies of each format.


def source(tensors=None, config=None, vocabulary=VOCABULARY):
    """A maker of the small checkpoint, with changed or removed (None) values."""

    def make(folder):
        changed = [{**TENSORS, **(tensors or {})}, {**CONFIG, **(config or {})}]
        parts = [{k: v for k, v in d.items() if v is not None} for d in changed]
        return write_checkpoint(folder / "checkpoint", *parts, vocabulary)

    return make


def shaped(*shape):
    return np.zeros(shape, "float32")


def with_file(name, content):
    """A maker of the small checkpoint with another file: a function of it, or None."""

    def make(folder):
        path = source()(folder) / name
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content(path.read_bytes()))
        return path.parent

    return make


def cut(data):
    return data[:-1]


# --- Tensors ---


def v2_with_biases_in_one_layer(folder):
    # One norm is enough to be v1, and then nothing else may be missing.
    tensors = tensors_of(V2) | {QUERY_BIAS: shaped(32), f"{QUERY_BIAS}2": shaped(1)}
    return write_checkpoint(folder / "x", tensors, zipped_json(V2))


TENSOR_ROWS = [
    ({INTERMEDIATE: None}, f"missing {INTERMEDIATE} (8, 32)"),
    ({"bert/embeddings/word_embeddings": None}, "missing bert/embeddings/word_emb"),
    ({EXTRA: shaped(3)}, f"unexpected {EXTRA} (3,)", "with ignore='bert/enc"),
    ({POSITIONS: shaped(512, 8)}, f"unexpected {POSITIONS} (512, 8)"),
    ({"adamant/kernel": shaped(2)}, "unexpected adamant/kernel (2,)"),
    ({"slow_path/kernel": shaped(2)}, "unexpected slow_path/kernel (2,)"),
    ({QUERY: shaped(8, 9)}, f"{QUERY} has shape (8, 9), expected (8, 8)"),
    ({INTERMEDIATE: shaped(32, 8)}, f"{INTERMEDIATE} has shape (32, 8), expected"),
    ({QUERY_BIAS: np.float32(1)}, f"{QUERY_BIAS} has shape (), expected (8,)"),
    ({BIAS: np.zeros(8, "int32")}, f"{BIAS} must be a float tensor", "got int32"),
    ({QUERY: np.zeros((8, 8), "bool")}, f"{QUERY} must be a", "got bool"),
    ({QUERY: np.zeros((8, 8), "complex64")}, f"{QUERY} must be", "got complex64"),
    ({BIAS: None}, f"missing {BIAS} (8,)"),
    ({"cls/predictions/output_bias": None}, "cls/predictions/output_bias (260,)"),
    ({"cls/predictions/output_weights": shaped(9, 8)}, "/output_weights (9, 8)"),
]
TENSOR_ROWS = [(CheckpointError, source(row[0]), *row[1:]) for row in TENSOR_ROWS]
TENSOR_ROWS += [
    (CheckpointError, v2_with_biases_in_one_layer, f"unexpected {QUERY_BIAS}")
]

# --- Configuration and vocabulary ---

CONFIG_ROWS = [
    ({"num_hidden_layers": 3}, "missing bert/encoder/layer_2/attention/self/query/ker"),
    ({"num_hidden_layers": 1}, "unexpected bert/encoder/layer_1/attention/output/den"),
    ({"num_hidden_layers": 10**9}, "has 1,000,000,000 layers, but there are only 43 t"),
    ({"hidden_size": 16}, "/query/kernel has shape (8, 8), expected (16, 16)"),
    ({"vocab_size": 261}, "word_embeddings has shape (260, 8), expected (261, 8)"),
    ({"vocab_size": 10**12}, "has shape (260, 8), expected (1000000000000, 8)"),
]
CONFIG_ROWS = [
    (CheckpointError, source(config=fields), message) for fields, message in CONFIG_ROWS
]
LACKING = dict.fromkeys(("vocab_size", "hidden_size", "hidden_act"))
CONFIG_ROWS += [
    (ConfigurationError, make, message)
    for make, message in (
        (source(config=LACKING), "lacks vocab_size, hidden"),
        (with_file("bert_config.json", None), "comes without a bert_config.json: put"),
        (lambda folder: copied(SAVED / "lm.h5", folder), "comes without a bert_config"),
    )
]

# --- Files of a checkpoint ---

INDEX = "bert_model.ckpt.index"
MISSPELT = "chinese_roformer-chra_L-6_H-384_A-6"
ABSENT = "chinese_roformer-v2-char_L-24_H-1024_A-16"
OTHER = "holds HDF5 weights of another kind of model"
LAST = "tensor 'cls/predictions/transform/dense/kernel'"


def flipped(data):
    """A bit of a tensor is another."""
    data = bytearray(data)
    data[data.find(TENSORS[QUERY].tobytes()) + 5] ^= 1
    return bytes(data)


flipped_data = with_file(SHARD, flipped)


def of_another_model(folder):
    shutil.copy(SAVED / "unilm-pool.weights.h5", folder)
    write_file(folder / "bert_config.json", CONFIG)
    return folder / "unilm-pool.weights.h5"


def zipped_with(method):
    return lambda folder: packed(flipped_data(folder), folder / "x.zip", method=method)


FILE_ROWS = [
    (CheckpointError, make, f"tensor '{QUERY}' does not match its checksum")
    for make in (
        flipped_data,
        zipped_with(zipfile.ZIP_STORED),
        zipped_with(zipfile.ZIP_DEFLATED),
    )
]
FILE_ROWS += [
    (CheckpointError, with_file(SHARD, cut), LAST, "truncated"),
    (CheckpointError, of_another_model, OTHER, "neither bert4keras's layers nor"),
]
FILE_ROWS += [
    (SourceError, make, *parts)
    for make, *parts in (
        (with_file(SHARD, None), f"{SHARD} is missing next to {INDEX}"),
        (lambda folder: MISSPELT, "not in the catalogue", "did you mean chinese_rofo"),
        (lambda folder: ABSENT, f"run `roformer-keras download {ABSENT}"),
    )
]

BAD = {"tensors": TENSOR_ROWS, "configuration": CONFIG_ROWS, "files": FILE_ROWS}


@pytest.mark.parametrize("kind", BAD)
def test_bad_sources_say_what_is_wrong_and_leave_nothing(kind, tmp_path):
    for number, (error, make, *parts) in enumerate(BAD[kind]):
        folder = tmp_path / str(number)
        folder.mkdir()
        bad_source = make(folder)
        is_v2 = make is v2_with_biases_in_one_layer
        model = "RoFormerCausalLM" if is_v2 else "RoFormerSim"
        before = listing(folder)
        for action, argument in (
            (load, model),
            (convert, folder / "target.safetensors"),
        ):
            message = message_of(error, action, bad_source, argument)
            assert [part for part in parts if part not in message] == [], message
            assert listing(folder) == before


NO_MLM = "no mlm head: missing cls/predictions"
NSP_FIELDS = {"pooler_activation": "tanh", "with_nsp": True}
MISFITS = [
    (CHARACTER, "RoFormerSim", {}, r"no pooler head: .*\(32, 32\).*initialize_heads"),
    (SAVED / "encoder.h5", "RoFormerMaskedLM", {"config": CONFIG}, f"{NO_MLM}/transfo"),
    (V2_EMBEDDING_SIZE, "RoFormerMaskedLM", {}, f"{NO_MLM}/output_mapping/kernel"),
    (CHARACTER, "RoFormerMaskedLM", NSP_FIELDS, "(?s)no pooler.*no nsp head"),
    (SMALL, "RoFormerBackbone", {"model_type": "roformer_v2"}, "holds roformer weig"),
    (V2, "RoFormerMaskedLM", {"model_type": "roformer"}, "holds roformer_v2 weights"),
    (SMALL, "RoFormerBackbone", {"embedding_dim": 4}, r"\(260, 8\), expected \(260, 4"),
    (CHARACTER, "RoFormerBackbone", {"num_layers": 3}, "missing bert/encoder/layer_2/"),
    (CHARACTER, "RoFormerBackbone", {"num_layers": 10**6}, "1,000,000 layers"),
]


def test_a_model_that_does_not_fit_the_weights():
    for source, model, options, message in MISFITS:
        with pytest.raises(CheckpointError, match=message):
            load(source, model, **options)


# === Patterns of what to pass over ===


def test_layers_of_the_users_own_are_passed_over_by_name():
    expected = load(SMALL, "RoFormerBackbone")
    for source, ignore in (
        ("encoder-dense.h5", "dense/*"),
        ("encoder-dense.h5", ["dense/dense/kernel:0", "dense/dense/bias:0"]),
        ("encoder-dense", ("layer_with_weights-11/*",)),
        ("encoder-nested-model.h5", iter(["dense/*"])),
    ):
        fields = load(SAVED / source, "RoFormerBackbone", CONFIG, ignore)
        assert fields == expected


def test_a_pattern_that_matches_less_leaves_the_others_unexpected():
    for ignore in ("dens", "d*x", ["dense/dense/kernel:0"], "[dense]"):
        arguments = (SAVED / "encoder-dense.h5", "RoFormerBackbone", CONFIG, ignore)
        message = message_of(CheckpointError, load, *arguments)
        has_kernel = "kernel" in str(ignore)
        assert "unexpected dense/dense/bias:0 (2,)" in message
        assert message.count("dense/dense/kernel:0 (8, 2)") == (not has_kernel)
        hint = "bias" if has_kernel else "kernel"
        assert f"with ignore='dense/dense/{hint}:0'" in message


def test_nothing_that_the_model_needs_can_be_passed_over(tmp_path):
    bad_source = source({INTERMEDIATE: None})(tmp_path)
    arguments = (bad_source, "RoFormerBackbone")
    message = message_of(CheckpointError, load, *arguments, ignore="*")
    assert f"missing {INTERMEDIATE}" in message


# === Damage at random ===


@pytest.mark.parametrize("name", ["x.zip", "x.keras"])
def test_nothing_but_the_right_tensors_is_read_of_a_damaged_file(
    name, tmp_path, converted
):
    """Formats without checksums are fuzzed in `e2e/test_fuzz.py`."""
    path = converted(name, tmp_path)
    whole, chance, refused = path.read_bytes(), random.Random(name), 0
    for _ in range(50):
        damaged = bytearray(whole)
        if chance.random() < 0.3:
            del damaged[chance.randrange(len(damaged)) :]
        else:
            for _ in range(chance.choice([1, 4, 30])):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            assert_same(tensors_of(path), TENSORS)
        except RoFormerError:
            refused += 1
    assert refused > 17
