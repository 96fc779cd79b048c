"""tools.pictures: the pictures of the documents are those of recorded figures."""

from tools import pictures


def test_pictures_are_drawn_from_the_recorded_figures(tmp_path, monkeypatch):
    kept = {
        path.name: path.read_bytes()
        for folder, names in (
            (pictures.FOLDER, pictures.PICTURES),
            (pictures.OF_EXPERIMENTS, pictures.EXPERIMENTS),
        )
        for path in (folder / f"{name}.png" for name in names)
    }
    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    monkeypatch.setattr(pictures, "OF_EXPERIMENTS", tmp_path)
    pictures.main([])
    drawn = {path.name: path.read_bytes() for path in tmp_path.glob("*.png")}
    # Bytes differ with the version of Matplotlib; sizes do not.
    assert {name: content[:24] for name, content in drawn.items()} == {
        name: content[:24] for name, content in kept.items()
    }
