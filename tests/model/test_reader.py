"""Every kind of source gives the same tensors; every bad one says what is wrong.

The truth is what TensorFlow reads of the checkpoint that the real bert4keras wrote.
"""

import json
import os
import random
import shutil
import tempfile
import zipfile

import h5py
import numpy as np
import pytest
from common import (
    CHARACTER,
    CHECKPOINTS,
    GPT,
    NSP,
    SAVED,
    SIM,
    SMALL,
    V2,
    V2_EMBEDDING_SIZE,
    zipped,
    zipped_json,
)
from safetensors.numpy import load_file, save_file
from sources import (
    SHARD,
    assert_same,
    copied,
    listing,
    outputs,
    packed,
    tensorflow_tensors,
    tensors_of,
    unpacked,
    write_checkpoint,
)

from roformer_keras import (
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerSim,
    convert,
)
from roformer_keras.config import RoFormerConfig
from roformer_keras.conversion.convert import model_of
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.errors import (
    CheckpointError,
    ConfigurationError,
    RoFormerError,
    SourceError,
    VocabularyError,
)

CONFIG = zipped_json(SMALL)
VOCABULARY = zipped(SMALL, "vocab.txt").decode().split()
STRANGERS = ("__MACOSX/._bert_model.ckpt.index", ".DS_Store", "readme.txt")


@pytest.fixture(autouse=True)
def scratch(tmp_path_factory, monkeypatch):
    """A temporary folder of its own: what is left in it after a test is a leak."""
    folder = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert os.listdir(folder) == []


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    """The tensors of the small zip, as TensorFlow reads them."""
    folder = unpacked(SMALL, tmp_path_factory.mktemp("truth"))
    return tensorflow_tensors(folder / "bert_model.ckpt")


@pytest.fixture(scope="module")
def sim():
    return RoFormerSim.from_preset(SMALL)


# === Sources that work ===


def form_of(name, folder):
    """The small zip in one of its forms; the source and what else has to be given."""
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
        return packed(files, folder / "x.zip", **options), {}
    if name == "folder":
        return files, {}
    if name == "outer-folder":
        return files.parent, {}
    if name in ("prefix", "index"):
        suffix = ".index" if name == "index" else ""
        return files / f"bert_model.ckpt{suffix}", {}
    if name in ("unilm-pool", "unilm-pool.h5", "unilm-pool-model.h5"):
        return SAVED / name, {"config": CONFIG}
    if name == "object-prefix":
        return SAVED / "unilm-pool" / "best_model.weights", {"config": CONFIG}
    if name == "h5-beside":
        shutil.copy(SAVED / "unilm-pool.h5", folder / "best_model.weights")
        shutil.copy(files / "bert_config.json", folder)
        return folder / "best_model.weights", {}
    if name == "h5-in-zip":
        for part in files.glob("bert_model*"):
            part.unlink()
        shutil.copy(SAVED / "unilm-pool.h5", files / "best_model.h5")
        return packed(files, folder / "x.zip"), {}
    if name == "weights-of-keras":
        RoFormerSim.from_preset(SMALL).save_weights(folder / "x.weights.h5")
        return folder / "x.weights.h5", {"config": files / "bert_config.json"}
    if name == "keras-of-keras":
        RoFormerSim.from_preset(SMALL).save(folder / "x.keras")
        return folder / "x.keras", {}
    if name == "preset-of-model":
        RoFormerSim.from_preset(SMALL).save_to_preset(folder / "preset")
        return folder / "preset", {}
    wrapped, _, name = name.rpartition("zipped ")
    source = convert(SMALL, folder / "made" / name, verbose=0)
    if wrapped:
        return packed(source if source.is_dir() else source.parent, folder / "x"), {}
    if name.endswith(".h5"):
        return source, {"config": CONFIG}
    return source, {}


FORMS = (
    *("stored", "deflated", "renamed", "flat", "strangers", "folder", "outer-folder"),
    *("prefix", "index", "unilm-pool", "unilm-pool.h5", "unilm-pool-model.h5"),
    *("object-prefix", "h5-beside", "h5-in-zip", "weights-of-keras", "keras-of-keras"),
    *("preset-of-model", "x.zip", "x.keras", "x.weights.h5", "x.safetensors", "preset"),
    *("zipped preset", "zipped x.safetensors"),
)


@pytest.mark.filterwarnings("ignore:__array__ implementation")
@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_tensors_and_outputs(name, tmp_path, truth, sim):
    (tmp_path / "made").mkdir()
    source, given = form_of(name, tmp_path)
    assert_same(tensors_of(source, **given), truth)
    model = RoFormerSim.from_preset(source, **given)
    assert_same(outputs(model), outputs(sim))


@pytest.mark.parametrize(
    ("archive", "config"),
    [(path, None) for path in sorted(CHECKPOINTS.glob("*.zip"))],
    ids=lambda value: value.stem if value else "",
)
def test_every_zip_of_bert4keras_gives_what_tensorflow_reads(archive, config, tmp_path):
    prefix = unpacked(archive, tmp_path) / "bert_model.ckpt"
    assert_same(tensors_of(archive), tensorflow_tensors(prefix))


HEADS_OF = {"encoder": (), "lm": ("mlm",), "unilm": ("pooler", "mlm")}


