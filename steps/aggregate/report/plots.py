"""The report's plots, drawn by matplotlib as small PNGs: the same figures give the same bytes.

Nothing of the user's is drawn, so no font can lack a sign and no text can be more than text. Each plot comes for a
light ground and for a dark one. Figures are drawn without pyplot, whose state is global.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib import rc_context, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image as Pillow

from imagekiln.steps.aggregate.report.charts import BarPlot, Plot, ScatterPlot, StackedBarPlot
from imagekiln.steps.runtime.figures import format_number, format_percent

WIDTH, HEIGHT = 460, 230  # CSS pixels
PIXEL_RATIO = 2  # of the picture, for sharp screens
PALETTE_COLORS = 64
MAX_TICKS = 5
MAX_LABELED_SHARDS = 3  # slow shards whose number is written beside them
EDGE_MARGIN = 0.02  # of the shards, left and right of them
MIN_VISIBLE_SHARE = 0.005  # a share that a bar can show
BAR_SPACING = 0.62  # between two bars of a stack, which are 0.42 high


@dataclass(frozen=True, slots=True)
class ColorScheme:
    """The colours of a plot."""

    background: str
    ink: str
    line: str
    bar: str
    slow: str
    parts: tuple[str, ...]  # of a stack, in their order


LIGHT_SCHEME = ColorScheme(
    background="#ffffff", ink="#4b5563", line="#e2e5ea", bar="#b4531a", slow="#b3261e",
    parts=("#5b6470", "#98a1ad", "#e0b04e", "#b4531a", "#3f6fa3", "#8b1a5c", "#d5d9df"),
)  # fmt: skip
DARK_SCHEME = ColorScheme(
    background="#1c1f24", ink="#b4bcc8", line="#343a43", bar="#f0935a", slow="#ff8a80",
    parts=("#a9b2be", "#6f7884", "#f2d27f", "#f0935a", "#6f9fd6", "#e86fb5", "#454c57"),
)  # fmt: skip


def draw_plot(drawing: Plot, scheme: ColorScheme) -> bytes:
    """The drawing as a PNG of 920 by 460 pixels."""
    # Not the settings of whoever runs this.
    with rc_context(dict(rcParamsDefault) | {"font.family": "DejaVu Sans", "font.size": 11}):
        canvas = Figure(
            figsize=(WIDTH / 100, HEIGHT / 100), dpi=100 * PIXEL_RATIO, facecolor=scheme.background
        )
        axes = canvas.add_axes((0.12, 0.14, 0.81, 0.8), facecolor=scheme.background)
        _style_axes(axes, scheme)
        if isinstance(drawing, BarPlot):
            _draw_bars(axes, drawing, scheme)
        elif isinstance(drawing, ScatterPlot):
            _draw_scatter(axes, drawing, scheme)
        else:
            _draw_stack(axes, drawing, scheme)
        sink = io.BytesIO()
        canvas.savefig(sink, format="png", facecolor=scheme.background, metadata={"Software": None})
    return _compress_png(sink)


def _style_axes(axes: Axes, scheme: ColorScheme) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(scheme.line)
    axes.grid(axis="y", color=scheme.line, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=scheme.ink, length=0)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(lambda value, _: _format_tick(value))


def _draw_bars(axes: Axes, drawing: BarPlot, scheme: ColorScheme) -> None:
    count = len(drawing.counts)
    axes.bar([place + 0.5 for place in range(count)], drawing.counts, width=0.9, color=scheme.bar)
    ticks = range(0, count + 1, max(1, -(-count // MAX_TICKS)))
    axes.set_xticks(list(ticks), [drawing.bounds[place] for place in ticks])
    axes.set_xlim(0, count)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))


def _draw_scatter(axes: Axes, drawing: ScatterPlot, scheme: ColorScheme) -> None:
    told = [(shard, rate) for shard, rate in enumerate(drawing.rates) if rate is not None]
    slow, rate_of = set(drawing.slow_shards), dict(told)
    size = 4 if len(told) > 300 else 16
    plain = [pair for pair in told if pair[0] not in slow]
    axes.axhline(drawing.median, color=scheme.ink, linewidth=1, dashes=(4, 3))
    for pairs, colour, larger in (
        (plain, scheme.bar, 1),
        ([(each, rate_of[each]) for each in slow], scheme.slow, 2),
    ):
        axes.scatter(
            *_split_points(pairs),
            s=size * larger,
            color=colour,
            alpha=1 if larger > 1 else 0.8,
            linewidths=0,
        )
    for shard in drawing.slow_shards[:MAX_LABELED_SHARDS]:
        axes.annotate(str(shard), (shard, rate_of[shard]), (0, 5), textcoords="offset points", ha="center",
                      fontsize=9, color=scheme.slow)  # fmt: skip
    edge = len(drawing.rates) * EDGE_MARGIN
    axes.set_xlim(-edge, len(drawing.rates) - 1 + edge)
    axes.set_ylim(0, 1.15 * max(rate for _, rate in told))
    axes.xaxis.set_major_locator(MaxNLocator(MAX_TICKS, integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _draw_stack(axes: Axes, drawing: StackedBarPlot, scheme: ColorScheme) -> None:
    start, legend = 0.0, []
    for place, each in enumerate(drawing.sequential):
        if each.share < MIN_VISIBLE_SHARE:
            continue
        legend.append(axes.barh(0, each.share, 0.42, start, color=scheme.parts[place], edgecolor=scheme.background,
                                linewidth=0.8, label=f"{each.name} {format_percent(each.share)}"))  # fmt: skip
        start += each.share
    for row, each in enumerate(drawing.concurrent, 1):
        axes.barh(BAR_SPACING * row, each.share, 0.42, color=scheme.ink)
    names = [
        "device",
        *(f"{each.name}\n{format_percent(each.share)}" for each in drawing.concurrent),
    ]
    axes.set_yticks([BAR_SPACING * row for row in range(len(names))], names, fontsize=9)
    axes.set_ylim(BAR_SPACING * len(names) - 0.3, -0.3)
    axes.set_xlim(0, max(1.0, start))
    axes.set_xticks([])
    axes.grid(visible=False)
    axes.set_position((0.25, 0.36, 0.72, 0.62))
    axes.legend(handles=legend, ncols=3, loc="upper left", bbox_to_anchor=(-0.35, -0.02), frameon=False, fontsize=9,
                labelcolor=scheme.ink, handlelength=0.8, handleheight=0.8, columnspacing=1.2)  # fmt: skip


def _split_points(pairs: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [shard for shard, _ in pairs], [rate for _, rate in pairs]


def _format_tick(value: float) -> str:
    """A tick, such as 1.5k for 1,500: the axis has little room."""
    for unit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{sign}"
    return format_number(value) if value % 1 else f"{value:.0f}"


def _compress_png(sink: io.BytesIO) -> bytes:
    with Pillow.open(sink) as picture:
        few = picture.convert("RGB").quantize(PALETTE_COLORS, dither=Pillow.Dither.NONE)
    small = io.BytesIO()
    few.save(small, "PNG", optimize=True)
    return small.getvalue()
