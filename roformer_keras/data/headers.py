"""First lines of tables that name the columns, in words that are usual for it."""

import re
from collections.abc import Sequence

__all__ = ["columns_of_header", "is_header"]

# Words that names of columns are made of: of a text, of a label, and of neither.
_OF_TEXTS = """
    text texts sentence sent review reviews comment content title body document doc
    paragraph passage context article abstract summary query question premise hypothesis
    answer response first second third anchor positive negative
    文本 句子 评论 内容 标题 正文 摘要 问题 答案 回答
"""
_OF_LABELS = """
    label labels class classes category cat tag tags target score rating star stars
    sentiment emotion polarity intent topic similarity duplicate entailment spans answer
    answers 标签 类别 分类 情感 评分 分数 得分 星级 答案
"""
_TEXTS, _LABELS = set(_OF_TEXTS.split()), set(_OF_LABELS.split())
_NEITHER = {"id", "ids", "idx", "index", "qid", "uid"}
# Of two texts those that are called so come second.
_SECOND = {"2", "b", "context", "passage", "paragraph", "hypothesis", "answer"}

_NAME = re.compile(
    r"[A-Za-z][A-Za-z0-9_.-]{0,39}|([\u4e00-\u9fff]{2}){1,3}[_ ]?[0-9A-Za-z]?"
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+|[\u4e00-\u9fff]{2}")


def is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first of these rows of cells is plainly none, but names the columns.

    All its cells look like names, one of them is a usual one, and none of them comes
    again in its column, as a class would.
    """
    names, *others = rows
    words = [_words(name) for name in names]
    return (
        None not in words
        and any(_TEXTS & own or _LABELS & own for own in words)
        and not any(
            name and name == cell
            for cells in others
            for name, cell in zip(names, cells, strict=False)
        )
    )


def columns_of_header(
    names: Sequence[str], count: int, labelled: bool
) -> list[int] | None:
    """Which columns are meant, if the names leave no doubt.

    Args:
        names: of the columns, as of `is_header`.
        count: int. Texts of a row.
        labelled: bool. Whether a label is read too.

    Returns:
        Numbers from 0 of the columns of `count` texts and of the label, if the names
        are of so many texts and one label, in this order; columns of neither may stand
        anywhere, and labels that are not read behind the texts. None otherwise.
    """
    words = [_words(name) for name in names]
    columns = [
        place
        for place, own in enumerate(words)
        if not _NEITHER & own and (_TEXTS | _LABELS) & own
    ]
    texts, rest = columns[:count], columns[count:]
    is_plain = (
        len(texts) == count
        and all(_TEXTS & words[place] for place in texts)
        and all(_LABELS & words[place] for place in rest)
        and (len(rest) == 1 or not labelled)
        and (count == 1 or not _SECOND & words[texts[0]])
    )
    return texts + rest[:labelled] if is_plain else None


def _words(name):
    """The words of a name; None if the cell looks like none."""
    name = name.strip()
    if name and not _NAME.fullmatch(name):
        return None
    words = {word.lower() for word in _WORD.findall(name)}
    # Other Chinese words may well be a text or a class.
    others = {word for word in words if not word.isascii()} - _TEXTS - _LABELS
    return None if others else words