@pytest.mark.parametrize(
    "name", sorted(path.name for path in SAVED.iterdir() if "v2" not in path.name)
)
def test_what_users_saved_holds_the_tensors_of_the_zip(name, truth):
    if name == "unilm-pool.weights.h5":
        with (
            pytest.raises(CheckpointError, match="neither bert4keras's layers nor"),
            open_checkpoint(SAVED / name, CONFIG),
        ):
            pass
        return
    with open_checkpoint(SAVED / name, CONFIG) as checkpoint:
        found = {n: np.array(t.read()) for n, t in checkpoint.tensors.items()}
        heads, kind = checkpoint.heads, checkpoint.config
        unexpected = checkpoint.unexpected
    of_heads = {"condition-hidden.h5": ("mlm",), "condition.h5": ()}
    expected = of_heads.get(name)
    if expected is None:
        expected = HEADS_OF[name.split("-")[0].removesuffix(".h5")]
    assert heads == expected
    own = {n: value for n, value in found.items() if n in truth}
    assert_same(own, {n: truth[n] for n in own})
    encoder = [n for n in truth if n.startswith("bert/e")]
    assert set(encoder) <= set(own)
    rest = set(found) - set(own)
    if name.startswith("condition"):
        assert unexpected == ()
        width = 7 if "hidden" in name else None
        assert kind.layer_norm_cond_size == 5
        assert kind.layer_norm_cond_hidden_size == width
        # Five norms, and that of the head; two or three kernels each.
        assert len(rest) == (6 * 3 if "hidden" in name else 5 * 2)
    else:
        assert rest == set(unexpected)
        assert len(rest) == (2 if "dense" in name or "nested" in name else 0)


def test_the_mapping_that_only_a_users_file_holds():
    config = zipped_json(V2_EMBEDDING_SIZE)
    found = tensors_of(SAVED / "v2-embedding-size-mlm.h5", config=config)
    mapping = found.pop("cls/predictions/output_mapping/kernel")
    assert mapping.shape == (24, 16)
    assert_same(found, tensors_of(V2_EMBEDDING_SIZE))


@pytest.mark.parametrize("name", ["x.zip", "x.keras", "x.weights.h5", "x.safetensors"])
def test_float16_is_read_as_the_float32_of_its_values(name, tmp_path, truth):
    source = convert(SMALL, tmp_path / name, dtype="float16", verbose=0)
    given = {"config": CONFIG} if name.endswith(".h5") else {}
    halves = {n: value.astype("float16") for n, value in truth.items()}
    assert_same(tensors_of(source, **given), halves)
    model = RoFormerSim.from_preset(source, **given)
    kernel = model.get_layer("backbone").token_embedding.embeddings
    assert kernel.dtype == "float32"
    np.testing.assert_array_equal(
        np.asarray(kernel), halves["bert/embeddings/word_embeddings"].astype("float32")
    )


def test_bfloat16_safetensors_of_elsewhere(tmp_path, truth):
    import ml_dtypes

    path = tmp_path / "x.safetensors"
    values = {n: value.astype(ml_dtypes.bfloat16) for n, value in truth.items()}
    save_file(values, path)
    found = tensors_of(path, config=CONFIG)
    assert_same({n: v.astype("float32") for n, v in found.items()}, _float32(values))
    converted = convert(path, tmp_path / "y.keras", config=CONFIG, verbose=0)
    assert_same(tensors_of(converted), _float32(values))
    RoFormerSim.from_preset(path, config=CONFIG)


def _float32(values):
    return {name: value.astype("float32") for name, value in values.items()}


def test_a_config_that_is_given_goes_before_the_one_that_was_found(tmp_path):
    changed = {**CONFIG, "hidden_dropout_prob": 0.5}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(changed), encoding="utf-8-sig")
    for name in ("x.zip", "x.keras", "x.safetensors", "preset"):
        source = convert(SMALL, tmp_path / name, verbose=0)
        for config in (changed, path, str(path)):
            model = RoFormerSim.from_preset(source, config=config)
            assert model.config.dropout == 0.5
            assert model.config.attention == "unilm"
        own = RoFormerConfig.from_bert_config(changed, attention="unilm")
        with open_checkpoint(source, own) as checkpoint:
            assert checkpoint.config == own


def test_a_vocabulary_that_is_given_goes_before_the_one_that_was_found(tmp_path):
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


@pytest.mark.parametrize(
    ("source", "model"),
    [
        (CHARACTER, "RoFormerMaskedLM"),
        (GPT, "RoFormerCausalLM"),
        (SIM, "RoFormerSim"),
        (V2, "RoFormerMaskedLM"),
        # No file of bert4keras's holds the head that this one would need.
        (V2_EMBEDDING_SIZE, "RoFormerBackbone"),
        (NSP, "RoFormerMaskedLM"),
        (SAVED / "encoder.h5", "RoFormerBackbone"),
    ],
    ids=lambda value: getattr(value, "stem", value),
)
def test_the_class_is_told_by_the_heads_and_the_name(source, model):
    config = CONFIG if source.parent == SAVED else None
    with open_checkpoint(source, config) as checkpoint:
        assert model_of(checkpoint) == model


