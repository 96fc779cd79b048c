"""`roformer-keras list`."""

from roformer_keras.cli.texts import print_json
from roformer_keras.hub.catalog import CATALOG, SHIPPED, downloaded


def run(*, as_json: bool = False) -> None:
    """List the released checkpoints, and those of this package."""
    here = {entry.name: downloaded(entry.name) is not None for entry in CATALOG}
    if as_json:
        released = [{**e.to_dict(), "downloaded": here[e.name]} for e in CATALOG]
        shipped = [{**e.to_dict(), "downloaded": True} for e in SHIPPED]
        print_json(released + shipped)
        return
    print(f"{'name':<46} {'model':<17} {'tokens':<10} {'MB':>5}  here")
    for entry in CATALOG:
        print(
            f"{entry.name:<46} {entry.model_class:<17} {entry.level:<10} "
            f"{entry.download_megabytes:>5}  {'yes' if here[entry.name] else 'no'}"
        )
    print("\nwith this package, small, under either name")
    for own in SHIPPED:
        print(f"{own.name:<46} {own.model_class:<17} {own.alias}")
        print(f"  {own.description}")
