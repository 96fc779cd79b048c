"""Properties of folders that others wrote: each reader takes them, or refuses them.

`e2e/test_others_folders.py` compares them with Transformers and sentence-transformers.
"""

import numpy as np
import pytest
from common import CHARACTER, change_json, read_json
from huggingface_folders import FOLDER, changed
from safetensors.numpy import load_file, save_file
from sources import assert_same, copied, tensors_of, unpacked

import roformer_keras
from roformer_keras import RoFormerTokenClassifier, RoFormerTokenizer, convert
from roformer_keras.base.errors import ConfigurationError, VocabularyError
from roformer_keras.cli import main
from roformer_keras.conversion.reader import open_checkpoint, read_tokenizer

# === Names ===

WRAPPED = {
    "parallel": lambda name: f"module.{name}",
    "compiled": lambda name: f"_orig_mod.{name}",
    "both": lambda name: f"_orig_mod.module.{name}",
    "both, turned": lambda name: f"module._orig_mod.{name}",
    "one layer": lambda name: name.replace("layer.1.", "layer.1._orig_mod."),
    "encoder": lambda name: name.replace("roformer.", "roformer._orig_mod.module."),
}


@pytest.mark.parametrize("folder", ["tagger", "encoder"])
@pytest.mark.parametrize("wrapper", WRAPPED)
def test_names_of_wrapped_models_are_understood(folder, wrapper, tmp_path):
    source = copied(FOLDER / folder, tmp_path)
    path = source / "model.safetensors"
    tensors = {WRAPPED[wrapper](name): x for name, x in load_file(path).items()}
    save_file(tensors, path)
    assert_same(tensors_of(source), tensors_of(FOLDER / folder))


# === Padded embeddings ===


def padded(name, folder, rows):
    """A golden folder whose embedding and bias of the output have more rows."""
    source = copied(FOLDER / name, folder)
    for path in source.glob("*.safetensors"):
        tensors = load_file(path)
        for key, value in tensors.items():
            if value.shape[0] == 145:
                padding = np.ones((rows - 145, *value.shape[1:]), "float32")
                tensors[key] = np.concatenate([value, padding])
        save_file(tensors, path)
    change_json(source / "config.json", vocab_size=rows)
    return source


@pytest.mark.parametrize("name", ["encoder", "tagger", "masked-lm"])
@pytest.mark.parametrize("rows", [152, 192, 256])
def test_padded_rows_are_cut_and_said(name, rows, tmp_path):
    source = padded(name, tmp_path, rows)
    message = f"padded to {rows} rows, and is cut to the 145 tokens"
    with pytest.warns(UserWarning, match=message):
        there = convert(source, tmp_path / "x", format="huggingface", verbose=0)
    assert_same(tensors_of(there), tensors_of(FOLDER / name))
    assert read_json(there / "config.json")["vocab_size"] == 145


def test_an_embedding_of_another_vocabulary_is_refused(tmp_path, capsys):
    for rows in (150, 400):
        (tmp_path / str(rows)).mkdir()
        source = padded("tagger", tmp_path / str(rows), rows)
        message = f"has 145 tokens but the embedding {rows} rows; there must be as many"
        with pytest.raises(VocabularyError, match=message):
            roformer_keras.load_model(source)
        assert main(["inspect", str(source)]) == 2
        assert message in capsys.readouterr().err


# === Heads ===


def test_tags_without_names_have_those_of_transformers(tmp_path):
    """Transformers writes no `id2label` for two labels without names."""
    tensors = load_file(FOLDER / "tagger" / "model.safetensors")
    two = {
        name: np.ascontiguousarray(tensors[name][:2])
        for name in ("classifier.weight", "classifier.bias")
    }
    fields = {"id2label": ..., "label2id": ...}
    source = changed("tagger", tmp_path, fields, two)
    model = roformer_keras.load_model(source)
    assert type(model) is RoFormerTokenClassifier
    assert model.tags == ["LABEL_0", "LABEL_1"]
    there = convert(source, tmp_path / "x", format="huggingface", verbose=0)
    assert_same(tensors_of(there), tensors_of(source))


def test_a_head_without_a_class_is_not_lost_unsaid(tmp_path):
    source = changed("classifier", tmp_path, {"problem_type": "regression"})
    with (
        pytest.warns(UserWarning, match="4 tensors are left out"),
        pytest.raises(ConfigurationError, match="has a head that no class here has"),
    ):
        convert(source, tmp_path / "x", verbose=0)
    with pytest.warns(UserWarning, match="4 tensors are left out"):
        convert(source, tmp_path / "x", model="RoFormerBackbone", verbose=0)


# === Vocabularies ===

CHANGES = {
    "byte-order mark": lambda data: b"\xef\xbb\xbf" + data,
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "empty last line": lambda data: data + b"\n",
    "empty last lines": lambda data: data + b"\r\n\n\n",
    "no last line end": lambda data: data.rstrip(b"\n"),
    "all": lambda data: b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n") + b"\r\n",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A golden folder, and an unpacked zip of bert4keras."""
    root = tmp_path_factory.mktemp("vocabularies")
    return {
        "huggingface": copied(FOLDER / "tagger", root),
        "bert4keras": unpacked(CHARACTER, root),
    }


READERS = {
    "path": lambda folder: RoFormerTokenizer(folder / "vocab.txt").vocabulary,
    "tokenizer": lambda folder: list(read_tokenizer(folder)[0]),
    "checkpoint": lambda folder: list(opened(folder).vocabulary),
    "model": lambda folder: roformer_keras.load_model(folder).tokenizer.vocabulary,
}


def opened(folder):
    with open_checkpoint(folder) as checkpoint:
        return checkpoint


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["huggingface", "bert4keras"])
def test_all_readers_read_the_same_vocabulary(kind, change, folders, tmp_path, capsys):
    folder, path = folders[kind], folders[kind] / "vocab.txt"
    data = path.read_bytes()
    expected = RoFormerTokenizer(path).vocabulary
    path.write_bytes(CHANGES[change](data))
    try:
        for name, read in READERS.items():
            if name != "model" or change == "all":
                assert read(folder) == expected, name
        assert main(["inspect", str(folder)]) == 0
        out = convert(folder, tmp_path / "out", verbose=0)
        assert list(read_tokenizer(out)[0]) == expected
    finally:
        path.write_bytes(data)


def test_all_readers_refuse_a_token_that_is_there_twice(folders):
    for folder in folders.values():
        path = folder / "vocab.txt"
        data = path.read_bytes()
        path.write_bytes(data.replace(b"[unused1]", b"[UNK]"))
        try:
            for read in READERS.values():
                with pytest.raises(VocabularyError, match="must hold a token once"):
                    RoFormerTokenizer(read(folder))
            assert main(["inspect", str(folder)]) == 2
        finally:
            path.write_bytes(data)


def test_an_empty_last_line_with_a_row_of_the_embedding_is_a_token(tmp_path):
    """bert4keras trains models with `len(token_dict)` tokens."""
    tensors = load_file(FOLDER / "encoder" / "model.safetensors")
    words = tensors["embeddings.word_embeddings.weight"]
    longer = {"embeddings.word_embeddings.weight": np.concatenate([words, words[:1]])}
    source = changed("encoder", tmp_path, {"vocab_size": 146}, longer)
    with open(source / "vocab.txt", "a", encoding="utf-8") as file:
        file.write("\n\n")
    for reader in ("tokenizer", "checkpoint"):
        assert READERS[reader](source)[144:] == [READERS["path"](source)[144], ""]
