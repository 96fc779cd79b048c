"""The front matter of the shipped checkpoints' cards, as the Hub reads it."""

import pytest
import yaml
from common import ROOT

CARDS = {
    "roformer-char": ("fill-mask", "30.2 %"),
    "roformer-gpt-char": ("text-generation", "64.9"),
    "roformer-sim-char": ("sentence-similarity", "93.8 %"),
}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_says_what_the_hub_asks_for(name):
    pipeline, shown = CARDS[name]
    text = (ROOT / "checkpoints" / f"{name}.md").read_text(encoding="utf-8")
    _, front, body = text.split("---\n", 2)
    fields = yaml.safe_load(front)
    assert fields["pipeline_tag"] == pipeline
    assert fields["license"] == "apache-2.0"
    assert {"roformer", "roformer-keras"} <= set(fields["tags"])
    assert body.startswith(f"\n# {name}\n")
    # The result is the one that the README shows.
    (model,) = fields["model-index"]
    (result,) = model["results"]
    (metric,) = result["metrics"]
    assert model["name"] == name
    assert float(shown.split()[0]) == metric["value"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (row,) = (line for line in readme.splitlines() if line.startswith(f"| `{name}`"))
    assert shown in row