@pytest.mark.parametrize("part", ["", "bert_model.ckpt", "bert_model.ckpt.index"])
def test_gpt_is_told_by_its_folder_where_the_file_has_no_name(part, tmp_path):
    folder = unpacked(GPT, tmp_path)
    with open_checkpoint(folder / part) as checkpoint:
        assert model_of(checkpoint) == "RoFormerCausalLM"


# === What training leaves behind ===


def test_optimizer_slots_and_counters_are_passed_over(tmp_path, truth):
    state = {"global_step": np.array(7), "beta1_power": np.float32(0.9)}
    for name, value in truth.items():
        for slot in ("adam_m", "adam_v", "Adam", "Adam_1"):
            state[f"{name}/{slot}"] = np.zeros_like(value)
    folder = write_checkpoint(tmp_path / "x", {**truth, **state}, CONFIG, VOCABULARY)
    with open_checkpoint(folder) as checkpoint:
        assert set(checkpoint.training_state) == set(state)
        assert set(checkpoint.tensors) == set(truth)
    RoFormerSim.from_preset(folder)
    assert_same(tensors_of(convert(folder, tmp_path / "x.keras", verbose=0)), truth)


@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_a_fitted_model_of_keras_is_read_without_its_optimizer(tmp_path, truth):
    model = RoFormerMaskedLM.from_preset(SMALL, output_activation="softmax")
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    inputs = {
        "token_ids": np.ones((2, 3), "int32"),
        "segment_ids": np.zeros((2, 3), "int32"),
    }
    before = tensors_of(SMALL)
    model.fit(inputs, np.ones((2, 3), "int32"), verbose=0)
    model.save(tmp_path / "x.keras")
    with open_checkpoint(tmp_path / "x.keras") as checkpoint:
        assert len(checkpoint.training_state) > len(checkpoint.tensors)
        assert checkpoint.unexpected == ()
        assert set(checkpoint.tensors) == {n for n in before if "pooler" not in n}
    again = RoFormerMaskedLM.from_preset(tmp_path / "x.keras")
    assert again.output_activation == "softmax"
    assert_same(outputs(again), outputs(model))


# === Sources that are refused ===


class Bench:
    """A folder with a copy of the small checkpoint's parts, to be damaged."""

    def __init__(self, folder, truth):
        self.folder = folder
        self.tensors = dict(sorted(truth.items()))
        self.config = dict(CONFIG)
        self.vocabulary = list(VOCABULARY)

    def write(self):
        return write_checkpoint(
            self.folder / "checkpoint", self.tensors, self.config, self.vocabulary
        )

    def write_config(self, content):
        path = self.write() / "bert_config.json"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path.parent

    def made(self, name):
        """The small checkpoint in another format."""
        return convert(SMALL, self.folder / name, verbose=0)

    def safetensors(self, **metadata):
        """Rewrites safetensors with other metadata."""
        path = self.made("x.safetensors")
        header = json.loads(_header(path))["__metadata__"]
        save_file(load_file(path), path, {**header, **metadata})
        return path


def _header(path):
    data = path.read_bytes()
    return data[8 : 8 + int.from_bytes(data[:8], "little")]


BAD = {}


def bad(error, *parts):
    """Registers a function that makes a bad source, and what its error must say."""

    def register(function):
        BAD[function.__name__] = (function, error, parts)
        return function

    return register


QUERY = "bert/encoder/layer_0/attention/self/query/kernel"


@bad(CheckpointError, "missing bert/encoder/layer_1/intermediate/dense/kernel (8, 32)")
def missing_tensor(bench):
    del bench.tensors["bert/encoder/layer_1/intermediate/dense/kernel"]
    return bench.write()


@bad(CheckpointError, "missing bert/embeddings/word_embeddings (260, 8)")
def missing_embedding(bench):
    del bench.tensors["bert/embeddings/word_embeddings"]
    return bench.write()


@bad(CheckpointError, "missing bert/encoder/layer_2/attention/self/query/kernel", "mor")
def missing_layer(bench):
    bench.config["num_hidden_layers"] = 3
    return bench.write()


@bad(CheckpointError, "unexpected bert/encoder/layer_1/attention/output/dense/kernel")
def layer_too_many(bench):
    bench.config["num_hidden_layers"] = 1
    return bench.write()


@bad(CheckpointError, "unexpected bert/encoder/layer_0/extra (3,)", "ignore=('bert/enc")
def unexpected_tensor(bench):
    bench.tensors["bert/encoder/layer_0/extra"] = np.zeros(3, "float32")
    return bench.write()


@bad(CheckpointError, "unexpected bert/embeddings/position_embeddings (512, 8)")
def bert_with_positions(bench):
    bench.tensors["bert/embeddings/position_embeddings"] = np.zeros((512, 8), "float32")
    return bench.write()


@bad(CheckpointError, "unexpected adamant/kernel (2,)", "unexpected slow_path/kernel")
def looks_like_training(bench):
    for name in ("adamant/kernel", "slow_path/kernel"):
        bench.tensors[name] = np.zeros(2, "float32")
    return bench.write()


@bad(CheckpointError, f"{QUERY} has shape (8, 9), expected (8, 8)")
def mis_shaped(bench):
    bench.tensors[QUERY] = np.zeros((8, 9), "float32")
    return bench.write()


