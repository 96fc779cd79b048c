"""Methods that read lists of texts refuse tables and dicts, whose loops give names."""

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from common import CHARACTER

from roformer_keras import RoFormerMaskedLM, RoFormerTextRegressor
from roformer_keras.base.errors import ConfigurationError, SourceError

TEXTS = {"text": ["今天", "学习", "北京"]}
TABLES = {
    "pandas": pd.DataFrame(TEXTS),
    "polars": pl.DataFrame(TEXTS),
    "arrow": pa.table(TEXTS),
    "dict": TEXTS,
}


@pytest.mark.parametrize("kind", TABLES)
def test_what_reads_lists_refuses_tables(kind, causal_lm, sim):
    table = TABLES[kind]
    masked_lm = RoFormerMaskedLM.from_preset(CHARACTER, num_layers=1)
    for read in (
        lambda: causal_lm.generate(table, max_new_tokens=1),
        lambda: sim.paraphrase(table),
        lambda: sim.similarity(table, table),
        lambda: sim.tokenizer(table),
        lambda: sim.tokenizer(TEXTS["text"], table),
        lambda: masked_lm.fill_mask(table),
    ):
        with pytest.raises(ConfigurationError):
            read()


def test_a_tuple_of_tuples_that_may_be_rows_or_columns_is_refused():
    model = RoFormerTextRegressor.from_preset(CHARACTER, num_layers=1)
    rows = [("今天", "她在"), ("天气", "学习")]
    for ambiguous in (tuple(rows), (rows[0],)):
        with pytest.raises(ConfigurationError, match="may hold rows or columns"):
            model.predict(ambiguous)
    columns = tuple(map(list, zip(*rows, strict=True)))
    assert model.predict(rows).tolist() == model.predict(columns).tolist()
    # These are columns: no model takes three texts.
    assert len(model.predict((("今", "天", "她"), ("她", "在", "今")))) == 3


def test_a_file_of_pairs_is_no_file_of_single_texts(tmp_path):
    from roformer_keras.tables.files import read_table

    path = tmp_path / "pairs.csv"
    path.write_text("first,second,label\n今天,她在,1\n", encoding="utf-8")
    with pytest.raises(SourceError, match="has the columns 'first' and 'second'"):
        read_table(path, 1, labelled=False)
    assert read_table(path, 2).texts == [("今天", "她在")]
