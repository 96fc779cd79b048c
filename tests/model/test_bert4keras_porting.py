"""`roformer-keras port`, and the page on coming from bert4keras."""

import ast
import contextlib
import importlib
import json
import re
import warnings

import numpy as np
import pytest
from common import ROOT, SMALL, reference_folder, write_file
from sources import unpacked

from roformer_keras import bert4keras
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.bert4keras import keras2
from roformer_keras.cli import porting
from roformer_keras.cli.main import main
from tools.covered_names import PAGE, covered_names, with_table

SCRIPT = r"""
from bert4keras.backend import keras, K
from bert4keras.models import build_transformer_model, T5
from bert4keras.layers import GatedAttentionUnit, Dense
from bert4keras.toys import Toy
import bert4keras.snippets

# from bert4keras.models in a comment
model = build_transformer_model('a', 'b', model='albert')
K.learning_phase()
K.sum(model.layers[0].inbound_layers)
re.sub('\d', '', 'x')
class Own(keras.optimizers.Optimizer):
    def get_updates(self, loss, params): ...
"""


def port(text):
    """The ported text, which is complete: porting it again changes nothing."""
    ported = porting.port_script(text).text
    assert porting.port_script(ported).text == ported
    return ported


def test_only_imports_change():
    ported = port(SCRIPT)
    changed = [
        (one, other)
        for one, other in zip(SCRIPT.splitlines(), ported.splitlines(), strict=True)
        if one != other
    ]
    assert len(changed) == 5
    assert all("roformer_keras.bert4keras" in other for _, other in changed)


OURS = "roformer_keras.bert4keras"
PACKAGE = "from roformer_keras import bert4keras"
HABITS = f"from {OURS}.keras2 import keras2_habits; keras2_habits()"
# Scripts, and what becomes of them: all but the imports keeps its bytes.
IMPORTS = {
    "import bert4keras\nbert4keras.__version__": f"{PACKAGE}\nbert4keras.__version__",
    "import json, bert4keras": f"import json; {PACKAGE}",
    "import bert4keras.snippets, json as j": (
        f"import {OURS}.snippets; {PACKAGE}; import json as j"
    ),
    "import bert4keras as b, bert4keras.models as m": (
        f"{PACKAGE} as b; import {OURS}.models as m"
    ),
    "import os; from bert4keras.backend import K # 键\r\n": (
        f"import os; from {OURS}.backend import K # 键\r\n"
    ),
    "名 = '值'; from bert4keras import snippets": (
        f"名 = '值'; from {OURS} import snippets"
    ),
    "try:\n\timport bert4keras\nexcept ImportError:\n\tpass": (
        f"try:\n\t{PACKAGE}\nexcept ImportError:\n\tpass"
    ),
    "from \\\n  bert4keras.snippets import (\n  open, # 一\n)": (
        f"from \\\n  {OURS}.snippets import (\n  open, # 一\n)"
    ),
    "import os\r\nfrom keras.layers import Dense\r\nfrom bert4keras import layers": (
        f"import os\r\n{HABITS}\r\nfrom keras.layers import Dense\r\n"
        f"from {OURS} import layers"
    ),
    "import tensorflow as tf\nimport bert4keras.models\ntf.keras.Model": (
        f"{HABITS}\nimport tensorflow as tf\n"
        f"import {OURS}.models; {PACKAGE}\ntf.keras.Model"
    ),
    "import tensorflow as tf\nfrom bert4keras import layers\ntf.ones": (
        f"import tensorflow as tf\nfrom {OURS} import layers\ntf.ones"
    ),
    "from keras.layers import Dense": None,
    '"""\nimport bert4keras\n"""\nfrom .bert4keras import x\x0c\n': None,
    "from bert4keras_contrib import x, bert4keras\n# import bert4keras": None,
}


