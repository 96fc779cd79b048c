"""Pairs of texts for a model and for the teacher that it learns from."""

from roformer_keras.pretraining.examples import PairEncoder

__all__ = ["TeacherPairEncoder"]


class TeacherPairEncoder:
    """A record of two texts, by the model's tokenizer and by the teacher's.

    Args:
        tokenizer: RoFormerTokenizer of the model.
        teacher_tokenizer: that of the teacher.
        max_length: see `PairEncoder`; of either.
        whole_word: see `PairEncoder`; of the model.

    Call arguments:
        record: (str, str).

    Returns:
        list of (a_ids, b_ids, a_starts, b_starts, a_teacher_ids, b_teacher_ids): one
        item, or none if a text has no token.
    """

    def __init__(self, tokenizer, teacher_tokenizer, max_length, whole_word=False):
        self.encoder = PairEncoder(tokenizer, max_length, whole_word)
        self.teacher_encoder = PairEncoder(teacher_tokenizer, max_length)

    def __call__(self, record):
        items, teacher_items = self.encoder(record), self.teacher_encoder(record)
        return [
            (*item, *teacher_item[:2])
            for item, teacher_item in zip(items, teacher_items, strict=True)
        ]
