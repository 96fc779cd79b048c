"""Generators that were exported: what they write, and what is refused."""

import functools
import gzip
import json
import shutil

import numpy as np
import pytest
from common import (
    GPT,
    ROOT,
    SHARED,
    SIM,
    change_json,
    json_lines,
    random_lm,
    read_json,
)
from common import run as start_python
from common import run_main as run

from roformer_keras import RoFormerCausalLM
from roformer_keras.base.errors import (
    CheckpointError,
    ConfigurationError,
    OutputError,
    SourceError,
)
from roformer_keras.export import (
    ServedEncoder,
    ServedGenerator,
    export_generator,
)
from roformer_keras.generation import GenerationConfig, Prompt, RowState
from roformer_keras.generation.prompts import as_prompt
from roformer_keras.generation.served import is_served_generator
from roformer_keras.generation.stateful import StatefulDecoder

pytestmark = pytest.mark.slow

TEXTS = ["今天天气不错", "北京", "我爱北京天安门"]
POEMS = SHARED / "data" / "poetry" / "tang_poems.jsonl.gz"


@pytest.fixture(scope="module")
def exports(request, tmp_path_factory):
    """`exports(name, int8)`: the folder of an export of a fixture's model."""
    root = tmp_path_factory.mktemp("served")

    @functools.cache
    def export(name, int8):
        folder = root / f"{name}-{int8}"
        model = request.getfixturevalue(name)
        metadata = export_generator(model, folder, int8=int8)
        assert metadata["int8"] is int8
        return folder

    return lambda name, int8=False: export(name, int8)


@pytest.fixture(scope="module")
def served(request, exports):
    """`served(name)`: the model of a fixture, and what was exported of it."""

    @functools.cache
    def load(name):
        return request.getfixturevalue(name), ServedGenerator(exports(name))

    return load


@pytest.mark.parametrize("name", ["causal_lm", "sim"])
def test_an_export_writes_what_the_model_writes(name, served):
    model, exported = served(name)
    for options in (
        {"method": "greedy", "max_new_tokens": 12},
        {"seed": 4, "num_return_sequences": 3, "max_new_tokens": 12, "top_p": 0.8},
        {"method": "beam", "num_beams": 3, "max_new_tokens": 6},
    ):
        expected = model.generate(TEXTS, engine="openvino", **options)
        assert exported.generate(TEXTS, **options) == expected
    options = {"seed": 4, "max_new_tokens": 12}
    assert "".join(exported.stream(TEXTS[0], **options)) == model.generate(
        TEXTS[0], engine="openvino", **options
    )
    # Lengths count alike.
    for more in ({}, {"max_length": 20}, {"min_length": 9}):
        assert as_prompt(exported, TEXTS[0], **more) == as_prompt(
            model, TEXTS[0], **more
        )


def test_paraphrases_and_vectors(served):
    sim, exported = served("sim")
    vectors = exported.encode(TEXTS)
    np.testing.assert_allclose(vectors, sim.encode(TEXTS), rtol=0, atol=1e-5)
    assert exported.encode(TEXTS[0]).shape == vectors[0].shape
    options = {"n": 8, "k": 5, "seed": 1, "max_new_tokens": 10}
    paraphrases = exported.paraphrase(TEXTS[:2], **options)
    expected = sim.paraphrase(TEXTS[:2], engine="openvino", **options)
    for ours, theirs in zip(paraphrases, expected, strict=True):
        assert [text for text, _ in ours] == [text for text, _ in theirs]
        cosines = [cosine for _, cosine in theirs]
        assert [cosine for _, cosine in ours] == pytest.approx(cosines, abs=1e-5)


def test_a_generator_without_vectors(served):
    _, exported = served("causal_lm")
    with pytest.raises(ConfigurationError, match=r"RoFormerSim, .* RoFormerCausalLM"):
        exported.paraphrase("今天", n=1)


def test_it_is_refused_before_the_work(served, monkeypatch, refused):
    _, exported = served("causal_lm")

    def unexpected(*arguments):
        raise AssertionError("texts are written")

    monkeypatch.setattr(StatefulDecoder, "start", unexpected)
    for k in (0, 1):
        with pytest.raises(ConfigurationError):
            exported.paraphrase("今天", n=1, k=k)
    arguments = ["paraphrase", "--source", exported.folder, "--text", "今天"]
    assert "which gives vectors" in refused(*arguments)


