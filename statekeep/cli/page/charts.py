"""Charts as inline SVG: bars that stand on each other, and lines over time; a table behind each.

A series is told by colour, by pattern or dashes, and by its name. Every mark has its figures as a tooltip.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from statekeep.cli.page.bins import Axis
from statekeep.cli.page.markup import Markup, tag
from statekeep.cli.page.units import moment

_WIDTH: Final = 960
_HEIGHT: Final = 230
_LEFT: Final = 84
_RIGHT: Final = 8
_TOP: Final = 20
_BOTTOM: Final = 26
_PLOT_WIDTH: Final = _WIDTH - _LEFT - _RIGHT
_PLOT_HEIGHT: Final = _HEIGHT - _TOP - _BOTTOM
_Y_TICKS: Final = 4
_X_TICKS: Final = 6
_LONGEST_GAP: Final = 10
"""In steps: a line does not bridge more, where a job stood still."""
_STYLES: Final = 6
"""Of series, in the style sheet and the patterns."""

Format = Callable[[float | None], str]


@dataclass(frozen=True, slots=True)
class Series:
    """One row of values, a value for each step of the axis; None where nothing is known."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at one moment, such as a start."""

    time_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn."""

    key: str
    """Part of ids on the page."""
    title: str
    about: str
    """What is to be seen, in a sentence."""
    axis: Axis
    text_of: Format
    """Of values."""
    bars: Sequence[Series] = ()
    """Stand on each other."""
    lines: Sequence[Series] = ()
    marks: Sequence[Mark] = ()
    least_top: float = 0
    """The vertical axis reaches this far at least."""

    @property
    def series(self) -> list[Series]:
        """All of them; their place says how each looks."""
        return [*self.bars, *self.lines]


def figure(chart: Chart) -> Markup:
    """Return a chart with its title, legend and table."""
    heading = tag("h3", chart.title, id=f"{chart.key}-title")
    about = tag("p", chart.about, class_="about", id=f"{chart.key}-about")
    if not any(value for series in chart.series for value in series.values):
        return tag("figure", heading, about, tag("p", "Nothing on record.", class_="none"))
    return tag(
        "figure",
        tag("figcaption", heading, about),
        _legend(chart),
        tag("div", _svg(chart), class_="scroll"),
        _table(chart),
    )


def patterns() -> Markup:
    """Return what the fills of bars refer to; once on a page."""
    shapes = [
        "",
        tag("path", d="M0 6L6 0M-1 1L1 -1M5 7L7 5"),
        tag("path", d="M0 0L6 6M-1 5L1 7M5 -1L7 1"),
        tag("path", d="M0 3H6"),
        tag("path", d="M3 0V6"),
        tag("circle", cx=3, cy=3, r=1.2),
    ]
    return tag(
        "svg",
        tag(
            "defs",
            *(
                tag(
                    "pattern",
                    tag("rect", width=6, height=6),
                    tag("g", shape),
                    id=f"fill-{number}",
                    class_=f"series-{number}",
                    width=6,
                    height=6,
                    patternUnits="userSpaceOnUse",
                )
                for number, shape in enumerate(shapes)
            ),
        ),
        class_="patterns",
        width=0,
        height=0,
        aria_hidden="true",
    )


def _legend(chart: Chart) -> Markup:
    items: list[Markup] = []
    for number, series in enumerate(chart.series):
        if number < len(chart.bars):
            sign = tag("rect", width=14, height=14, fill=f"url(#fill-{number % _STYLES})")
        else:
            sign = tag("line", x1=0, x2=28, y1=7, y2=7, class_=f"line series-{number % _STYLES}")
        width = 14 if number < len(chart.bars) else 28
        svg = tag("svg", sign, width=width, height=14, aria_hidden="true")
        items.append(tag("li", svg, " ", series.name))
    if chart.marks:
        items.append(tag("li", tag("span", "▼", class_="mark"), " start of a driver session"))
    return tag("ul", *items, class_="legend")


def _svg(chart: Chart) -> Markup:
    top = _nice_top(max(_highest(chart), chart.least_top))
    parts = [*_grid(chart, top), *_bars(chart, top), *_lines(chart, top), *_marks(chart)]
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_labelledby=f"{chart.key}-title",
        aria_describedby=f"{chart.key}-about",
    )


def _highest(chart: Chart) -> float:
    stacked = [sum(v or 0 for v in column) for column in zip(*_values(chart.bars), strict=True)]
    single = [value or 0 for values in _values(chart.lines) for value in values]
    return max([*stacked, *single], default=0)


def _values(series: Sequence[Series]) -> list[Sequence[float | None]]:
    return [each.values for each in series]


def _nice_top(highest: float) -> float:
    """Return the least of 2, 4 or 8 times a power of ten that nothing is above: four equal parts."""
    power = 1e-3
    while True:
        for factor in (2, 4, 8):
            if factor * power >= highest:
                return factor * power
        power *= 10


def _grid(chart: Chart, top: float) -> list[Markup]:
    parts: list[Markup] = []
    for tick in range(_Y_TICKS + 1):
        value = top * tick / _Y_TICKS
        y = _y_of(value, top)
        parts.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid"))
        label = chart.text_of(value)
        parts.append(tag("text", label, x=_LEFT - 8, y=y + 4, text_anchor="end"))
    every = max(1, -(-chart.axis.count // _X_TICKS))
    span_ms = chart.axis.step_ms * chart.axis.count
    for number in range(0, chart.axis.count, every):
        label = _clock(chart.axis.begin_of(number), span_ms)
        parts.append(tag("text", label, x=_x_of(chart.axis, number), y=_HEIGHT - 8))
    return parts


def _bars(chart: Chart, top: float) -> list[Markup]:
    parts: list[Markup] = []
    width = max(1.0, _PLOT_WIDTH / chart.axis.count - 1)
    for step in range(chart.axis.count):
        base = 0.0
        for number, series in enumerate(chart.bars):
            value = series.values[step]
            if not value:
                continue
            upper = _y_of(base + value, top)
            parts.append(
                tag(
                    "rect",
                    tag("title", _tip(chart, series, step)),
                    x=_x_of(chart.axis, step),
                    y=upper,
                    width=round(width, 2),
                    height=round(_y_of(base, top) - upper, 2),
                    fill=f"url(#fill-{number % _STYLES})",
                )
            )
            base += value
    return parts


def _lines(chart: Chart, top: float) -> list[Markup]:
    parts: list[Markup] = []
    half = _PLOT_WIDTH / chart.axis.count / 2
    for number, series in enumerate(chart.lines, len(chart.bars)):
        style = f"series-{number % _STYLES}"
        path: list[str] = []
        dots: list[Markup] = []
        last: int | None = None
        for step, value in enumerate(series.values):
            if value is None:
                continue
            x, y = round(_x_of(chart.axis, step) + half, 2), _y_of(value, top)
            path.append(f"{'M' if last is None or step - last > _LONGEST_GAP else 'L'}{x} {y}")
            tip = tag("title", _tip(chart, series, step))
            dots.append(tag("circle", tip, cx=x, cy=y, r=2.5, class_=style))
            last = step
        parts += [tag("path", d="".join(path), class_=f"line {style}"), *dots]
    return parts


def _marks(chart: Chart) -> list[Markup]:
    parts: list[Markup] = []
    for mark in chart.marks:
        passed = (mark.time_ms - chart.axis.first_ms) / (chart.axis.step_ms * chart.axis.count)
        x = round(_LEFT + passed * _PLOT_WIDTH, 2)
        parts.append(
            tag(
                "g",
                tag("title", f"{moment(mark.time_ms)} {mark.text}"),
                tag("line", x1=x, x2=x, y1=_TOP, y2=_TOP + _PLOT_HEIGHT),
                tag("path", d=f"M{x - 5} {_TOP - 10}h10l-5 9z"),
                class_="mark",
            )
        )
    return parts


def _table(chart: Chart) -> Markup:
    names = ["from (UTC)", *(series.name for series in chart.series)]
    heads = tag("tr", *(tag("th", name, scope="col") for name in names))
    rows = [
        tag(
            "tr",
            tag("th", moment(chart.axis.begin_of(step)), scope="row"),
            *(tag("td", chart.text_of(series.values[step])) for series in chart.series),
        )
        for step in range(chart.axis.count)
        if any(series.values[step] for series in chart.series)
    ]
    return tag(
        "details",
        tag("summary", "Figures as a table"),
        tag(
            "div",
            tag("table", tag("thead", heads), tag("tbody", *rows)),
            class_="scroll",
        ),
        id=f"{chart.key}-figures",
    )


def _tip(chart: Chart, series: Series, step: int) -> str:
    return (
        f"{moment(chart.axis.begin_of(step))} {series.name}: {chart.text_of(series.values[step])}"
    )


def _x_of(axis: Axis, step: int) -> float:
    return round(_LEFT + step / axis.count * _PLOT_WIDTH, 2)


def _y_of(value: float, top: float) -> float:
    return round(_TOP + _PLOT_HEIGHT * (1 - value / top), 2)


_SECOND_MS: Final = 1000
_DAY_MS: Final = 86_400_000


def _clock(time_ms: int, span_ms: int) -> str:
    """Return a time as a label that is only as fine as it must be."""
    when = datetime.fromtimestamp(time_ms / 1000, UTC)
    if span_ms > 2 * _DAY_MS:
        return f"{when:%d %b %H:%M}"
    if span_ms > 600 * _SECOND_MS:
        return f"{when:%H:%M}"
    return f"{when:%H:%M:%S}" + (f".{time_ms % 1000:03}" if span_ms < 6 * _SECOND_MS else "")
