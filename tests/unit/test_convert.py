"""From every format to every other, bit for bit, whole or not at all; without Keras.

What TensorFlow reads, and the memory, are tested in `model/test_convert.py`.
"""

import json
import os
import re
from itertools import pairwise

import numpy as np
import pytest
from common import (
    CHARACTER,
    GPT,
    NSP,
    SAVED,
    SIM,
    SMALL,
    V2,
    V2_EMBEDDING_SIZE,
    WORD,
    run,
    write_file,
    zipped,
    zipped_json,
)
from sources import (
    assert_same,
    listing,
    tensors_of,
    unpacked,
    write_checkpoint,
    wrong_modes,
)

from roformer_keras import convert
from roformer_keras.base.config import RoFormerConfig
from roformer_keras.base.errors import (
    CheckpointError,
    ConfigurationError,
    OutputError,
    VocabularyError,
)
from roformer_keras.conversion.reader import open_checkpoint

# Nothing may be left in the temporary folder.
pytestmark = pytest.mark.usefixtures("scratch")

TARGETS = {
    "preset": "preset",
    "weights.h5": "x.weights.h5",
    "keras": "x.keras",
    "safetensors": "x.safetensors",
    "bert4keras": "x.zip",
}
CONFIG = zipped_json(SMALL)
VOCABULARY = zipped(SMALL, "vocab.txt").decode().split()


def quietly(source, target, **options):
    return convert(source, target, verbose=0, **options)


# === Round trips ===


def assert_same_checkpoint(path, format, source, files):
    """A file of this format holds all that the zip of bert4keras does."""
    truth = tensors_of(source)
    with open_checkpoint(source) as checkpoint:
        config = checkpoint.config
    if format == "weights.h5":
        assert_same(tensors_of(path, config=files / "bert_config.json"), truth)
        return
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.format == format
        assert checkpoint.unexpected == ()
        tensors = {n: np.array(t.read()) for n, t in checkpoint.tensors.items()}
        assert_same(tensors, truth)
        if format != "keras":
            tokens = "".join(f"{token}\n" for token in checkpoint.vocabulary)
            assert tokens.encode() == zipped(source, "vocab.txt")
        assert checkpoint.config.replace(
            attention=config.attention, pooler_activation=None, with_nsp=False
        ) == config.replace(initializer_range=checkpoint.config.initializer_range)


def options_of(format, files):
    """A vocabulary and a configuration, where the files of Keras have none."""
    options = {}
    if format in ("weights.h5", "keras"):
        options["vocabulary"] = files / "vocab.txt"
    if format == "weights.h5":
        options["config"] = files / "bert_config.json"
    return options


def test_every_format_to_every_other_bit_for_bit(tmp_path):
    files = unpacked(SIM, tmp_path / "unpacked")
    for first, name in TARGETS.items():
        middle = quietly(SIM, tmp_path / name)
        assert_same_checkpoint(middle, first, SIM, files)
        for second, name_of_second in TARGETS.items():
            end = tmp_path / f"{first}-{name_of_second}"
            quietly(middle, end, **options_of(first, files))
            assert_same_checkpoint(end, second, SIM, files)


@pytest.mark.parametrize("source", [V2, NSP, V2_EMBEDDING_SIZE, GPT])
def test_a_chain_of_all_formats_keeps_every_bit(source, tmp_path):
    files = unpacked(source, tmp_path / "unpacked")
    path = source
    for before, (format, name) in pairwise([(None, None), *TARGETS.items()]):
        target = tmp_path / name
        path = quietly(path, target, **options_of(before[0], files))
        assert_same_checkpoint(path, format, source, files)


def test_the_configuration_of_bert4keras_is_kept_with_what_nobody_reads(tmp_path):
    files = unpacked(SMALL, tmp_path)
    original = {
        **CONFIG,
        "directionality": "bidi",
        "max_position_embeddings": 512,
        "pooler_type": "first_token_transform",
        "名": [1, {"b": None}],
    }
    write_file(files / "bert_config.json", original)
    written = zipped_json(quietly(files, tmp_path / "x.zip"))
    assert written == {**written, **original}
    # Only what bert4keras would have used as a default is added.
    config = RoFormerConfig.from_bert_config(original)
    assert RoFormerConfig.from_bert_config(written) == config
    changed = zipped_json(quietly(files, tmp_path / "y.zip", dropout=0.5))
    assert changed == {**written, "hidden_dropout_prob": 0.5}


