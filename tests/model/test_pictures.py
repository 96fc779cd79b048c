"""tools.pictures: the pictures of the documents show the recorded figures."""

import numpy as np
from PIL import Image

from tools import pictures


def test_pictures_are_drawn_from_the_recorded_figures(tmp_path, monkeypatch):
    committed = {
        path.name: pixels(path)
        for folder, names in (
            (pictures.FOLDER, pictures.PICTURES),
            (pictures.OF_EXPERIMENTS, pictures.EXPERIMENTS),
        )
        for path in (folder / f"{name}.png" for name in names)
    }
    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    monkeypatch.setattr(pictures, "OF_EXPERIMENTS", tmp_path)
    pictures.main([])
    drawn = {path.name: pixels(path) for path in tmp_path.glob("*.png")}
    assert drawn.keys() == committed.keys()
    for name, own in drawn.items():
        # Another version of Matplotlib may smooth its lines otherwise.
        assert np.abs(own - committed[name]).mean() < 1, name


def pixels(path):
    return np.asarray(Image.open(path).convert("L"), "float32")