@pytest.mark.parametrize("script", IMPORTS)
def test_an_import_keeps_its_names_and_the_rest_its_text(script):
    assert port(script) == (IMPORTS[script] or script)
    assert porting.port_script(script).remarks == []


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that ports and runs a script; Keras has its own names again then."""
    with contextlib.ExitStack() as habits:
        enter = keras2.keras2_habits
        monkeypatch.setattr(
            keras2, "keras2_habits", lambda: habits.enter_context(enter())
        )
        monkeypatch.chdir(tmp_path)

        def run_ported(script):
            names = {"__name__": "__main__"}
            exec(compile(port(script), "ported.py", "exec"), names)
            return names

        yield run_ported


NO_SUCH_PACKAGE = ("from bert4keras_contrib", '"""')


@pytest.mark.parametrize(
    "script", [x for x in IMPORTS if not x.startswith(NO_SUCH_PACKAGE)]
)
def test_what_port_writes_runs(run, script):
    assert run(script)


# How scripts get Keras, with `Input`, `Dense`, `Lambda`, `Average`, `Model` and `load`.
FROM_KERAS = """
Input, Dense, Lambda = keras.Input, keras.layers.Dense, keras.layers.Lambda
Average, Model, load = keras.layers.Average, keras.models.Model, keras.models.load_model
"""
BY_NAME = """
from KERAS.layers import Average, Dense, Input, Lambda
from KERAS.models import Model, load_model as load
"""
STYLES = {
    "import keras": FROM_KERAS,
    "import keras.layers, keras.models": FROM_KERAS,
    "import keras as k": FROM_KERAS.replace("keras.", "k."),
    "from keras import layers, models": (
        FROM_KERAS.replace("keras.layers", "layers")
        .replace("keras.models", "models")
        .replace("keras.Input", "layers.Input")
    ),
    "from keras.layers import *\nfrom keras.models import *": (
        "load = load_model\nfrom keras import backend\nassert backend.int_shape"
    ),
    "from keras import backend as KB\nassert KB.permute_dimensions": (
        BY_NAME.replace("KERAS", "keras")
    ),
    "import tensorflow as tf": FROM_KERAS.replace("keras.", "tf.keras."),
    "import tensorflow as tf\nkeras = tf.keras": FROM_KERAS,
    "from tensorflow import keras": FROM_KERAS,
    "import tensorflow.keras as keras": FROM_KERAS,
    "import tensorflow.keras.layers as L": (
        BY_NAME.replace("KERAS", "tensorflow.keras") + "assert L.Dense is Dense"
    ),
    "from tensorflow.keras import layers": BY_NAME.replace("KERAS", "tensorflow.keras"),
    "from bert4keras.backend import keras, K": FROM_KERAS,
    "from bert4keras.layers import *": (
        "Model, load = keras.models.Model, keras.models.load_model"
    ),
    "from bert4keras.models import *\nfrom bert4keras.layers import *": (
        "load = keras.models.load_model"
    ),
    "from bert4keras.models import keras, Model": FROM_KERAS,
}
TRAINING = """
import numpy as np
from bert4keras.models import build_transformer_model

encoder = build_transformer_model(
    f"{FOLDER}/bert_config.json", f"{FOLDER}/bert_model.ckpt", model="roformer"
)
first = Lambda(lambda x: x[:, 0], output_shape=(8,))(encoder.output)
mean = Lambda(lambda x: x[:, 1], output_shape=(8,))(encoder.output)
hidden = Average()([first, mean])
model = Model(encoder.inputs, [Dense(2, kernel_initializer="ones")(hidden)])
model.compile("sgd", "mse", run_eagerly=True)
ids = np.array([[2, 5, 6, 3], [2, 7, 3, 0]])
before = np.array(model([ids, ids * 0]))
batches = iter([([ids, ids * 0], np.ones((2, 2)))])
model.fit_generator(batches, steps_per_epoch=1, verbose=0)
model.save_weights("best.weights")
model.load_weights("best.weights")
model.save("whole.model")
again = load("whole.model", safe_mode=False)
after = np.array(again([ids, ids * 0]))
assert type(again) is type(model) and hasattr(Dense, "get_output_at")
"""


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory):
    return unpacked(SMALL, tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def trained():
    """The numbers of the style that ran first."""
    return {}


# Styles that each take another way; the others run weekly.
TIERS = {
    "import keras": (),
    "import tensorflow as tf": (),
    "from keras.layers import *\nfrom keras.models import *": pytest.mark.slow,
    "from tensorflow.keras import layers": pytest.mark.slow,
    "from bert4keras.backend import keras, K": pytest.mark.slow,
}


@pytest.mark.filterwarnings("ignore:Layer 'lambda.*destroy the mask")
@pytest.mark.parametrize(
    "style",
    [
        pytest.param(style, marks=TIERS.get(style, pytest.mark.weekly))
        for style in STYLES
    ],
)
def test_a_training_runs_however_its_script_imports_keras(
    run, small_folder, trained, style
):
    import keras as keras3

    before = keras3.Model, keras3.layers.Dense, vars(keras3.layers).copy()
    script = f"{style}\n{STYLES[style]}\nFOLDER = {str(small_folder)!r}\n{TRAINING}"
    names = run(script)
    assert np.abs(names["after"] - names["before"]).max() > 1e-4
    expected = trained.setdefault("after", names["after"])
    np.testing.assert_allclose(names["after"], expected, atol=1e-6)
    assert before == (keras3.Model, keras3.layers.Dense, vars(keras3.layers))


# Lines that stay and need more, and words of the remark.
LEFT = {
    "import bert4keras.toys": "No module named 'roformer_keras.bert4keras.toys'",
    "from bert4keras import toys": "toys",
    "from bert4keras import snippets\nsnippets.nothing": "nothing",
    "import bert4keras as b\nb.layers.GatedAttentionUnit": "not cover",
    "import bert4keras.backend as B\nB.K.learning_phase": "learning_phase",
    "from bert4keras import backend as K, snippets\nK.nothing": "nothing",
    "importlib.import_module('bert4keras')": "import_module stays",
    "__import__('bert4keras.models')": "the text 'bert4keras.models' stays",
    "exec('import json\\nimport bert4keras')": "stays: it must name roformer_keras",
}


@pytest.mark.parametrize("script", LEFT)
def test_what_is_left_is_said_with_its_line(script):
    (remark,) = porting.port_script(script).remarks
    assert LEFT[script] in remark.message
    assert remark.line == len(script.splitlines())


NOTEBOOK = [
    ("markdown", "import bert4keras"),
    ("code", ["%matplotlib inline\n", "from bert4keras import backend as B\n"]),
    ("code", "%%time\nfrom bert4keras.snippets import open\nB.nothing\nB.K.sum?"),
    ("code", "!pip install \\\n  bert4keras\nif True:\n  !ls\nfiles = !ls"),
    ("code", "%%bash\npython -c 'import bert4keras'"),
    ("code", "print 'a'"),
    ("code", ["x = ('%d'\n", "     %len('')\n", ")"]),
]


def test_the_cells_of_a_notebook():
    cells = [{"cell_type": kind, "source": text} for kind, text in NOTEBOOK]
    ported = porting.port_notebook(json.dumps({"cells": cells, "nbformat": 4}))
    sources = [cell["source"] for cell in json.loads(ported.text)["cells"]]
    assert sources[1] == [NOTEBOOK[1][1][0], f"from {OURS} import backend as B\n"]
    assert sources[2] == NOTEBOOK[2][1].replace("bert4keras", OURS)
    others = [0, 3, 4, 5, 6]
    assert [sources[n] for n in others] == [NOTEBOOK[n][1] for n in others]
    assert [(remark.cell, remark.line) for remark in ported.remarks] == [
        *((3, 3), (4, 2), (5, 2), (6, 1))
    ]
    assert porting.port_notebook(ported.text).text == ported.text
    with pytest.raises(ConfigurationError, match="must be a notebook of version 4"):
        porting.port_notebook('{"worksheets": []}')


def test_names_that_are_not_covered_are_named_by_line():
    remarks = porting.port_script(SCRIPT).remarks
    assert {remark.line for remark in remarks} == {3, 4, 5, 9, 10, 11, 14}
    text = "\n".join(remark.message for remark in remarks)
    for part in ("T5", "GatedAttentionUnit", "toys", "'albert'", "learning_phase"):
        assert part in text


def test_what_is_no_python_is_refused():
    with pytest.raises(ConfigurationError, match=r"cannot be parsed in line 2"):
        porting.port_script("import os\nprint 'a'\n", "old.py")


def test_the_command(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    target = tmp_path / "ported.py"
    assert main(["port", str(script), "--output", str(target)]) == 1
    out = capsys.readouterr().out
    assert "+from roformer_keras.bert4keras.backend import keras, K" in out
    assert f"{script}:9: model='albert' is not covered" in out
    assert target.read_text(encoding="utf-8") == porting.port_script(SCRIPT).text
    text = "# coding: gbk\r\nfrom bert4keras.snippets import open  # 打开\r\n"
    script.write_bytes(text.encode("gbk"))
    assert main(["port", str(script), "--output", str(target), "--overwrite"]) == 0
    assert target.read_bytes() == text.replace("bert4keras", OURS).encode("gbk")
    notebook = tmp_path / "a.ipynb"
    cell = {"cell_type": "code", "source": ["import bert4keras.toys"]}
    write_file(notebook, {"cells": [cell]})
    assert main(["port", str(notebook)]) == 1
    assert f"{notebook}:cell 1, line 1: No module" in capsys.readouterr().out
    assert main(["port", str(tmp_path / "absent.py")]) == 2
    capsys.readouterr()


def test_the_page_has_the_names_of_the_code():
    text = PAGE.read_text(encoding="utf-8")
    assert with_table(text) == text, "run python -m tools.covered_names"
    assert all(covered_names().values())


@pytest.mark.skipif(reference_folder() is None, reason="needs bert4keras")
def test_every_name_of_bert4keras_is_covered_or_says_why_not():
    """Nothing of its public names is missing without a word."""
    kinds = ast.ClassDef | ast.FunctionDef
    modules = ("backend", "layers", "models", "optimizers", "snippets", "tokenizers")
    for module in modules:
        path = reference_folder() / "bert4keras" / f"{module}.py"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.name for node in tree.body if isinstance(node, kinds)}
        ours = importlib.import_module(f"roformer_keras.bert4keras.{module}")
        for name in names - NOT_FOR_SCRIPTS:
            try:
                assert name.startswith("_") or getattr(ours, name)
            except (AttributeError, ConfigurationError) as error:
                assert "cover" in str(error) or "withdrew" in str(error), name


# Inner workings that no published script imports.
NOT_FOR_SCRIPTS = {
    *("divisible_temporal_padding", "dtype", "graph_mode_decorator", "pool1d", "where"),
    *("Hook", "integerize_shape"),
}


def test_the_page_is_linked():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "docs/coming-from-bert4keras.md" in readme


# === The table of homes in the docstring of the package ===

HOMES = {
    f"{module}.{name}": file
    for module, names, file in re.findall(
        r"^\| `([\w.]+)`: (.*) \| `(.+)` \|$", bert4keras.__doc__, re.MULTILINE
    )
    for name in names.replace("`", "").split()
}
FOLDER = ROOT / "roformer_keras" / "bert4keras"


def is_defined(name, file):
    """True if a file defines a name at its top, or in a table of functions."""
    text = (FOLDER / file).read_text(encoding="utf-8")
    return re.search(
        rf'^(?:(?:def |class |(?:\w+ = )+)?|    "){name}\b', text, re.MULTILINE
    )


def test_each_name_of_the_original_is_in_the_file_that_the_package_names():
    for path, file in HOMES.items():
        module, _, names = path.partition(".")
        value = importlib.import_module(f"{OURS}.{module}")
        for name in names.split("."):
            value = getattr(value, name)
        # `K` is the whole file.
        assert name == "K" or is_defined(name, file), path
    for module, names in covered_names().items():
        for name in {*names} - {"K"} if module != "backend.K" else ():
            file = HOMES.get(f"{module}.{name}", f"{module}.py")
            assert is_defined(name.removesuffix("_v2"), file), (module, name)
