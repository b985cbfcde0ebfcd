"""Token weight -> background colour: a diverging scale around 1 that works on a light and on a dark page."""

from __future__ import annotations

import math

WEIGHT_LOW = 0.5
"""Weight from which the blue side is at full strength: GRAIL's default `w_min`."""
WEIGHT_HIGH = 5.0
"""Weight from which the orange side is at full strength: GRAIL's default `w_max`."""

# Fixed ends rather than each rollout's own range, so that colours mean the same on every page. Blue against orange
# is told apart under the common colour-vision deficiencies. `fg` keeps a contrast of 4.5 : 1 on every shade (a test
# computes it), hence the darker ends on the dark page.
LIGHT = {"bg": (255, 255, 255), "fg": (27, 27, 27), "low": (92, 160, 235), "high": (242, 140, 40)}
DARK = {"bg": (21, 23, 26), "fg": (238, 238, 238), "low": (38, 98, 178), "high": (168, 82, 0)}

LEGEND_WEIGHTS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0)


def strength(weight: float | None) -> tuple[str, float]:
    """Side of the scale (``low``, ``high`` or empty at 1 and without a weight) and strength in [0, 1].

    Logarithmic, so that a weight of 0.8 is as far from 1 as one of 1.25 is in proportion to its side's end; the
    square root lifts the many weights near 1, which would otherwise all look white.
    """
    if weight is None or weight == 1.0:
        return "", 0.0
    side, end = ("low", WEIGHT_LOW) if weight < 1.0 else ("high", WEIGHT_HIGH)
    share = 1.0 if weight <= 0.0 else math.log(weight) / math.log(end)
    return side, math.sqrt(min(1.0, share))


def css_variables() -> str:
    """Both palettes as CSS custom properties, the dark one where the reader's system asks for it."""

    def block(palette: dict[str, tuple[int, int, int]]) -> str:
        return " ".join(f"--{name}: {r} {g} {b};" for name, (r, g, b) in palette.items())

    return (
        f":root {{ color-scheme: light dark; {block(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {block(DARK)} }} }}\n"
    )


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """WCAG 2 contrast ratio of two sRGB colours (0..255 each), between 1 and 21."""

    def luminance(colour: tuple[float, ...]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)]
        return sum(k * c for k, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)
