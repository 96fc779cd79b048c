"""`roformer-keras port`, and the page on coming from bert4keras."""

import ast
import importlib
import warnings

import pytest
from common import ROOT, reference_folder

from roformer_keras.bert4keras import porting
from roformer_keras.cli.main import main
from roformer_keras.errors import ConfigurationError
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


def test_only_imports_change():
    ported = porting.port_imports(SCRIPT)
    changed = [
        (one, other)
        for one, other in zip(SCRIPT.splitlines(), ported.splitlines(), strict=True)
        if one != other
    ]
    assert len(changed) == 5
    assert all("roformer_keras.bert4keras" in other for _, other in changed)
    assert porting.port_imports(ported) == ported


def test_names_that_are_not_covered_are_named_by_line():
    remarks = porting.find_remarks(SCRIPT)
    assert {remark.line for remark in remarks} == {3, 4, 5, 6, 9, 10, 11, 14}
    text = "\n".join(remark.message for remark in remarks)
    for part in ("T5", "GatedAttentionUnit", "toys", "'albert'", "learning_phase"):
        assert part in text


def test_what_is_no_python_is_refused():
    with pytest.raises(ConfigurationError, match=r"cannot be parsed in line 2"):
        porting.find_remarks("import os\nprint 'a'\n", "old.py")


def test_the_command(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    target = tmp_path / "ported.py"
    assert main(["port", str(script), "--output", str(target)]) == 1
    out = capsys.readouterr().out
    assert "+from roformer_keras.bert4keras.backend import keras, K" in out
    assert f"{script}:9: model='albert' is not covered" in out
    assert target.read_text(encoding="utf-8") == porting.port_imports(SCRIPT)
    script.write_text("from bert4keras.snippets import open\n", encoding="utf-8")
    assert main(["port", str(script)]) == 0
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
            except ConfigurationError as error:
                assert "cover" in str(error), name


# Inner workings that no published script imports.
NOT_FOR_SCRIPTS = {
    *("divisible_temporal_padding", "dtype", "graph_mode_decorator", "pool1d", "where"),
    *("integerize_shape",),
}


def test_the_page_is_linked():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "docs/coming-from-bert4keras.md" in readme
