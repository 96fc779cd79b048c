"""Hostile flags, settings and tables of labelled texts."""

import pytest
from hostile import choices, options, tables
from hostile.run import check_row

pytestmark = pytest.mark.slow

ROWS = [
    pytest.param(row, id=f"{module.__name__}-{number}")
    for module in (choices, options, tables)
    for number, row in enumerate(module.CASES)
]


@pytest.mark.parametrize("row", ROWS)
def test_a_hostile_option_or_table_is_one_line_of_error(
    row, tmp_path, monkeypatch, capsys
):
    check_row(row, tmp_path, monkeypatch, capsys)