def test_an_export_has_one_engine(served, exports, refused):
    _, exported = served("causal_lm")
    options = {"method": "greedy", "max_new_tokens": 4}
    expected = exported.generate("今天", **options)
    assert exported.generate("今天", engine="openvino", **options) == expected
    message = "computes with its own engine, 'openvino', got"
    for write in (exported.generate, exported.stream):
        with pytest.raises(ConfigurationError, match=message):
            write("今天", engine="openvino-int8", **options)
    with pytest.raises(ConfigurationError, match="engine must be one of 'auto'"):
        exported.generate("今天", engine="tensorrt", **options)
    flags = ["--engine", "openvino-int8", "--text", "今天"]
    err = refused("generate", "--source", exported.folder, *flags)
    assert message in err and "leave out --engine" in err
    rounded = ServedGenerator(exports("causal_lm", True))
    assert rounded.generate("今天", engine="openvino-int8", **options)
    with pytest.raises(ConfigurationError, match="'openvino-int8', got 'openvino'"):
        rounded.generate("今天", engine="openvino", **options)


def test_what_an_export_says_of_itself(served):
    _, exported = served("sim")
    metadata = exported.metadata
    assert metadata["format"] == "openvino"
    assert metadata["model"] == "RoFormerSim" and metadata["int8"] is False
    assert metadata["generator"]["networks"] == ["decoder", "vectors"]
    assert 0 < metadata["differences"]["mean"] <= metadata["differences"]["largest"]
    assert metadata["differences"]["largest"] < 1e-4


def test_it_loads_and_writes_without_keras(exports, causal_lm):
    code = """
        import sys
        from roformer_keras.generation import ServedGenerator

        served = ServedGenerator(sys.argv[2])
        print(served.generate(sys.argv[1], method="greedy", max_new_tokens=12))
        print("keras" in sys.modules, "tensorflow" in sys.modules)
    """
    process = start_python(code, TEXTS[0], exports("causal_lm"))
    out, err = process.communicate()
    assert process.returncode == 0, err
    options = {"method": "greedy", "max_new_tokens": 12}
    expected = causal_lm.generate(TEXTS[0], engine="openvino", **options)
    assert out.splitlines() == [expected, "False False"]


def test_eight_bits_are_smaller(exports):
    folders = [exports("causal_lm", int8) for int8 in (False, True)]
    exact, rounded = ((folder / "decoder.bin").stat().st_size for folder in folders)
    assert rounded < 0.5 * exact
    metadata = read_json(folders[1] / "export.json")
    assert 1e-4 < metadata["differences"]["largest"] < 0.1


@pytest.mark.e2e
@pytest.mark.skipif(not POEMS.exists(), reason="needs poems")
def test_eight_bits_cost_less_than_a_percent_of_perplexity():
    """Of the shipped RoFormer-GPT on poems, each token after those before it."""
    model = RoFormerCausalLM.from_preset("roformer-gpt-char")
    with gzip.open(POEMS, "rt", encoding="utf-8") as lines:
        poems = ["".join(json.loads(line)["lines"]) for line in lines][-64:]
    rows = [model.text_tokenizer().encode(poem, max_length=48)[0] for poem in poems]
    exact, rounded = (
        perplexity(model._decoder(engine), rows)
        for engine in ("openvino", "openvino-int8")
    )
    assert 10 < exact < 200
    assert abs(rounded / exact - 1) < 0.01


def perplexity(decoder, rows):
    """The exponential of the mean cross-entropy of all tokens but the first."""
    prompts = [Prompt(tuple(ids[:1]), (0,), 99) for ids in rows]
    logits, state = decoder.start(prompts, 1, 99)
    endless = RowState.endless(GenerationConfig(method="greedy"), len(rows))
    losses = []
    for step in range(1, max(map(len, rows))):
        tokens = np.array([ids[step] if step < len(ids) else 0 for ids in rows])
        exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares = exponents / exponents.sum(axis=1, keepdims=True)
        chosen = shares[np.arange(len(rows)), tokens]
        losses += [
            -np.log(p) for p, ids in zip(chosen, rows, strict=True) if step < len(ids)
        ]
        uniforms = np.zeros((len(rows), 1), "float32")
        *_, logits, _ = decoder.advance(state, tokens, uniforms, endless)
    return float(np.exp(np.mean(losses)))


# === Commands ===