@bad(CheckpointError, "layer_0/intermediate/dense/kernel has shape (32, 8), expected")
def transposed(bench):
    name = "bert/encoder/layer_0/intermediate/dense/kernel"
    bench.tensors[name] = np.ascontiguousarray(bench.tensors[name].T)
    return bench.write()


@bad(CheckpointError, "layer_0/output/dense/bias has shape (), expected (8,)")
def scalar(bench):
    bench.tensors["bert/encoder/layer_0/output/dense/bias"] = np.float32(1)
    return bench.write()


@bad(CheckpointError, f"{QUERY} has shape (8, 8), expected (16, 16)")
def other_hidden_size(bench):
    bench.config["hidden_size"] = 16
    return bench.write()


@bad(CheckpointError, "word_embeddings has shape (260, 8), expected (261, 8)")
def other_vocabulary_size(bench):
    bench.config["vocab_size"] = 261
    return bench.write()


@bad(VocabularyError, "the vocabulary has 259 tokens but the embedding 260 rows")
def vocabulary_too_short(bench):
    bench.vocabulary.pop()
    return bench.write()


@bad(VocabularyError, "the vocabulary has 877 tokens but the embedding 260 rows")
def vocabulary_of_words(bench):
    bench.vocabulary = (
        zipped(CHECKPOINTS / "chinese_roformer_L-2_H-32_A-4.zip", "vocab.txt")
        .decode()
        .split()
    )
    return bench.write()


@bad(CheckpointError, "bert/pooler/dense/bias must be a float tensor", "got int32")
def integers(bench):
    bench.tensors["bert/pooler/dense/bias"] = np.zeros(8, "int32")
    return bench.write()


@bad(CheckpointError, f"{QUERY} must be a float tensor to be a weight, got bool")
def booleans(bench):
    bench.tensors[QUERY] = np.zeros((8, 8), "bool")
    return bench.write()


@bad(CheckpointError, f"{QUERY} must be a float tensor to be a weight, got complex64")
def complex_numbers(bench):
    bench.tensors[QUERY] = np.zeros((8, 8), "complex64")
    return bench.write()


@bad(CheckpointError, "missing bert/pooler/dense/bias (8,)")
def half_a_pooler(bench):
    del bench.tensors["bert/pooler/dense/bias"]
    return bench.write()


@bad(CheckpointError, "missing cls/predictions/output_bias (260,)")
def head_without_its_bias(bench):
    del bench.tensors["cls/predictions/output_bias"]
    return bench.write()


@bad(CheckpointError, "unexpected cls/predictions/output_weights (260, 8)")
def head_that_is_not_tied(bench):
    bench.tensors["cls/predictions/output_weights"] = np.zeros((260, 8), "float32")
    return bench.write()


@bad(CheckpointError, "unexpected bert/encoder/layer_0/attention/self/query/bias")
def v2_with_biases_in_one_layer_alone(bench):
    # One norm is enough to be v1, and then nothing else may be missing.
    folder = unpacked(V2, bench.folder)
    tensors = tensors_of(folder)
    tensors["bert/encoder/layer_0/attention/self/query/bias"] = np.zeros(32, "float32")
    tensors["bert/encoder/layer_0/attention/self/query/bias2"] = np.zeros(1, "float32")
    config = json.loads((folder / "bert_config.json").read_text())
    return write_checkpoint(bench.folder / "x", tensors, config)


@bad(ConfigurationError, "comes without a bert_config.json: put it next to the w")
def no_config(bench):
    folder = bench.write()
    (folder / "bert_config.json").unlink()
    return folder


@bad(ConfigurationError, "bert_config.json is not valid JSON: Expecting property name")
def config_cut_short(bench):
    return bench.write_config("{")


@bad(ConfigurationError, "bert_config.json is not valid JSON: Expecting value")
def config_empty(bench):
    return bench.write_config("")


@bad(ConfigurationError, "bert_config.json must hold one JSON object, got list")
def config_is_a_list(bench):
    return bench.write_config("[1, 2]")


@bad(ConfigurationError, "bert_config.json is not valid JSON", "codec can't decode")
def config_not_utf8(bench):
    return bench.write_config('{"名": 1}'.encode("gb18030"))


@bad(ConfigurationError, "bert_config.json is not valid JSON", "recursion")
def config_endlessly_deep(bench):
    return bench.write_config('{"a":' * 100_000)


@bad(ConfigurationError, "bert_config.json is not valid JSON", "limit")
def config_with_an_endless_number(bench):
    return bench.write_config('{"vocab_size": ' + "9" * 10_000 + "}")


@bad(ConfigurationError, "lacks vocab_size, hidden_size, hidden_act")
def config_without_fields(bench):
    for name in ("vocab_size", "hidden_size", "hidden_act"):
        del bench.config[name]
    return bench.write()


@bad(ConfigurationError, "vocabulary_size must be an integer of at least 1, got '260'")
def config_with_text_for_a_number(bench):
    bench.config["vocab_size"] = "260"
    return bench.write()


@bad(ConfigurationError, "num_layers must be an integer of at least 1, got -2")
def config_with_a_negative_number(bench):
    bench.config["num_hidden_layers"] = -2
    return bench.write()


@bad(ConfigurationError, "num_heads must be an integer of at least 1, got True")
def config_with_a_truth_for_a_number(bench):
    bench.config["num_attention_heads"] = True
    return bench.write()


