"""The result of a verification."""

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """One output of one case.

    Attributes:
        case: the model that was built, such as `"unilm"`.
        output: `"sequence"`, `"pooled"`, `"nsp"` or `"mlm"`; of a task `"tags"`,
            `"starts"` or `"ends"`.
        length: int. Columns of the padded batch.
        largest: float, largest absolute difference.
        mean: float, mean absolute difference.
        same_top: float or None. Share of positions with the same best token.
        bar: float, the upper limit of `largest`.
    """

    case: str
    output: str
    length: int
    largest: float
    mean: float
    same_top: float | None
    bar: float

    @property
    def passed(self) -> bool:
        # A NaN fails this comparison.
        return bool(self.largest <= self.bar)


@dataclass(frozen=True)
class Report:
    """The comparisons of `verify`; `str` makes a table of them.

    Attributes:
        source: str.
        reference: str, such as `"bert4keras 0.11.5"`.
        layer_norm_epsilon: float of both sides.
        comparisons: tuple of `Comparison`.
    """

    source: str
    reference: str
    layer_norm_epsilon: float
    comparisons: tuple[Comparison, ...]

    @property
    def passed(self) -> bool:
        return bool(self.comparisons) and all(c.passed for c in self.comparisons)

    def to_dict(self) -> dict:
        """Plain JSON types."""
        return {
            "source": self.source,
            "reference": self.reference,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "passed": self.passed,
            "comparisons": [
                {**dataclasses.asdict(c), "passed": c.passed} for c in self.comparisons
            ],
        }

    def __str__(self) -> str:
        lines = [
            f"{self.source} against {self.reference} "
            f"(layer_norm_epsilon {self.layer_norm_epsilon:g})",
            "",
            f"{'case':<14} {'output':<9} {'length':>6} {'max diff':>9} "
            f"{'mean diff':>9} {'same top':>9} {'bar':>8}",
        ]
        for c in self.comparisons:
            top = "" if c.same_top is None else f"{c.same_top:.2%}"
            lines.append(
                f"{c.case:<14} {c.output:<9} {c.length:>6} {c.largest:>9.1e} "
                f"{c.mean:>9.1e} {top:>9} {c.bar:>8.1e}"
                f"{'' if c.passed else '  FAILED'}"
            )
        failed = sum(not c.passed for c in self.comparisons)
        count = len(self.comparisons)
        lines += [
            "",
            f"passed: all {count} outputs within their bars"
            if self.passed
            else f"FAILED: {failed} of {count} outputs are beyond their bars",
        ]
        return "\n".join(lines)
