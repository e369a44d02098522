"""The report's plots, drawn by matplotlib as small PNGs: the same figures give the same bytes.

No user text is drawn, so that no font can lack a character. Each plot comes for a light background
and for a dark one. Figures are drawn without pyplot, whose state is global.
"""

import io

from matplotlib import rc_context, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from imagekiln.steps.aggregate.report.charts import BarPlot, Plot
from imagekiln.steps.aggregate.throughput import Throughput
from imagekiln.steps.runtime.figures import format_number

WIDTH, HEIGHT = 460, 230  # CSS pixels
PIXEL_RATIO = 2  # for sharp screens
AXES_RECTANGLE = (0.12, 0.14, 0.81, 0.8)  # left, bottom, width, height, as shares of the figure
MAX_TICKS = 5

MAX_LARGE_DOTS = 300
EDGE_MARGIN = 0.02  # left and right of the shards, as a share of their count


LIGHT_SCHEME = {
    "background": "#ffffff",
    "ink": "#4b5563",
    "line": "#e2e5ea",
    "bar": "#b4531a",
    "slow": "#b3261e",
}
DARK_SCHEME = {
    "background": "#1c1f24",
    "ink": "#b4bcc8",
    "line": "#343a43",
    "bar": "#f0935a",
    "slow": "#ff8a80",
}


def draw_plot(plot: Plot, scheme: dict[str, str]) -> bytes:
    """The plot as a PNG of 920 by 460 pixels."""
    # matplotlib's defaults, whatever the user has configured.
    with rc_context(dict(rcParamsDefault) | {"font.family": "DejaVu Sans", "font.size": 11}):
        figure = Figure(
            figsize=(WIDTH / 100, HEIGHT / 100),
            dpi=100 * PIXEL_RATIO,
            facecolor=scheme["background"],
        )
        axes = figure.add_axes(AXES_RECTANGLE, facecolor=scheme["background"])
        _style_axes(axes, scheme)
        if isinstance(plot, BarPlot):
            _draw_bars(axes, plot, scheme)
        else:
            _draw_scatter(axes, plot, scheme)
        png = io.BytesIO()
        figure.savefig(
            png, format="png", facecolor=scheme["background"], metadata={"Software": None}
        )
    return png.getvalue()


def _style_axes(axes: Axes, scheme: dict[str, str]) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(scheme["line"])
    axes.grid(
        axis="y",
        color=scheme["line"],
        linewidth=0.8,
    )
    axes.set_axisbelow(True)
    axes.tick_params(colors=scheme["ink"], length=0)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(lambda value, _: _format_tick(value))


def _draw_bars(axes: Axes, plot: BarPlot, scheme: dict[str, str]) -> None:
    count = len(plot.counts)
    centers = [index + 0.5 for index in range(count)]
    axes.bar(
        centers,
        plot.counts,
        width=0.9,
        color=scheme["bar"],
    )

    bins_per_tick = max(1, -(-count // MAX_TICKS))
    ticks = range(0, count + 1, bins_per_tick)
    labels = [plot.bounds[index] for index in ticks]
    axes.set_xticks(list(ticks), labels)
    axes.set_xlim(0, count)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))


def _draw_scatter(axes: Axes, plot: Throughput, scheme: dict[str, str]) -> None:
    rates = {shard: rate for shard, rate in enumerate(plot.rates) if rate is not None}
    slow = {shard.shard: rates.pop(shard.shard) for shard in plot.slowest}
    dot_size = 4 if len(rates) > MAX_LARGE_DOTS else 16

    axes.axhline(plot.median, color=scheme["ink"], linewidth=1, dashes=(4, 3))
    axes.scatter(
        list(rates),
        list(rates.values()),
        s=dot_size,
        color=scheme["bar"],
        alpha=0.8,
        linewidths=0,
    )
    axes.scatter(
        list(slow),
        list(slow.values()),
        s=2 * dot_size,
        color=scheme["slow"],
        linewidths=0,
    )
    margin = len(plot.rates) * EDGE_MARGIN
    axes.set_xlim(-margin, len(plot.rates) - 1 + margin)
    axes.set_ylim(0, 1.15 * max(filter(None, plot.rates)))
    axes.xaxis.set_major_locator(MaxNLocator(MAX_TICKS, integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _format_tick(value: float) -> str:
    """A short tick label, such as 1.5k for 1,500: the axis has little room."""
    for unit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{suffix}"
    return format_number(value) if value % 1 else f"{value:.0f}"