def test_files_have_the_mode_of_the_umask(tmp_path, umask):
    """Libraries for safetensors and HDF5 have modes of their own."""
    for name, target in {**TARGETS, "huggingface": "hf"}.items():
        format = {"format": name} if name == "huggingface" else {}
        quietly(SMALL, tmp_path / target, **format)
    assert wrong_modes(tmp_path, umask) == []


def test_the_same_weights_give_the_same_bytes(tmp_path):
    for name in ("x.zip", "x.keras", "x.weights.h5"):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "b").mkdir(exist_ok=True)
        first = quietly(SIM, tmp_path / "a" / name)
        second = quietly(SIM, tmp_path / "b" / name)
        assert first.read_bytes() == second.read_bytes()


# === Heads and classes ===


CLASSES = [
    (SIM, "RoFormerSim", {"attention": "unilm", "pooler_activation": "linear"}),
    (GPT, "RoFormerCausalLM", {"attention": "causal"}),
    (CHARACTER, "RoFormerMaskedLM", {"attention": "bidirectional"}),
    (WORD, "RoFormerMaskedLM", {"attention": "bidirectional"}),
    (V2, "RoFormerMaskedLM", {"model_type": "roformer_v2"}),
    (V2_EMBEDDING_SIZE, "RoFormerBackbone", {"embedding_dim": 16}),
    (NSP, "RoFormerMaskedLM", {"with_nsp": True, "pooler_activation": "tanh"}),
]


def test_the_class_and_its_heads_are_kept(tmp_path):
    for number, (source, model, fields) in enumerate(CLASSES):
        for name in ("preset", "x.keras", "x.safetensors"):
            made = quietly(source, tmp_path / f"{number}-{name}")
            with open_checkpoint(made) as checkpoint:
                assert checkpoint.model == model
                stored = checkpoint.config.to_dict()
                assert {field: stored[field] for field in fields} == fields
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


V2_OPTIONS = {"config": zipped_json(V2_EMBEDDING_SIZE)}
V2_SAVED = SAVED / "v2-embedding-size-mlm.h5"
LEFT_OUT = [
    (GPT, {"model": "RoFormerBackbone"}, r"has a head \(mlm\) for which RoFormerB"),
    (NSP, {"model": "RoFormerSim", "with_nsp": False}, r"has a head \(nsp\)"),
    (SIM, {"pooler_activation": None, "model": "RoFormerMaskedLM"}, "pooler"),
    (SIM, {"num_layers": 1}, "unexpected bert/encoder/layer_1/"),
    (V2_SAVED, V2_OPTIONS, "maps the output to another width"),
    (SMALL, {"shared_segment_embeddings": True}, "token_type_embeddings among"),
    (SIM, {"model": "GPT"}, "model must be one of 'RoFormerBackbone', .* got 'GPT"),
    (SIM, {"dtype": "int8"}, "dtype must be 'float32' or 'float16', got 'int8'"),
    (SIM, {"format": "onnx"}, "format must be one of 'preset', .* got 'onnx'"),
    (SIM, {"format": ["keras"]}, "format must be one of 'preset', .* got .'keras'."),
    (SIM, {"colour": 1}, "has no field colour"),
    (SAVED / "lm.h5", {"config": CONFIG}, "has no vocabulary, and a be"),
    (SAVED / "condition.h5", {"config": CONFIG}, "has conditional norms, which bert4"),
]


def test_nothing_is_left_out_in_silence(tmp_path):
    vocabulary = unpacked(SMALL, tmp_path) / "vocab.txt"
    before = listing(tmp_path)
    for source, options, message in LEFT_OUT:
        if source.parent == SAVED and source.name != "lm.h5":
            options = {**options, "vocabulary": vocabulary}
        with pytest.raises((ConfigurationError, CheckpointError), match=message):
            quietly(source, tmp_path / "x.zip", **options)
        assert listing(tmp_path) == before


def test_conditional_norms_go_where_they_can_be_kept(tmp_path):
    for name in ("condition.h5", "condition-hidden.h5"):
        truth = tensors_of(SAVED / name, config=CONFIG)
        for target in ("x.keras", "x.safetensors", "preset"):
            made = quietly(SAVED / name, tmp_path / f"{name}-{target}", config=CONFIG)
            assert_same(tensors_of(made), truth)


# === Numbers and tokens ===