def test_commands_export_and_write(tmp_path, capsys):
    folder = tmp_path / "served"
    arguments = ["export", SIM, folder, "--generator", "--json"]
    code, out, err = run(*arguments, capsys=capsys)
    assert code == 0, err
    assert json.loads(out)["model"] == "RoFormerSim"
    common = ["--text", TEXTS[0], "--seed", 3, "--quiet"]
    for verb, flags in (
        ("generate", ["--num-return-sequences", 2, "--max-new-tokens", 9]),
        ("paraphrase", ["--n", 4, "--max-new-tokens", 9]),
    ):
        lines = []
        for source in (["--source", folder], ["--source", SIM, "--engine", "openvino"]):
            code, out, err = run(verb, *source, *flags, *common, capsys=capsys)
            assert code == 0, err
            lines.append(json_lines(out))
        ours, theirs = (str(rows)[:80] for rows in lines)
        assert ours == theirs


def test_export_shows_the_difference(tmp_path, capsys):
    folder = tmp_path / "served"
    code, out, _ = run("export", GPT, folder, "--generator", "--int8", capsys=capsys)
    assert code == 0
    assert out.splitlines()[0] == str(folder)
    assert "RoFormerCausalLM, logits to Keras at most" in out


# === Errors ===


def test_options_that_an_export_does_not_have(exports, tmp_path, refused):
    export = ("export", GPT, tmp_path / "x", "--generator")
    generate = ("generate", "--text", "今天", "--source", exports("causal_lm"))
    for words, message in (
        (
            (*export, "--format", "saved_model"),
            "exported to the format 'openvino', got 'saved_model'",
        ),
        (
            (*export, "--calibration-texts", ROOT / "README.md"),
            "need no texts to calibrate",
        ),
        ((*generate, "--unilm"), "leave out --model and --unilm"),
        (
            (*generate, "--config", ROOT / "README.md"),
            "leave out --config and --vocabulary",
        ),
    ):
        assert message in refused(*words)


