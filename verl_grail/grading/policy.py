"""What counts as the same answer where mathematics alone does not say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GradingPolicy:
    r"""Choices of the grader.

    Attributes:
        percent: ``lenient``: a percent sign may be missing or applied (``28\%``, ``28`` and ``0.28`` are the same where
            one of gold and prediction has the sign); ``strict``: ``28\%`` is 0.28 and nothing else.
        degrees: ``either``: the degree sign is a unit that may be missing, or turns degrees into radians; ``unit``:
            only the former, so ``45^\circ`` is not ``\pi/4``.
        units: ``lenient``: a unit may be missing on one side, two different known units are wrong; ``strict``: both
            sides must carry the same unit, or none.
        decimal_tolerance: relative error of a prediction against a gold that is no integer, where one of them is
            written as a decimal. Two numbers without a decimal point are compared exactly.
    """

    percent: str = "lenient"
    degrees: str = "either"
    units: str = "lenient"
    decimal_tolerance: float = 1e-6

    def __post_init__(self) -> None:
        for name, allowed in (
            ("percent", ("lenient", "strict")),
            ("degrees", ("either", "unit")),
            ("units", ("lenient", "strict")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of: {', '.join(allowed)}")
        if not 0 <= self.decimal_tolerance < 1:
            raise ValueError(f"decimal_tolerance={self.decimal_tolerance} must lie between 0 and 1")