def test_float16_halves_the_size(tmp_path):
    def size(path):
        files = path.rglob("*.h5") if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files)

    numbers = sum(value.size for value in tensors_of(SIM).values())
    for name in TARGETS.values():
        full = quietly(SIM, tmp_path / f"full-{name}")
        half = quietly(SIM, tmp_path / f"half-{name}", dtype="float16")
        saved = size(full) - size(half)
        assert saved == pytest.approx(2 * numbers, rel=0.02), name


def changed_weight(folder, name, index, value):
    """The small checkpoint with another number in a tensor."""
    tensors = tensors_of(SMALL)
    tensors[name][index] = value
    return write_checkpoint(folder, tensors, CONFIG, VOCABULARY)


def test_float16_that_would_overflow_names_the_tensor(tmp_path):
    name = "bert/encoder/layer_1/attention/self/key/bias"
    above = changed_weight(tmp_path / "above", name, 3, 65_520.0)
    below = changed_weight(tmp_path / "below", name, 3, -1e30)
    before = listing(tmp_path)
    for source, target in (
        *((above, target) for target in TARGETS.values()),
        (below, "preset"),
    ):
        message = rf"{name} has values up to .*float16's 65"
        with pytest.raises(CheckpointError, match=message):
            quietly(source, tmp_path / target, dtype="float16")
        assert listing(tmp_path) == before


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    for value in (np.nan, np.inf):
        source = changed_weight(tmp_path / "source", "bert/pooler/dense/bias", 0, value)
        message = r"pooler/dense/bias must hold finit"
        with pytest.raises(CheckpointError, match=message):
            quietly(source, tmp_path / "x.keras")


def test_a_vocabulary_that_no_tokenizer_takes(tmp_path):
    for before, after, message in (
        ("[unused5]", "[unused6]", r"must hold a token once, got '\[unused6\]'"),
        ("[PAD]", "[pad]", "must be the first token of the vocabulary of"),
        ("[CLS]", "[BOS]", r"this one lacks \[CLS\]"),
    ):
        words = [after if token == before else token for token in VOCABULARY]
        source = write_checkpoint(tmp_path / "source", tensors_of(SMALL), CONFIG, words)
        with pytest.raises(VocabularyError, match=message):
            quietly(source, tmp_path / "x.keras")


def test_float64_becomes_float32_unless_it_would_overflow(tmp_path):
    tensors = {n: v.astype("float64") for n, v in tensors_of(SMALL).items()}
    source = write_checkpoint(tmp_path / "source", tensors, CONFIG)
    assert_same(tensors_of(quietly(source, tmp_path / "x.keras")), tensors_of(SMALL))
    tensors["bert/pooler/dense/bias"][0] = 1e300
    write_checkpoint(tmp_path / "source", tensors, CONFIG)
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


def test_a_name_that_promises_something_else(tmp_path):
    for suffix in ("h5", "hdf5", "ckpt", "npz", "bin", "pt"):
        message = rf"no format goes with '\.{suffix}'"
        with pytest.raises(ConfigurationError, match=message):
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


def test_what_a_kill_left_in_a_preset_is_replaced_with_it(tmp_path):
    """A file that was half written is none of another kind."""
    preset = convert(SMALL, tmp_path / "x", verbose=0)
    partial = preset / ".partial-999999999-d3e893d4130f594b.baselines.json"
    partial.write_text('{"x": ')
    convert(SMALL, preset, overwrite=True, verbose=0)
    assert not partial.exists()
    partial.with_name(".partial-999999999-d3e893d4130f594b.thesis.txt").touch()
    with pytest.raises(OutputError, match=r"no part of a preset \(thesis.txt\)"):
        convert(SMALL, preset, overwrite=True, verbose=0)


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


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path):
    # A limit on the size of a file fails a write as a full disk does.
    code = """
        import json, os, resource, sys
        from roformer_keras import convert
        from roformer_keras.base.errors import OutputError
        source, folder, targets = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
        import h5py, safetensors.numpy
        for limit in (1, 5_000, 50_000):
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            errors = {}
            for target in targets:
                try:
                    convert(source, os.path.join(folder, target), verbose=0)
                    errors[target] = "no error"
                except OutputError as error:
                    errors[target] = str(error)
                except BaseException as error:
                    errors[target] = repr(error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            left = [os.path.join(*item) for item in os.walk(folder) for item in
                    [(item[0], name) for name in item[1] + item[2]]]
            print(json.dumps([errors, left]))
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
        errors, left = json.loads(line)
        assert left == []
        for target, message in errors.items():
            assert re.match(
                rf"no space left to write .*{target} \(.*\): nothing was", message
            )
    assert listing(scratch) == []
