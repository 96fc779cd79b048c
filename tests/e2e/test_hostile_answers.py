"""Hostile presets of tasks and of an encoder-decoder, and texts given to them."""

import pytest
from hostile.answers import CASES
from hostile.run import check_row


@pytest.mark.parametrize("row", CASES)
def test_a_hostile_preset_or_text_is_one_line_of_error(
    row, tmp_path, monkeypatch, capsys
):
    check_row(row, tmp_path, monkeypatch, capsys)