def test_what_is_no_generator(exports, tmp_path, causal_lm, masked_lm):
    with pytest.raises(SourceError, match=r"has no export\.json of one"):
        ServedGenerator(tmp_path)
    with pytest.raises(ConfigurationError, match="got RoFormerMaskedLM"):
        export_generator(masked_lm, tmp_path / "x")
    folder = shutil.copytree(exports("causal_lm"), tmp_path / "served")
    with pytest.raises(OutputError, match="exists"):
        export_generator(causal_lm, folder)
    with pytest.raises(ConfigurationError, match="vectors"):
        ServedEncoder(folder)
    write_metadata(folder, format="onyx")
    with pytest.raises(SourceError, match=r"must be 'openvino'; .* has 'onyx'"):
        ServedGenerator(folder)
    model = random_lm(attention_type="linear", vocabulary_size=669)
    model.tokenizer = causal_lm.tokenizer
    with pytest.raises(ConfigurationError, match="need attention_type='softmax'"):
        export_generator(model, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def write_metadata(folder, **changes):
    change_json(folder / "export.json", **changes)


def generator_field(**changes):
    """A change of the field of the generator itself."""

    def damage(folder):
        metadata = read_json(folder / "export.json")
        write_metadata(folder, generator={**metadata["generator"], **changes})

    return damage


def with_text(text):
    return lambda folder: (folder / "export.json").write_bytes(text)


def cut(name):
    def damage(folder):
        path = folder / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return damage


# What happens to an export, and the error.
DAMAGED = [
    (with_text(b'{"model": "RoF'), r"export\.json is not valid JSON"),
    (with_text(b"5"), r"export\.json must hold one JSON object, got int"),
    (with_text(b"\xff\xfe{"), r"export\.json is not valid JSON"),
    (with_text(b'{"generator": {}}'), "must have the field 'model' of type str"),
    (lambda folder: write_metadata(folder, dim="32"), "'dim' of type int, got '32'"),
    (lambda folder: write_metadata(folder, format=[]), "'format' of type str"),
    (lambda folder: write_metadata(folder, generator=[]), "'generator' of type dict"),
    (lambda folder: write_metadata(folder, generator={}), "'networks' of type list"),
    (generator_field(reading={"vocabulary_size": 0}), "vocabulary_size must be an"),
    (generator_field(new_tokens={"fixed": "x"}), "fixed must be an integer of at"),
    (generator_field(networks=["vectors"]), "networks must be decoder, and may be"),
    (generator_field(networks=[["decoder"]]), "networks must be decoder, and may be"),
]
DAMAGED_FILES = [
    (lambda folder: (folder / "decoder.xml").unlink(), r"lacks .*decoder\.xml"),
    (lambda folder: (folder / "decoder.bin").unlink(), "or lacks its weights"),
    (cut("decoder.bin"), r"cannot load .*decoder\.xml, which is damaged"),
    (cut("decoder.xml"), r"cannot load .*decoder\.xml, which is damaged"),
]


def test_a_damaged_export(served, tmp_path, refused):
    _, exported = served("sim")
    for number, (damage, message) in enumerate(DAMAGED + DAMAGED_FILES):
        folder = tmp_path / str(number)
        shutil.copytree(exported.folder, folder)
        damage(folder)
        with pytest.raises((ConfigurationError, SourceError), match=message) as error:
            ServedGenerator(folder)
        assert len(str(error.value).splitlines()) == 1
    words = ("generate", "--source", folder, "--text", "今天", "--quiet")
    assert str(error.value) in refused(*words, code=error.value.exit_code)


def test_a_damaged_export_of_vectors(served, tmp_path):
    _, exported = served("sim")
    folder = shutil.copytree(exported.folder, tmp_path / "x")
    outputs = {"vectors": "float32 (batch, 32)"}
    for text, message in (
        (b"[]", "must hold one JSON object, got list"),
        (b"{}", "must have the field 'model'"),
    ):
        (tmp_path / "export.json").write_bytes(text)
        with pytest.raises(ConfigurationError, match=message):
            ServedEncoder(tmp_path)
    for fields, message in (
        ({"outputs": 5}, "'outputs' of type dict, got 5"),
        ({"outputs": outputs, "options": None}, "'options' of type dict, got None"),
        ({"options": {"max_length": "x"}}, "max_length must be an integer"),
        ({"options": {}, "format": "tar"}, "the export in .* has 'tar'"),
        ({"format": "onnx"}, r"the export lacks .*model\.onnx"),
    ):
        write_metadata(folder, **fields)
        with pytest.raises((ConfigurationError, SourceError), match=message):
            ServedEncoder(folder)
    for format, name in (("onnx", "model.onnx"), ("openvino", "model.xml")):
        write_metadata(folder, format=format)
        (folder / name).write_bytes(b"<net")
        with pytest.raises(
            SourceError, match=f"cannot load .*{name}, which is damaged"
        ):
            ServedEncoder(folder)


def test_a_source_that_is_no_export(refused):
    """It is no path either: longer than a name of a file may be."""
    for verb in ("generate", "paraphrase"):
        err = refused(verb, "--source", "x" * 300, "--text", "今")
        assert "a source must be a path or a name" in err
    assert not is_served_generator("x" * 300)
    with pytest.raises(SourceError, match="has no export"):
        ServedGenerator("x" * 300)


def test_an_export_is_not_exported_again(served, tmp_path, refused):
    _, exported = served("causal_lm")
    with pytest.raises(ConfigurationError, match="is an export already"):
        export_generator(exported, tmp_path / "x")
    folder = exported.folder
    err = refused("export", folder, tmp_path / "x", "--generator")
    assert f"{folder} is an export already" in err
    assert not (tmp_path / "x").exists()


def test_weights_that_are_no_numbers_are_not_exported(tmp_path):
    model = RoFormerCausalLM.from_preset(GPT)
    kernel = model.backbone.transformer_layers[0].attention.value.kernel
    value = kernel.numpy()
    value[0, 0] = np.nan
    kernel.assign(value)
    with pytest.raises(CheckpointError, match=r"weights must be finite numbers"):
        export_generator(model, tmp_path / "x", int8=True)
    assert not (tmp_path / "x").exists()


def test_an_export_that_differs_is_not_kept(causal_lm, tmp_path, monkeypatch):
    start = type(causal_lm._decoder()).start

    def shifted(self, *arguments):
        logits, state = start(self, *arguments)
        return logits + 0.01, state

    monkeypatch.setattr(type(causal_lm._decoder()), "start", shifted)
    with pytest.raises(OutputError, match=r"within 0\.0001 of Keras's"):
        export_generator(causal_lm, tmp_path / "x")
    assert not (tmp_path / "x").exists()
