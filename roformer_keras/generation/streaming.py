"""Text that can be shown while it is being written."""

from collections.abc import Callable, Iterable, Iterator

__all__ = ["text_pieces"]


def text_pieces(
    token_ids: Iterable[int],
    decode: Callable[[list[int]], str],
    is_settled: Callable[[int], bool],
) -> Iterator[str]:
    """Pieces of a text that together are all of its ids decoded.

    How tokens are spaced depends on those that follow, so a piece is held back until a
    token comes before which nothing can change any more.

    Args:
        token_ids: the ids, as they come.
        decode: of a list of ids to text.
        is_settled: whether a token always ends what was written before it, itself
            included.
    """
    ids, shown = [], ""
    for token_id in token_ids:
        ids.append(token_id)
        if is_settled(token_id):
            text = decode(ids)
            yield text[len(shown) :]
            shown = text
    rest = decode(ids)[len(shown) :]
    if rest:
        yield rest
