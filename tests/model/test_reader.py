"""Every kind of source gives the same tensors; every bad one says what is wrong.

The truth is what TensorFlow reads of the checkpoint that the real bert4keras wrote.
"""

import io
import json
import os
import random
import shutil
import zipfile

import h5py
import ml_dtypes
import numpy as np
import pytest
from common import (
    CHARACTER,
    CHECKPOINTS,
    GPT,
    SAVED,
    SIM,
    SMALL,
    V2,
    V2_EMBEDDING_SIZE,
    WORD,
    zipped,
    zipped_json,
)
from safetensors.numpy import load_file, save_file
from sources import (
    FOREIGN_DATA,
    SHARD,
    assert_same,
    copied,
    listing,
    outputs,
    packed,
    replace_a_dataset,
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

# Nothing may be left in the temporary folder.
pytestmark = pytest.mark.usefixtures("scratch")

CONFIG = zipped_json(SMALL)
VOCABULARY = zipped(SMALL, "vocab.txt").decode().split()
STRANGERS = ("__MACOSX/._bert_model.ckpt.index", ".DS_Store", "readme.txt")


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
    if name == "h5-with-config":
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
    *("object-prefix", "h5-with-config", "h5-in-zip", "weights-of-keras"),
    *("preset-of-model", "x.zip", "x.keras", "x.weights.h5", "x.safetensors", "preset"),
    *("zipped preset", "zipped x.safetensors", "keras-of-keras"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_tensors_and_outputs(name, tmp_path, truth, sim):
    (tmp_path / "made").mkdir()
    source, given = form_of(name, tmp_path)
    assert_same(tensors_of(source, **given), truth)
    model = RoFormerSim.from_preset(source, **given)
    assert_same(outputs(model), outputs(sim))


@pytest.mark.parametrize(
    "archive", sorted(CHECKPOINTS.glob("*.zip")), ids=lambda path: path.stem
)
def test_every_zip_of_bert4keras_gives_what_tensorflow_reads(archive, tmp_path):
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


@pytest.mark.slow
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


@pytest.mark.parametrize("part", ["", "bert_model.ckpt", "bert_model.ckpt.index"])
def test_gpt_is_told_by_its_folder_where_the_file_has_no_name(part, tmp_path):
    folder = unpacked(GPT, tmp_path)
    with open_checkpoint(folder / part) as checkpoint:
        assert model_of(checkpoint) == "RoFormerCausalLM"


# === What training adds ===


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


@pytest.mark.slow
def test_a_fitted_model_of_keras_is_read_without_its_optimizer(tmp_path):
    model = RoFormerMaskedLM.from_preset(SMALL, output_activation="softmax")
    model.compile("adam", "sparse_categorical_crossentropy", run_eagerly=True)
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


INTERMEDIATE = "bert/encoder/layer_1/intermediate/dense/kernel"
QUERY = "bert/encoder/layer_0/attention/self/query/kernel"
QUERY_BIAS = "bert/encoder/layer_0/attention/self/query/bias"
BIAS = "bert/pooler/dense/bias"
POSITIONS = "bert/embeddings/position_embeddings"
EXTRA = "bert/encoder/layer_0/extra"
BAD = {}


def bad(error, make, *parts, name=None):
    """Registers `make(folder)`, whose source is bad, and what its error must say."""
    BAD[name or f"{len(BAD)} {parts[0]}"] = (make, error, parts)


def source(tensors=None, config=None, vocabulary=VOCABULARY):
    """A maker of the small checkpoint, with changed or removed (None) values."""

    def make(folder):
        changed = [
            {**tensors_of(SMALL), **(tensors or {})},
            {**CONFIG, **(config or {})},
        ]
        kept = [{k: v for k, v in d.items() if v is not None} for d in changed]
        return write_checkpoint(folder / "checkpoint", *kept, vocabulary)

    return make


def made(name, change=lambda path: None):
    """A maker of the small checkpoint in another format, which `change` damages."""

    def make(folder):
        path = convert(SMALL, folder / name, verbose=0)
        change(path)
        return path

    return make


def shaped(*shape):
    return np.zeros(shape, "float32")


def written(name, content):
    """A change of a file in a folder; its content is bytes, a function, or None."""

    def change(folder):
        path = folder / name
        if content is None:
            path.unlink()
        else:
            new = content(path.read_bytes()) if callable(content) else content
            path.write_bytes(new)

    return change


def unchecked(name, data):
    """Replaces a file of a preset, and drops the checksums."""

    def change(folder):
        (folder / "metadata.json").unlink()
        return written(name, data)(folder)

    return change


def with_file(name, content):
    """A maker of the small checkpoint with another content of a file."""

    def make(folder):
        path = source()(folder)
        written(name, content)(path)
        return path

    return make


def cut(share=1.0):
    return lambda data: data[: int(len(data) * share) - 1]


def flipped(at):
    """A change of one bit, at a place, or a number of bytes after others."""

    def change(data):
        data = bytearray(data)
        place = at if isinstance(at, int) else data.find(at) + 5
        data[place] ^= 1
        return bytes(data)

    return change


# --- Tensors ---

for tensors, *parts in (
    ({INTERMEDIATE: None}, f"missing {INTERMEDIATE} (8, 32)"),
    ({"bert/embeddings/word_embeddings": None}, "missing bert/embeddings/word_emb"),
    ({EXTRA: shaped(3)}, f"unexpected {EXTRA} (3,)", "ignore=, such as 'bert/enc"),
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
):
    bad(CheckpointError, source(tensors), *parts)


def v2_with_biases_in_one_layer(folder):
    # One norm is enough to be v1, and then nothing else may be missing.
    tensors = tensors_of(V2) | {QUERY_BIAS: shaped(32), f"{QUERY_BIAS}2": shaped(1)}
    return write_checkpoint(folder / "x", tensors, zipped_json(V2))


bad(CheckpointError, v2_with_biases_in_one_layer, f"unexpected {QUERY_BIAS}", name="v2")

# --- Configuration and vocabulary ---

# Changed fields as JSON (null: removed), and what is said.
CONFIGS = """
{"num_hidden_layers": 3}: missing bert/encoder/layer_2/attention/self/query/kernel
{"num_hidden_layers": 1}: unexpected bert/encoder/layer_1/attention/output/dense/kernel
{"num_hidden_layers": 1000000000}: has 1,000,000,000 layers, but there are only 43 tens
{"hidden_size": 16}: layer_0/attention/self/query/kernel has shape (8, 8), expected (16,
{"vocab_size": 261}: word_embeddings has shape (260, 8), expected (261, 8)
{"vocab_size": 1000000000000}: has shape (260, 8), expected (1000000000000, 8)
"""
FIELDS = """
{"vocab_size": null, "hidden_size": null, "hidden_act": null}: lacks vocab_size, hidden
{"vocab_size": "260"}: vocabulary_size must be an integer of at least 1, got '260'
{"num_hidden_layers": -2}: num_layers must be an integer of at least 1, got -2
{"num_attention_heads": true}: num_heads must be an integer of at least 1, got True
{"num_attention_heads": 2.0}: num_heads must be an integer of at least 1, got 2.0
{"num_attention_heads": 3}: hidden_dim must be a multiple of num_heads
{"num_attention_heads": 8}: features per head must be even
{"hidden_dropout_prob": NaN}: dropout must be a number in [0, 1), got nan
{"attention_probs_dropout_prob": 1.0}: attention_dropout must be a number in [0, 1)
"""
for error, table in ((CheckpointError, CONFIGS), (ConfigurationError, FIELDS)):
    for line in table.strip().splitlines():
        changes, message = line.split("}: ")
        bad(error, source(config=json.loads(changes + "}")), message)

JSON = "bert_config.json is not valid JSON"
for content, *parts in (
    (None, "comes without a bert_config.json: put it next to the w"),
    (b"{", f"{JSON}: Expecting property name"),
    (b"", f"{JSON}: Expecting value"),
    (b"[1, 2]", "bert_config.json must hold one JSON object, got list"),
    ('{"名": 1}'.encode("gb18030"), JSON, "codec can't decode"),
    (b'{"a":' * 100_000, JSON, "recursion"),
    (b'{"vocab_size": ' + b"9" * 10_000 + b"}", JSON, "limit"),
):
    bad(ConfigurationError, with_file("bert_config.json", content), *parts)

WORDS = zipped(WORD, "vocab.txt").decode().split()
for make, *parts in (
    (source(vocabulary=VOCABULARY[:-1]), "has 259 tokens but the embedding 260 rows"),
    (source(vocabulary=WORDS), "has 877 tokens but the embedding 260 rows"),
    (with_file("vocab.txt", "今天".encode("gb18030")), "vocab.txt is not"),
    (with_file("vocab.txt", b""), "vocab.txt is empty"),
):
    bad(VocabularyError, make, *parts)

# --- Files of a checkpoint ---

INDEX = "bert_model.ckpt.index"


def flipped_data(folder):
    return with_file(SHARD, flipped(tensors_of(SMALL)[QUERY].tobytes()))(folder)


def zipped_with(method):
    return lambda folder: packed(flipped_data(folder), folder / "x.zip", method=method)


MISSPELT = "chinese_roformer-chra_L-6_H-384_A-6"
ABSENT = "chinese_roformer-v2-char_L-24_H-1024_A-16"
zips = map(zipped_with, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
for make in (flipped_data, *zips):
    bad(CheckpointError, make, f"tensor '{QUERY}' does not match its checksum")
for content, *parts in (
    (cut(), "the index cannot be used", "magic number"),
    (flipped(30), "the index cannot be used", "does not match its checksum"),
    (b"", "the index cannot be used"),
):
    bad(CheckpointError, with_file(INDEX, content), *parts)
LAST = "tensor 'cls/predictions/transform/dense/kernel'"
bad(CheckpointError, with_file(SHARD, cut()), LAST, "truncated")
for make, *parts in (
    (with_file(SHARD, None), f"{SHARD} is missing next to {INDEX}"),
    (lambda folder: MISSPELT, "not in the catalogue", "did you mean chinese_rofo"),
    (lambda folder: ABSENT, f"run `roformer-keras download {ABSENT}"),
):
    bad(SourceError, make, *parts)

# --- HDF5 ---

DATASET = "Pooler-Dense/Pooler-Dense/bias:0"


def h5(edit=lambda file, folder: None, name="unilm-pool.h5"):
    """A maker of a saved file next to its configuration, after an edit by h5py."""

    def make(folder):
        path = copied(SAVED / name, folder)
        (folder / "bert_config.json").write_text(json.dumps(CONFIG))
        with h5py.File(path, "a") as file:
            edit(file, folder)
        return path

    return make


def h5_cut(folder):
    path = h5()(folder)
    written(path.name, cut(0.5))(folder)
    return path


def cleared(file, folder):
    for name in list(file):
        del file[name]
    file.attrs.clear()
    file["data"] = np.zeros(3)


def without_a_layer(file, folder):
    gone = "Transformer-1-FeedForward-Norm"
    names = [n for n in file.attrs["layer_names"] if n not in (gone, gone.encode())]
    file.attrs["layer_names"] = names


def virtual(file, folder):
    del file[DATASET]
    layout = h5py.VirtualLayout((8,), "float32")
    layout[:] = h5py.VirtualSource(str(folder / "secret"), "x", (8,))
    file.create_virtual_dataset(DATASET, layout)


def pipe(file, folder):
    os.mkfifo(folder / "pipe")
    file["extra"] = h5py.ExternalLink(str(folder / "pipe"), "x")


def without_names(file, folder):
    del file["Embedding-Token"].attrs["weight_names"]


def without_a_group(file, folder):
    del file["Pooler-Dense"]


def foreign(how):
    def make(folder):
        path = h5()(folder)
        replace_a_dataset(path, how, folder)
        return path

    return make


OTHER = "holds HDF5 weights of another kind of model"
for make, *parts in (
    (h5_cut, "unilm-pool.h5 is not a whole HDF5 file", "truncated"),
    (h5(name="unilm-pool.weights.h5"), OTHER),
    (h5(cleared), OTHER),
    (h5(without_names), "unilm-pool.h5 cannot be read", "weight_names", "is damaged"),
    (h5(without_a_group), "unilm-pool.h5 cannot be read", "Pooler-Dense", "is damaged"),
    (h5(name="encoder-dense.h5"), "encoder-dense.h5", "dense/dense/kernel:0 (8, 2)"),
    (h5(without_a_layer), "missing bert/encoder/layer_1/output/LayerNorm/beta (8,)"),
    (h5(virtual), "lies in another file"),
    (h5(pipe), "lies in another file"),
    *((foreign(how), message) for how, message in FOREIGN_DATA[:3]),
):
    bad(CheckpointError, make, *parts)
LONE = "lm.h5 comes without a bert_config.json"
bad(ConfigurationError, lambda folder: copied(SAVED / "lm.h5", folder), LONE)

# --- safetensors ---


def rewritten(change=lambda tensors: None, **metadata):
    """A change of the tensors of a safetensors file, or of its metadata."""

    def rewrite(path):
        data = path.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        tensors = load_file(path)
        change(tensors)
        kept = {k: v for k, v in header["__metadata__"].items() if k != "crc32c"}
        save_file(tensors, path, {**kept, **metadata})

    return rewrite


def safetensors(change):
    return made("x.safetensors", change)


def renamed(tensors):
    tensors["query"] = tensors.pop(QUERY)


def integers(tensors):
    tensors[QUERY] = tensors[QUERY].astype("int64")


def file_with(change):
    """A change of the bytes of a whole file."""
    return lambda path: path.write_bytes(change(path.read_bytes()))


def misspelt(data):
    return data.replace(b'"dtype"', b'"dtypo"', 1)


MISSING = f"missing {QUERY} (8, 8)"
TWO = "vocabulary has 2 tokens but the embedding 260 rows"
for error, change, *parts in (
    (CheckpointError, file_with(cut()), "x.safetensors is damaged", "copy it again"),
    (CheckpointError, file_with(misspelt), "x.safetensors is damaged"),
    (ConfigurationError, rewritten(config="{"), "x.safetensors: config is not valid"),
    (ConfigurationError, rewritten(config='{"colour": 1}'), "has no field colour"),
    (ConfigurationError, rewritten(model_options="[]"), "x.safetensors: model_options"),
    (VocabularyError, rewritten(vocabulary="[1, 2]"), "is not a list of tokens"),
    (VocabularyError, rewritten(vocabulary='["[PAD]", "a"]'), TWO),
    (CheckpointError, rewritten(renamed), MISSING, "unexpected query (8, 8)"),
    (CheckpointError, rewritten(integers), "tensor to be a weight, got int64"),
):
    bad(error, safetensors(change), *parts)

# --- Files of Keras ---


def member(name, change):
    """A change of a member of a `.keras` file."""

    def repack(path):
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        members[name] = change(members[name])
        with zipfile.ZipFile(path, "w") as archive:
            for name_, data in members.items():
                archive.writestr(name_, data)

    return repack


def weights(edit):
    def change(data):
        with io.BytesIO(data) as buffer:
            with h5py.File(buffer, "a") as file:
                edit(file)
            return buffer.getvalue()

    return member("model.weights.h5", change)


def other_weights(folder):
    other = convert(SIM, folder.parent / "other", verbose=0)
    shutil.copy(other / "model.weights.h5", folder)


def config_json(content):
    return member("config.json", lambda data: content)


def flipped_middle(data):
    return flipped(len(data) // 2)(data)


def no_layers(data):
    return data.replace(b'"num_layers": 2', b'"num_layers": 0')


def another(file):
    file["layers/mine/vars/0"] = shaped(3)


FUNCTIONAL = b'{"class_name": "Functional", "config": {"layers": []}}'
POOLER = "layers/ro_former_backbone/layers/pooler/dense/vars/0"
KERAS, PRESET = "x.keras", "preset"
CORRUPT = "x.keras: model.weights.h5 is corrupt"
for name, error, change, *parts in (
    (KERAS, SourceError, file_with(cut(0.5)), "x.keras", "damaged"),
    (KERAS, CheckpointError, file_with(flipped_middle), CORRUPT, "Bad CRC-32"),
    (KERAS, ConfigurationError, config_json(FUNCTIONAL), "of class 'Functional'"),
    (KERAS, ConfigurationError, config_json(b"{}"), "holds no RoFormer model"),
    (KERAS, ConfigurationError, config_json(b"{"), "config.json is not valid JSON"),
    (KERAS, ConfigurationError, member("config.json", no_layers), "at least 1, got 0"),
    (KERAS, CheckpointError, weights(lambda file: file.pop(POOLER)), "missing bert/po"),
    (KERAS, CheckpointError, weights(another), "unexpected layers/mine/vars/0 (3,)"),
    (PRESET, ConfigurationError, unchecked("task.json", b"{"), "is not valid JSON"),
    (PRESET, CheckpointError, written("task.weights.h5", None), "no mlm head: missing"),
    (PRESET, CheckpointError, other_weights, "(669, 32), expected (260, 8)"),
    (PRESET, ConfigurationError, unchecked("tokenizer.json", b"{}"), "no tokenizer"),
    (PRESET, CheckpointError, written("model.weights.h5", cut()), "not a whole HDF5"),
):
    bad(error, made(name, change), *parts)


def message_of(error, action):
    with pytest.raises(error) as caught:
        action()
    assert type(caught.value) is error
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_a_bad_source_says_what_is_wrong_and_leaves_nothing(
    name, tmp_path, monkeypatch
):
    make, error, parts = BAD[name]
    monkeypatch.chdir(tmp_path)
    source = make(tmp_path)
    model = RoFormerCausalLM if name == "v2" else RoFormerSim
    before = listing(tmp_path)
    for action in (
        lambda: model.from_preset(source),
        lambda: convert(source, tmp_path / "target.safetensors", verbose=0),
        lambda: convert(source, tmp_path / "target", verbose=0),
    ):
        message = message_of(error, action)
        for part in parts:
            assert part in message
        assert listing(tmp_path) == before


NO_MLM = "no mlm head: missing cls/predictions"
NSP_FIELDS = {"pooler_activation": "tanh", "with_nsp": True}
MISFITS = [
    (CHARACTER, RoFormerSim, {}, r"no pooler head: .*\(32, 32\).*initialize_heads"),
    (SAVED / "encoder.h5", RoFormerMaskedLM, {"config": CONFIG}, f"{NO_MLM}/transform"),
    (V2_EMBEDDING_SIZE, RoFormerMaskedLM, {}, f"{NO_MLM}/output_mapping/kernel"),
    (CHARACTER, RoFormerMaskedLM, NSP_FIELDS, "(?s)no pooler.*no nsp head"),
    (SMALL, RoFormerBackbone, {"model_type": "roformer_v2"}, "holds roformer weights"),
    (V2, RoFormerMaskedLM, {"model_type": "roformer"}, "holds roformer_v2 weights"),
    (SMALL, RoFormerBackbone, {"embedding_dim": 4}, r"\(260, 8\), expected \(260, 4\)"),
]


@pytest.mark.parametrize(("source", "model", "options", "message"), MISFITS)
def test_a_model_that_does_not_fit_the_weights(source, model, options, message):
    with pytest.raises(CheckpointError, match=message):
        model.from_preset(source, **options)


# === Patterns of what to pass over ===


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "ignore"),
    [
        ("encoder-dense.h5", "dense/*"),
        ("encoder-dense.h5", ["dense/dense/kernel:0", "dense/dense/bias:0"]),
        ("encoder-dense", ("layer_with_weights-11/*",)),
        ("encoder-nested-model.h5", iter(["dense/*"])),
    ],
)
def test_layers_of_the_users_own_are_passed_over_by_name(source, ignore):
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


def test_nothing_that_the_model_needs_can_be_passed_over(tmp_path):
    bad_source = source({INTERMEDIATE: None})(tmp_path)
    message = message_of(
        CheckpointError, lambda: RoFormerBackbone.from_preset(bad_source, ignore="*")
    )
    assert f"missing {INTERMEDIATE}" in message


# === Damage at random ===


@pytest.mark.slow
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