@bad(ConfigurationError, "num_heads must be an integer of at least 1, got 2.0")
def config_with_a_float_for_a_number(bench):
    bench.config["num_attention_heads"] = 2.0
    return bench.write()


@bad(ConfigurationError, "hidden_dim must be a multiple of num_heads", "num_heads=3")
def config_with_heads_that_do_not_divide(bench):
    bench.config["num_attention_heads"] = 3
    return bench.write()


@bad(ConfigurationError, "features per head must be even", "got 1")
def config_with_an_odd_head(bench):
    bench.config["num_attention_heads"] = 8
    return bench.write()


@bad(ConfigurationError, "dropout must be a number in [0, 1), got nan")
def config_with_nan(bench):
    bench.config["hidden_dropout_prob"] = float("nan")
    return bench.write()


@bad(ConfigurationError, "attention_dropout must be a number in [0, 1), got 1.0")
def config_that_drops_all(bench):
    bench.config["attention_probs_dropout_prob"] = 1.0
    return bench.write()


@bad(CheckpointError, "has 1,000,000,000 layers, but there are only 43 tensors")
def config_of_a_billion_layers(bench):
    bench.config["num_hidden_layers"] = 10**9
    return bench.write()


@bad(CheckpointError, "word_embeddings has shape (260, 8), expected (1000000000000, 8)")
def config_of_a_trillion_tokens(bench):
    bench.config["vocab_size"] = 10**12
    return bench.write()


@bad(VocabularyError, "must be a UTF-8 text", "vocab.txt is not")
def vocabulary_not_utf8(bench):
    folder = bench.write()
    (folder / "vocab.txt").write_bytes("今天".encode("gb18030"))
    return folder


@bad(VocabularyError, "vocab.txt is empty")
def vocabulary_empty(bench):
    folder = bench.write()
    (folder / "vocab.txt").write_bytes(b"")
    return folder


@bad(CheckpointError, "tensor 'cls/predictions/transform/dense/kernel'", "truncated")
def data_cut_short(bench):
    path = bench.write() / SHARD
    os.truncate(path, path.stat().st_size - 1)
    return path.parent


@bad(CheckpointError, f"tensor '{QUERY}' does not match its checksum")
def data_with_a_flipped_byte(bench):
    path = bench.write() / SHARD
    data = bytearray(path.read_bytes())
    at = data.find(bench.tensors[QUERY].tobytes())
    data[at + 5] ^= 1
    path.write_bytes(data)
    return path.parent


@bad(CheckpointError, f"tensor '{QUERY}' does not match its checksum")
def data_with_a_flipped_byte_in_a_stored_zip(bench):
    return packed(data_with_a_flipped_byte(bench), bench.folder / "x.zip")


@bad(CheckpointError, f"tensor '{QUERY}' does not match its checksum")
def data_with_a_flipped_byte_in_a_deflated_zip(bench):
    folder = data_with_a_flipped_byte(bench)
    return packed(folder, bench.folder / "x.zip", method=zipfile.ZIP_DEFLATED)


@bad(SourceError, f"{SHARD} is missing next to bert_model.ckpt.index")
def data_missing(bench):
    path = bench.write() / SHARD
    path.unlink()
    return path.parent


@bad(CheckpointError, "the index cannot be used", "magic number")
def index_cut_short(bench):
    path = bench.write() / "bert_model.ckpt.index"
    os.truncate(path, path.stat().st_size - 1)
    return path.parent


@bad(CheckpointError, "the index cannot be used", "does not match its checksum")
def index_with_a_flipped_byte(bench):
    path = bench.write() / "bert_model.ckpt.index"
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    return path.parent


@bad(CheckpointError, "the index cannot be used")
def index_empty(bench):
    path = bench.write() / "bert_model.ckpt.index"
    path.write_bytes(b"")
    return path.parent


@bad(SourceError, "holds 2 checkpoints: bert_model.ckpt, other.h5")
def two_checkpoints(bench):
    folder = bench.write()
    shutil.copy(SAVED / "lm.h5", folder / "other.h5")
    return folder


@bad(SourceError, "no checkpoint in", "it holds bert_config.json, vocab.txt")
def no_checkpoint(bench):
    folder = bench.write()
    for path in folder.glob("bert_model*"):
        path.unlink()
    return folder


@bad(SourceError, "vocab.txt holds no weights: give its folder")
def vocabulary_as_a_source(bench):
    return bench.write() / "vocab.txt"


@bad(SourceError, "does not exist; did you mean checkpoint")
def absent(bench):
    return bench.write().with_name("chekpoint")


@bad(SourceError, "not in the catalogue", "did you mean chinese_roformer-char_L-6")
def name_of_nothing(bench):
    return "chinese_roformer-chra_L-6_H-384_A-6"


@bad(SourceError, "is not downloaded: run `roformer-keras download chinese_roformer")
def name_not_downloaded(bench):
    return "chinese_roformer-v2-char_L-24_H-1024_A-16"


def _h5_copy(bench, name="unilm-pool.h5"):
    path = copied(SAVED / name, bench.folder)
    (bench.folder / "bert_config.json").write_text(json.dumps(CONFIG))
    return path


