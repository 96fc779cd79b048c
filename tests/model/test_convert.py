"""From every format to every other, bit for bit, whole or not at all."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import zipfile

import numpy as np
import pytest
from common import (
    CHARACTER,
    GPT,
    NSP,
    ROOT,
    SAVED,
    SIM,
    SMALL,
    V2,
    V2_EMBEDDING_SIZE,
    WORD,
    run,
    zipped,
    zipped_json,
)
from sources import (
    assert_same,
    listing,
    packed,
    tensorflow_tensors,
    tensors_of,
    unpacked,
    write_checkpoint,
)

from roformer_keras import RoFormerBackbone, convert
from roformer_keras.config import RoFormerConfig
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.conversion.weights import weight_table
from roformer_keras.errors import (
    CheckpointError,
    ConfigurationError,
    VocabularyError,
)

# Nothing may be left in the temporary folder.
pytestmark = pytest.mark.usefixtures("scratch")

TARGETS = {
    "preset": "preset",
    "weights.h5": "x.weights.h5",
    "keras": "x.keras",
    "safetensors": "x.safetensors",
    "bert4keras": "x.zip",
}
SOURCES = {
    "sim": SIM,
    "v2": V2,
    "nsp": NSP,
    "embedding-size": V2_EMBEDDING_SIZE,
    "gpt": GPT,
}


def quietly(source, target, **options):
    return convert(source, target, verbose=0, **options)


# === Round trips ===


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_every_format_to_every_other_bit_for_bit(name, tmp_path):
    source = SOURCES[name]
    files = unpacked(source, tmp_path / "unpacked")
    truth = tensorflow_tensors(files / "bert_model.ckpt")
    with open_checkpoint(source) as checkpoint:
        found = checkpoint.config
    for first, name_of_first in TARGETS.items():
        middle = quietly(source, tmp_path / name_of_first)
        # What Keras itself saves has no place for a vocabulary, and weights alone
        # none for their configuration.
        given = {}
        if first in ("weights.h5", "keras"):
            given["vocabulary"] = files / "vocab.txt"
        if first == "weights.h5":
            given["config"] = files / "bert_config.json"
        assert_same(tensors_of(middle, **given), truth)
        for second, name_of_second in TARGETS.items():
            end = quietly(middle, tmp_path / f"{first}-{name_of_second}", **given)
            if second == "weights.h5":
                assert_same(tensors_of(end, config=found), truth)
                continue
            with open_checkpoint(end) as checkpoint:
                assert checkpoint.format == second
                assert_same(
                    {n: np.array(t.read()) for n, t in checkpoint.tensors.items()},
                    truth,
                )
                assert checkpoint.unexpected == ()
                if second != "keras":
                    tokens = "".join(f"{token}\n" for token in checkpoint.vocabulary)
                    assert tokens.encode() == zipped(source, "vocab.txt")
                assert checkpoint.config.replace(
                    attention=found.attention, pooler_activation=None, with_nsp=False
                ) == found.replace(
                    initializer_range=checkpoint.config.initializer_range
                )


@pytest.mark.parametrize("name", SOURCES)
def test_tensorflow_reads_what_is_written_for_bert4keras(name, tmp_path):
    source = SOURCES[name]
    truth = tensorflow_tensors(unpacked(source, tmp_path) / "bert_model.ckpt")
    middle = quietly(source, tmp_path / "x.safetensors")
    target = quietly(middle, tmp_path / "named.zip")
    with zipfile.ZipFile(target) as archive:
        assert archive.testzip() is None
        assert {name.split("/")[0] for name in archive.namelist()} == {"named"}
        assert {name.split("/")[1] for name in archive.namelist()} == {
            *("bert_config.json", "vocab.txt", "checkpoint", "bert_model.ckpt.index"),
            "bert_model.ckpt.data-00000-of-00001",
        }
    files = unpacked(target, tmp_path)
    assert_same(tensorflow_tensors(files / "bert_model.ckpt"), truth)
    # The folder alone is enough for TensorFlow: the state file names its neighbour.
    assert_same(tensorflow_tensors(files), truth)


def test_the_configuration_of_bert4keras_is_kept_with_what_nobody_reads(tmp_path):
    files = unpacked(SMALL, tmp_path)
    original = {
        **zipped_json(SMALL),
        "directionality": "bidi",
        "max_position_embeddings": 512,
        "pooler_type": "first_token_transform",
        "名": [1, {"b": None}],
    }
    (files / "bert_config.json").write_text(json.dumps(original), encoding="utf-8")
    written = zipped_json(quietly(files, tmp_path / "x.zip"))
    assert written == {**written, **original}
    # Only what bert4keras would have used as a default is added.
    config = RoFormerConfig.from_bert_config(original)
    assert RoFormerConfig.from_bert_config(written) == config
    changed = zipped_json(quietly(files, tmp_path / "y.zip", dropout=0.5))
    assert changed == {**written, "hidden_dropout_prob": 0.5}


def test_the_same_weights_give_the_same_bytes(tmp_path):
    for name in ("x.zip", "x.keras", "x.weights.h5"):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "b").mkdir(exist_ok=True)
        first = quietly(SIM, tmp_path / "a" / name)
        second = quietly(SIM, tmp_path / "b" / name)
        assert first.read_bytes() == second.read_bytes()


# === Heads and classes ===


@pytest.mark.parametrize(
    ("source", "model", "config"),
    [
        (SIM, "RoFormerSim", {"attention": "unilm", "pooler_activation": "linear"}),
        (GPT, "RoFormerCausalLM", {"attention": "causal"}),
        (CHARACTER, "RoFormerMaskedLM", {"attention": "bidirectional"}),
        (WORD, "RoFormerMaskedLM", {"attention": "bidirectional"}),
        (V2, "RoFormerMaskedLM", {"model_type": "roformer_v2"}),
        (V2_EMBEDDING_SIZE, "RoFormerBackbone", {"embedding_dim": 16}),
        (NSP, "RoFormerMaskedLM", {"with_nsp": True, "pooler_activation": "tanh"}),
    ],
    ids=lambda value: getattr(value, "stem", None),
)
def test_the_class_and_its_heads_are_kept(source, model, config, tmp_path):
    for name in ("preset", "x.keras", "x.safetensors"):
        with open_checkpoint(quietly(source, tmp_path / name)) as checkpoint:
            assert checkpoint.model == model
            stored = checkpoint.config.to_dict()
            assert {field: stored[field] for field in config} == config
            assert set(checkpoint.tensors) == set(tensors_of(source))


def test_a_pooler_keeps_its_activation_under_another_class(tmp_path):
    sim = quietly(SIM, tmp_path / "sim")
    for source, activation in ((sim, "linear"), (SIM, "tanh")):
        for model in ("RoFormerMaskedLM", "RoFormerCausalLM"):
            target = quietly(source, tmp_path / "x.keras", model=model, overwrite=True)
            with open_checkpoint(target) as checkpoint:
                assert checkpoint.model == model
                assert checkpoint.heads == ("pooler", "mlm")
                assert checkpoint.config.pooler_activation == activation


SMALL_CONFIG = {"config": zipped_json(SMALL)}
V2_CONFIG = {"config": zipped_json(V2_EMBEDDING_SIZE)}
V2_SAVED = SAVED / "v2-embedding-size-mlm.h5"


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (GPT, {"model": "RoFormerBackbone"}, r"has a head \(mlm\) for which RoFormerB"),
        (NSP, {"model": "RoFormerSim", "with_nsp": False}, r"has a head \(nsp\)"),
        (SIM, {"pooler_activation": None, "model": "RoFormerMaskedLM"}, "pooler"),
        (SIM, {"num_layers": 1}, "unexpected bert/encoder/layer_1/"),
        (V2_SAVED, V2_CONFIG, "maps the output to another width"),
        (SMALL, {"shared_segment_embeddings": True}, "token_type_embeddings among"),
        (SIM, {"model": "GPT"}, "model must be one of 'RoFormerBackbone', .* got 'GPT"),
        (SIM, {"dtype": "int8"}, "dtype must be 'float32' or 'float16', got 'int8'"),
        (SIM, {"format": "onnx"}, "format must be one of preset, .* got 'onnx'"),
        (SIM, {"colour": 1}, "has no field colour"),
        (SAVED / "lm.h5", SMALL_CONFIG, "has no vocabulary, and a be"),
        (SAVED / "condition.h5", SMALL_CONFIG, "has conditional norms, which bert4"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_nothing_is_left_out_in_silence(source, options, message, tmp_path):
    files = unpacked(SMALL, tmp_path)
    if source.parent == SAVED and source.name != "lm.h5":
        options = {**options, "vocabulary": files / "vocab.txt"}
    before = listing(tmp_path)
    with pytest.raises((ConfigurationError, CheckpointError), match=message):
        quietly(source, tmp_path / "x.zip", **options)
    assert listing(tmp_path) == before


def test_conditional_norms_go_where_they_can_be_kept(tmp_path):
    config = zipped_json(SMALL)
    for name in ("condition.h5", "condition-hidden.h5"):
        truth = tensors_of(SAVED / name, config=config)
        for target in ("x.keras", "x.safetensors", "preset"):
            made = quietly(SAVED / name, tmp_path / f"{name}-{target}", config=config)
            assert_same(tensors_of(made), truth)


# === float16 ===


@pytest.mark.parametrize("format", TARGETS)
def test_float16_halves_the_size(format, tmp_path):
    full = quietly(SIM, tmp_path / f"full-{TARGETS[format]}")
    half = quietly(SIM, tmp_path / f"half-{TARGETS[format]}", dtype="float16")

    def size(path):
        files = path.rglob("*.h5") if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files)

    numbers = sum(value.size for value in tensors_of(SIM).values())
    assert size(full) - size(half) == pytest.approx(2 * numbers, rel=0.02)


@pytest.mark.parametrize("format", TARGETS)
@pytest.mark.parametrize("value", [65_520.0, -1e30])
def test_float16_that_would_overflow_names_the_tensor(format, value, tmp_path):
    tensors = tensors_of(SMALL)
    name = "bert/encoder/layer_1/attention/self/key/bias"
    tensors[name][3] = value
    source = write_checkpoint(
        tmp_path / "source",
        tensors,
        zipped_json(SMALL),
        zipped(SMALL, "vocab.txt").decode().split(),
    )
    before = listing(tmp_path)
    with pytest.raises(
        CheckpointError, match=rf"{name} has values up to .*float16's 65"
    ):
        quietly(source, tmp_path / TARGETS[format], dtype="float16")
    assert listing(tmp_path) == before


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused(value, tmp_path):
    tensors = tensors_of(SMALL)
    tensors["bert/pooler/dense/bias"][0] = value
    source = write_checkpoint(tmp_path / "source", tensors, zipped_json(SMALL))
    for use in (
        lambda: quietly(source, tmp_path / "x.keras"),
        lambda: RoFormerBackbone.from_preset(source, pooler_activation="tanh"),
    ):
        with pytest.raises(CheckpointError, match=r"pooler/dense/bias must hold finit"):
            use()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("[unused5]", "[unused6]", "must hold a token once, got '\\[unused6\\]'"),
        ("[PAD]", "\ufeff[PAD]", "must be the first token of the vocabulary of"),
        ("[CLS]", "[BOS]", "this one lacks \\[CLS\\]"),
    ],
)
def test_a_vocabulary_that_no_tokenizer_takes(before, after, message, tmp_path):
    words = zipped(SMALL, "vocab.txt").decode().replace(before, after).split("\n")[:-1]
    source = write_checkpoint(
        tmp_path / "source", tensors_of(SMALL), zipped_json(SMALL), words
    )
    with pytest.raises(VocabularyError, match=message):
        quietly(source, tmp_path / "x.keras")


def test_float64_becomes_float32_unless_it_would_overflow(tmp_path):
    tensors = {n: v.astype("float64") for n, v in tensors_of(SMALL).items()}
    config = zipped_json(SMALL)
    source = write_checkpoint(tmp_path / "source", tensors, config)
    assert_same(tensors_of(quietly(source, tmp_path / "x.keras")), tensors_of(SMALL))
    tensors["bert/pooler/dense/bias"][0] = 1e300
    write_checkpoint(tmp_path / "source", tensors, config)
    with pytest.raises(CheckpointError, match=r"numbers beyond float32's"):
        quietly(source, tmp_path / "y.keras")


# === Targets ===


def test_a_name_of_another_kind_on_request(tmp_path):
    for format in ("bert4keras", "keras", "safetensors"):
        target = quietly(SIM, tmp_path / f"{format}.x", format=format)
        with open_checkpoint(target) as checkpoint:
            assert checkpoint.format == format
    for name in ("L-2_H-32_A-4", "v1.5"):
        with open_checkpoint(quietly(SIM, tmp_path / name)) as checkpoint:
            assert checkpoint.format == "preset"


@pytest.mark.parametrize("suffix", ["h5", "hdf5", "ckpt", "npz", "bin", "pt"])
def test_a_name_that_promises_something_else(suffix, tmp_path):
    with pytest.raises(ConfigurationError, match=rf"no format goes with '\.{suffix}'"):
        quietly(SIM, tmp_path / f"x.{suffix}")
    assert listing(tmp_path) == []


def test_a_source_may_be_replaced_by_its_own_conversion(tmp_path):
    truth = tensors_of(SIM)
    for name in ("x.keras", "x.zip", "preset", "x.safetensors"):
        target = quietly(SIM, tmp_path / name)
        quietly(target, target, overwrite=True, dropout=0.3)
        assert_same(tensors_of(target), truth)
        with open_checkpoint(target) as checkpoint:
            assert checkpoint.config.dropout == 0.3
        # A failure leaves the source as it was.
        with pytest.raises(CheckpointError):
            quietly(target, target, overwrite=True, num_layers=1)
        assert_same(tensors_of(target), truth)


def test_progress_is_shown_on_request_and_only_there(tmp_path, capsys):
    quietly(SIM, tmp_path / "x.keras")
    assert capsys.readouterr() == ("", "")
    # By default there is a bar on a terminal only.
    convert(SIM, tmp_path / "w.keras")
    assert capsys.readouterr() == ("", "")
    convert(SIM, tmp_path / "y.keras", verbose=1)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "y.keras: 100%" in shown.err
    assert "43/43" in shown.err


# === Killed, and out of space ===


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path):
    # A limit on the size of a file fails a write as a full disk does.
    code = """
        import json, os, resource, sys
        from roformer_keras import convert
        from roformer_keras.errors import OutputError
        source, folder, targets = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
        import h5py, safetensors.numpy
        for limit in (1, 5_000, 50_000):
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            found = {}
            for target in targets:
                try:
                    convert(source, os.path.join(folder, target), verbose=0)
                    found[target] = "no error"
                except OutputError as error:
                    found[target] = str(error)
                except BaseException as error:
                    found[target] = repr(error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            left = [os.path.join(*item) for item in os.walk(folder) for item in
                    [(item[0], name) for name in item[1] + item[2]]]
            print(json.dumps([found, left]))
    """
    folder, scratch = tmp_path / "folder", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}
    targets = json.dumps(list(TARGETS.values()))
    process = run(code, SIM, folder, targets, env=environment)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    lines = output.splitlines()
    assert len(lines) == 3
    for line in lines:
        found, left = json.loads(line)
        assert left == []
        for target, message in found.items():
            assert re.match(
                rf"no space left to write .*{target} \(.*\): nothing was", message
            )
    assert listing(scratch) == []


# === Memory ===


def peak(code, *arguments):
    """Largest resident size of a separate process, in bytes."""
    # Not ru_maxrss: it begins with that of the process that started this one.
    code = textwrap.dedent(code) + (
        '\nstatus = open("/proc/self/status").read()'
        '\nprint(int(status.split("VmHWM:")[1].split()[0]) * 1024)'
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    return int(finished.stdout.split()[-1])


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory_stays_within_tensorflow_and_one_and_a_half_times_the_weights(tmp_path):
    config = {
        **zipped_json(SMALL),
        "vocab_size": 12_000,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    }
    random = np.random.default_rng(0)
    tensors = {
        row.name: random.standard_normal(row.checkpoint_shape, "float32") * 0.02
        for row in weight_table(
            RoFormerConfig.from_bert_config(config), ("pooler", "mlm")
        )
    }
    weights = sum(value.nbytes for value in tensors.values())
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(str, range(11_996))]
    write_checkpoint(tmp_path / "base", tensors, config, tokens)
    source = packed(
        tmp_path / "base", tmp_path / "base.zip", "base/", zipfile.ZIP_DEFLATED
    )
    shutil.rmtree(tmp_path / "base")
    tensorflow = peak("import tensorflow")
    bar = tensorflow + 1.5 * weights
    peaks = {}
    for name in TARGETS.values():
        code = """
            import sys
            from roformer_keras import convert
            convert(sys.argv[1], sys.argv[2], verbose=0)
        """
        peaks[f"zip to {name}"] = peak(code, source, tmp_path / name)
    code = """
        import sys
        from roformer_keras import RoFormerSim
        RoFormerSim.from_preset(sys.argv[1], config=sys.argv[2] or None)
    """
    config_file = tmp_path / "bert_config.json"
    config_file.write_text(json.dumps(config))
    for name in ("base.zip", *TARGETS.values()):
        given = config_file if name.endswith(".h5") else ""
        peaks[f"from_preset of {name}"] = peak(code, tmp_path / name, given)
    shown = {name: f"{value / 1e6:.0f} MB" for name, value in peaks.items()}
    print(
        f"weights {weights / 1e6:.0f} MB, TensorFlow {tensorflow / 1e6:.0f} MB", shown
    )
    assert {name: value for name, value in peaks.items() if value > bar} == {}


def test_a_model_is_not_needed_to_convert():
    code = """
        import sys
        from roformer_keras import convert
        convert(sys.argv[1], sys.argv[2], verbose=0)
        print([name for name in ("keras", "tensorflow") if name in sys.modules])
    """
    with tempfile.TemporaryDirectory() as folder:
        process = run(code, SMALL, f"{folder}/preset")
        assert process.communicate(timeout=60)[0] == "[]\n"
        RoFormerBackbone.from_preset(f"{folder}/preset")
