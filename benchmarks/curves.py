"""Curves as a page of small charts in SVG, without a plotting library."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_WIDTH: Final = 260
_HEIGHT: Final = 130
_MARGIN: Final = 30
_COLUMNS: Final = 4
_STYLE: Final = (
    ".f{fill:#ffffff}text{fill:#1f2328}.s{fill:#59636e}.a{stroke:#d1d9e0}.c{stroke:#0969da}"
    "@media (prefers-color-scheme: dark){"
    ".f{fill:#0d1117}text{fill:#e6edf3}.s{fill:#9198a1}.a{stroke:#3d444d}.c{stroke:#4493f8}}"
)
"""Colours of light and of dark pages."""


@dataclass(frozen=True)
class Curve:
    """A named line."""

    name: str
    points: Sequence[tuple[float, float]]


def draw(curves: Sequence[Curve]) -> str:
    """Return an SVG document with a chart for each curve; every axis begins at zero."""
    rows = -(-len(curves) // _COLUMNS)
    charts = "".join(
        f'<g transform="translate({number % _COLUMNS * _WIDTH},{number // _COLUMNS * _HEIGHT})">'
        f"{_chart(curve)}</g>"
        for number, curve in enumerate(curves)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_COLUMNS * _WIDTH}" '
        f'height="{rows * _HEIGHT}" font-family="sans-serif" font-size="10">'
        f"<style>{_STYLE}</style>"
        f'<rect class="f" width="100%" height="100%"/>{charts}</svg>\n'
    )


def _chart(curve: Curve) -> str:
    right, bottom = _WIDTH - 15, _HEIGHT - 20
    last = max((x for x, _ in curve.points), default=0) or 1
    top = max((y for _, y in curve.points), default=0)
    places = [
        (
            _MARGIN + x / last * (right - _MARGIN),
            bottom - y / (top or 1) * (bottom - _MARGIN),
        )
        for x, y in curve.points
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return (
        f'<text x="{_MARGIN}" y="14">{escape(curve.name)}</text>'
        f'<text x="{_MARGIN}" y="26" class="s">{top:,.10g} at most</text>'
        f'<path d="M{_MARGIN},{_MARGIN}V{bottom}H{right}" class="a" fill="none"/>'
        f'<text x="{right}" y="{bottom + 12}" class="s" text-anchor="end">{last:,.10g}</text>'
        f'<polyline points="{line}" class="c" fill="none" stroke-width="2"/>'
    )