@bad(CheckpointError, "unilm-pool.h5 is not a whole HDF5 file", "truncated")
def h5_cut_short(bench):
    path = _h5_copy(bench)
    os.truncate(path, path.stat().st_size // 2)
    return path


@bad(CheckpointError, "holds HDF5 weights of another kind of model")
def h5_of_newer_tf_keras(bench):
    return _h5_copy(bench, "unilm-pool.weights.h5")


@bad(CheckpointError, "holds HDF5 weights of another kind of model")
def h5_of_something_else(bench):
    path = _h5_copy(bench)
    with h5py.File(path, "w") as file:
        file["data"] = np.zeros(3)
    return path


@bad(ConfigurationError, "lm.h5 comes without a bert_config.json")
def h5_alone(bench):
    return copied(SAVED / "lm.h5", bench.folder)


@bad(CheckpointError, "unilm-pool.h5 cannot be read", "weight_names", "is damaged")
def h5_without_names(bench):
    path = _h5_copy(bench)
    with h5py.File(path, "a") as file:
        del file["Embedding-Token"].attrs["weight_names"]
    return path


@bad(CheckpointError, "unilm-pool.h5 cannot be read", "Pooler-Dense", "is damaged")
def h5_without_a_group(bench):
    path = _h5_copy(bench)
    with h5py.File(path, "a") as file:
        del file["Pooler-Dense"]
    return path


@bad(CheckpointError, "encoder-dense.h5", "unexpected dense/dense/kernel:0 (8, 2)")
def h5_with_a_head_of_the_users(bench):
    return _h5_copy(bench, "encoder-dense.h5")


@bad(CheckpointError, "missing bert/encoder/layer_1/output/LayerNorm/beta (8,)")
def h5_without_a_layer(bench):
    path = _h5_copy(bench)
    with h5py.File(path, "a") as file:
        file.attrs["layer_names"] = [
            name
            for name in file.attrs["layer_names"]
            if name
            not in (b"Transformer-1-FeedForward-Norm", "Transformer-1-FeedForward-Norm")
        ]
    return path


def _secret(bench):
    path = bench.folder / "secret"
    path.write_bytes(os.urandom(32))
    return path


@bad(CheckpointError, "Pooler-Dense/Pooler-Dense/bias:0' lies in another file")
def h5_with_data_in_another_file(bench):
    path = _h5_copy(bench)
    with h5py.File(path, "a") as file:
        del file["Pooler-Dense/Pooler-Dense/bias:0"]
        file["Pooler-Dense/Pooler-Dense"].create_dataset(
            "bias:0", (8,), "float32", external=[(str(_secret(bench)), 0, 32)]
        )
    return path


@bad(CheckpointError, "Pooler-Dense/Pooler-Dense/bias:0' lies in another file")
def h5_with_a_link_to_another_file(bench):
    path = _h5_copy(bench)
    other = bench.folder / "elsewhere"
    with h5py.File(other, "w") as file:
        file["secret"] = np.zeros(8, "float32")
    with h5py.File(path, "a") as file:
        del file["Pooler-Dense/Pooler-Dense/bias:0"]
        link = h5py.ExternalLink(str(other), "secret")
        file["Pooler-Dense/Pooler-Dense/bias:0"] = link
    return path


@bad(CheckpointError, "lies in another file")
def h5_with_virtual_data(bench):
    path = _h5_copy(bench)
    with h5py.File(path, "a") as file:
        del file["Pooler-Dense/Pooler-Dense/bias:0"]
        layout = h5py.VirtualLayout((8,), "float32")
        layout[:] = h5py.VirtualSource(str(_secret(bench)), "x", (8,))
        file.create_virtual_dataset("Pooler-Dense/Pooler-Dense/bias:0", layout)
    return path


@bad(CheckpointError, "lies in another file")
def h5_with_a_link_to_a_pipe(bench):
    path = _h5_copy(bench)
    os.mkfifo(bench.folder / "pipe")
    with h5py.File(path, "a") as file:
        file["extra"] = h5py.ExternalLink(str(bench.folder / "pipe"), "x")
    return path


@bad(CheckpointError, "declares 29,802,322,", "bytes, and 0 are stored")
def h5_that_declares_far_more_than_it_stores(bench):
    path = _h5_copy(bench)
    with h5py.File(path, "a") as file:
        del file["Embedding-Token/Embedding-Token/embeddings:0"]
        file["Embedding-Token"].create_dataset(
            "Embedding-Token/embeddings:0",
            (931_322_574, 8),
            "float32",
            chunks=(100_000, 8),
        )
    return path


@bad(CheckpointError, "x.safetensors is damaged", "convert or copy it again")
def safetensors_cut_short(bench):
    path = bench.made("x.safetensors")
    os.truncate(path, path.stat().st_size - 1)
    return path


@bad(CheckpointError, "x.safetensors is damaged")
def safetensors_with_a_broken_header(bench):
    path = bench.made("x.safetensors")
    data = path.read_bytes()
    path.write_bytes(data[:8] + data[8:].replace(b'"dtype"', b'"dtypo"', 1))
    return path


@bad(ConfigurationError, "x.safetensors: config is not valid JSON")
def safetensors_with_a_broken_config(bench):
    return bench.safetensors(config="{")


@bad(ConfigurationError, "has no field colour")
def safetensors_with_an_unknown_field(bench):
    return bench.safetensors(config='{"colour": 1}')


@bad(ConfigurationError, "x.safetensors: model_options must hold one JSON object")
def safetensors_with_broken_options(bench):
    return bench.safetensors(model_options="[]")


@bad(VocabularyError, "its vocabulary is not a list of tokens")
def safetensors_with_a_broken_vocabulary(bench):
    return bench.safetensors(vocabulary="[1, 2]")


@bad(VocabularyError, "the vocabulary has 2 tokens but the embedding 260 rows")
def safetensors_with_another_vocabulary(bench):
    return bench.safetensors(vocabulary='["[PAD]", "a"]')


@bad(CheckpointError, f"missing {QUERY} (8, 8)", "unexpected query (8, 8)")
def safetensors_with_a_renamed_tensor(bench):
    path = bench.made("x.safetensors")
    metadata = json.loads(_header(path))["__metadata__"]
    tensors = load_file(path)
    tensors["query"] = tensors.pop(QUERY)
    save_file(tensors, path, metadata)
    return path


@bad(CheckpointError, f"{QUERY} must be a float tensor to be a weight, got int64")
def safetensors_of_integers(bench):
    path = bench.made("x.safetensors")
    metadata = json.loads(_header(path))["__metadata__"]
    tensors = load_file(path)
    tensors[QUERY] = tensors[QUERY].astype("int64")
    save_file(tensors, path, metadata)
    return path


@bad(SourceError, "x.keras", "damaged")
def keras_cut_short(bench):
    path = bench.made("x.keras")
    os.truncate(path, path.stat().st_size // 2)
    return path


@bad(CheckpointError, "x.keras: model.weights.h5 is corrupt", "Bad CRC-32")
def keras_with_a_flipped_byte(bench):
    path = bench.made("x.keras")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


def _repacked(bench, change):
    """The `.keras` file with one of its members changed."""
    path = bench.made("x.keras")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@bad(ConfigurationError, "a model of class 'Functional', which must be one of RoFormer")
def keras_of_another_model(bench):
    def change(members):
        config = {"class_name": "Functional", "config": {"layers": []}}
        members["config.json"] = json.dumps(config).encode()

    return _repacked(bench, change)


@bad(ConfigurationError, "holds no RoFormer model")
def keras_with_an_empty_config(bench):
    return _repacked(bench, lambda members: members.update({"config.json": b"{}"}))


@bad(ConfigurationError, "config.json is not valid JSON")
def keras_with_a_broken_config(bench):
    return _repacked(bench, lambda members: members.update({"config.json": b"{"}))


@bad(ConfigurationError, "num_layers must be an integer of at least 1, got 0")
def keras_with_a_wrong_field(bench):
    def change(members):
        data = members["config.json"]
        assert b'"num_layers": 2' in data
        members["config.json"] = data.replace(b'"num_layers": 2', b'"num_layers": 0')

    return _repacked(bench, change)


def _edited_weights(bench, edit):
    def change(members):
        path = bench.folder / "weights"
        path.write_bytes(members["model.weights.h5"])
        with h5py.File(path, "a") as file:
            edit(file)
        members["model.weights.h5"] = path.read_bytes()
        path.unlink()

    return _repacked(bench, change)


POOLER = "layers/ro_former_backbone/layers/pooler/dense/vars/0"


@bad(CheckpointError, "missing bert/pooler/dense/kernel (8, 8)")
def keras_without_a_dataset(bench):
    return _edited_weights(bench, lambda file: file.pop(POOLER))


@bad(CheckpointError, "unexpected layers/mine/vars/0 (3,)")
def keras_with_a_dataset_too_many(bench):
    def edit(file):
        file["layers/mine/vars/0"] = np.zeros(3, "float32")

    return _edited_weights(bench, edit)


@bad(ConfigurationError, "task.json is not valid JSON")
def preset_with_a_broken_task(bench):
    folder = bench.made("preset")
    (folder / "task.json").write_text("{")
    return folder


@bad(CheckpointError, "no mlm head: missing", "cls/predictions/output_bias (260,)")
def preset_without_the_weights_of_its_task(bench):
    folder = bench.made("preset")
    (folder / "task.weights.h5").unlink()
    return folder


@bad(CheckpointError, "word_embeddings has shape (669, 32), expected (260, 8)")
def preset_with_the_weights_of_another(bench):
    folder = bench.made("preset")
    other = convert(SIM, bench.folder / "other", verbose=0)
    shutil.copy(other / "model.weights.h5", folder)
    return folder


@bad(ConfigurationError, "tokenizer.json holds no tokenizer")
def preset_with_a_broken_tokenizer(bench):
    folder = bench.made("preset")
    (folder / "tokenizer.json").write_text('{"config": 1}')
    return folder


@bad(CheckpointError, "model.weights.h5 is not a whole HDF5 file")
def preset_with_weights_cut_short(bench):
    path = bench.made("preset") / "model.weights.h5"
    os.truncate(path, path.stat().st_size // 2)
    return path.parent


def message_of(error, action):
    with pytest.raises(error) as caught:
        action()
    assert type(caught.value) is error
    return str(caught.value)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_source_says_what_is_wrong_and_leaves_nothing(
    name, tmp_path, truth, monkeypatch
):
    make, error, parts = BAD[name]
    monkeypatch.chdir(tmp_path)
    source = make(Bench(tmp_path, truth))
    model = RoFormerCausalLM if "v2" in name else RoFormerSim
    before = listing(tmp_path)
    for action in (
        lambda: model.from_preset(source),
        lambda: convert(source, tmp_path / "target.safetensors", verbose=0),
        lambda: convert(source, tmp_path / "target", verbose=0),
        lambda: convert(source, tmp_path / "target.keras", verbose=0),
    ):
        message = message_of(error, action)
        for part in parts:
            assert part in message
        assert listing(tmp_path) == before


def test_there_are_enough_bad_sources():
    assert len(BAD) >= 40


@pytest.mark.parametrize(
    ("source", "model", "options", "parts"),
    [
        (
            CHARACTER,
            RoFormerSim,
            {},
            [
                "no pooler head: missing bert/pooler/dense/kernel (32, 32)",
                "initialize_heads=True",
            ],
        ),
        (
            SAVED / "encoder.h5",
            RoFormerMaskedLM,
            {"config": CONFIG},
            ["no mlm head: missing cls/predictions/transform/dense/kernel (8, 8)"],
        ),
        (
            V2_EMBEDDING_SIZE,
            RoFormerMaskedLM,
            {},
            ["no mlm head: missing cls/predictions/output_mapping/kernel (24, 16)"],
        ),
        (
            CHARACTER,
            RoFormerMaskedLM,
            {"pooler_activation": "tanh", "with_nsp": True},
            ["no pooler head", "no nsp head: missing cls/seq_relationship/output_weig"],
        ),
        (
            SMALL,
            RoFormerBackbone,
            {"model_type": "roformer_v2"},
            ["holds roformer weights, which do not fit a roformer_v2 model"],
        ),
        (
            V2,
            RoFormerMaskedLM,
            {"model_type": "roformer"},
            ["holds roformer_v2 weights, which do not fit a roformer model"],
        ),
        (
            SMALL,
            RoFormerBackbone,
            {"embedding_dim": 4},
            ["has shape (260, 8), expected (260, 4)"],
        ),
    ],
    ids=lambda value: getattr(value, "stem", None),
)
def test_a_model_that_does_not_fit_the_weights(source, model, options, parts):
    message = message_of(CheckpointError, lambda: model.from_preset(source, **options))
    for part in parts:
        assert part in message


# === Patterns of what to pass over ===


@pytest.mark.parametrize(
    ("source", "ignore"),
    [
        ("encoder-dense.h5", "dense/*"),
        ("encoder-dense.h5", ["dense/dense/kernel:0", "dense/dense/bias:0"]),
        ("encoder-dense", ("layer_with_weights-11/*",)),
        ("encoder-nested-model.h5", iter(["dense/*"])),
    ],
)
def test_layers_of_the_users_own_are_passed_over_by_name(source, ignore, truth):
    model = RoFormerBackbone.from_preset(SAVED / source, config=CONFIG, ignore=ignore)
    assert_same(outputs(model), outputs(RoFormerBackbone.from_preset(SMALL)))


@pytest.mark.parametrize("ignore", ["dens", "d*x", ["dense/dense/kernel:0"], "[dense]"])
def test_a_pattern_that_matches_less_leaves_the_rest_unexpected(ignore):
    message = message_of(
        CheckpointError,
        lambda: RoFormerBackbone.from_preset(
            SAVED / "encoder-dense.h5", config=CONFIG, ignore=ignore
        ),
    )
    assert "unexpected dense/dense/bias:0 (2,)" in message
    assert message.count("dense/dense/kernel:0 (8, 2)") == ("kernel" not in str(ignore))
    hint = "bias" if "kernel" in str(ignore) else "kernel"
    assert f"with ignore=, such as 'dense/dense/{hint}:0'" in message


def test_nothing_that_the_model_needs_can_be_passed_over(tmp_path, truth):
    bench = Bench(tmp_path, truth)
    message = message_of(
        CheckpointError,
        lambda: RoFormerBackbone.from_preset(missing_tensor(bench), ignore="*"),
    )
    assert "missing bert/encoder/layer_1/intermediate/dense/kernel" in message


# === Damage at random ===


@pytest.mark.parametrize(
    "name", ["x.zip", "x.keras", "x.weights.h5", "x.safetensors", "unilm-pool.h5"]
)
def test_damage_anywhere_is_an_error_of_ours_or_none(name, tmp_path):
    if name == "unilm-pool.h5":
        source = copied(SAVED / name, tmp_path)
    else:
        source = convert(SMALL, tmp_path / name, verbose=0)
    whole = source.read_bytes()
    chance = random.Random(name)
    given = {"config": CONFIG} if name.endswith(".h5") else {}
    expected = tensors_of(source, **given)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        if chance.random() < 0.3:
            del damaged[chance.randrange(len(damaged)) :]
        else:
            for _ in range(chance.choice([1, 4, 30])):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        source.write_bytes(damaged)
        try:
            found = tensors_of(source, **given)
        except RoFormerError:
            refused += 1
            continue
        if name in ("x.zip", "x.keras"):
            # These have checksums, so what is read is right.
            assert_same(found, expected)
    assert refused > 50
