"""Time and cost in the report: stages, slow shards, uses, and the bottleneck of the run."""

from dataclasses import dataclass

from imagekiln.steps.aggregate.device_time import Spending, Throughput
from imagekiln.steps.aggregate.report.tables import ShareTable, TextTable, share_table
from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.runs.stats import StageSeconds
from imagekiln.steps.runtime.figures import (
    format_count,
    format_device_hours,
    format_duration,
    format_estimate_error,
    format_money,
    format_number,
    format_percent,
    pluralize,
)

SEQUENTIAL_STAGES = {
    "load": "load the model",
    "compile": "compile",
    "text": "encode texts",
    "denoise": "denoise",
    "decode": "decode",
    "wait": "wait",
    "rest": "start and end",
}
CONCURRENT_STAGES = {
    "safety": "check safety",
    "score": "score",
    "encode": "encode and hash",
    "write": "write parts",
    "copy": "copy pixels",
}
USES = {
    "drawing": "drawing images",
    "loading": "starting, loading and compiling",
    "idle": "waiting, and the ends of shards",
    "repeated": "work that was dropped and repeated",
    "total": "all",
}
NOT_OK = "of the drawing, images that are not ok"

MIN_LOST_SHARE = 0.1  # smaller losses are not worth a change
MIN_BUSY_SHARE = 0.8  # with less, the device is not the bottleneck
# By kind: a stage in which the device generates no image, a sentence for its share, and a remedy.
LOSSES = {
    "encoding": (
        "wait",
        "Encoding was the limit: {} of the time, the device waited for it.",
        "Give the pods more CPU cores, or choose a faster encoding.",
    ),
    "storage": (
        "wait",
        "Storage was the limit: {} of the time, the device waited for parts to be written.",
        "Move the output closer to the pods, or choose an encoding with smaller files.",
    ),
    "loading": (
        "load",
        "Loading the model took {} of the time.",
        "Make shards larger, or keep the model in a cache volume.",
    ),
    "compiling": (
        "compile",
        "Compiling took {} of the time.",
        "Make shards larger, or keep the compiled code; for a few images, set speed.compile to "
        "off.",
    ),
    "texts": (
        "text",
        "Encoding texts took {} of the time.",
        "Group rows with the same prompt, or ask for several images of each.",
    ),
    "ends": (
        "rest",
        "{} of the time was spent before the first image, after the last, and between them.",
        "Make shards larger, and parts smaller.",
    ),
}


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The bottleneck of a run, and advice. `kind` is a key of LOSSES, "device" or "launching"."""

    kind: str
    sentence: str
    advice: str


def break_down_time(seconds: StageSeconds, busy: float | None) -> dict[str, float]:
    """Break down device seconds into sequential stages, which do not overlap.

    `text` excludes prompts that were encoded during a batch. `wait` is time spent waiting for
    encoding or writing. `rest` is other time before, between and after images.
    """
    drawing = seconds.denoise + seconds.decode + sum(seconds.passes.values())
    working = max(0.0, seconds.total - seconds.load)
    text = seconds.text
    if busy is not None:
        # While the device computed without generating images, it encoded prompts.
        text = min(text, max(0.0, busy * working - drawing))
    left = max(0.0, working - seconds.compile - text - drawing)
    # The device may still denoise a batch while the previous batch waits.
    wait = min(seconds.denoise_waits, left)
    return {
        "load": seconds.load,
        "compile": seconds.compile,
        "text": text,
        "denoise": seconds.denoise,
        "decode": seconds.decode,
        "wait": wait,
        "rest": left - wait,
    }


def stage_tables(seconds: StageSeconds, busy: float | None) -> list[ShareTable]:
    """Build tables of the time by stage: sequential stages, and stages concurrent with them."""
    breakdown = break_down_time(seconds, busy)
    sequential = {label: breakdown[stage] for stage, label in SEQUENTIAL_STAGES.items()}
    sequential |= {f"pass {name}": duration for name, duration in seconds.passes.items()}
    concurrent = {label: getattr(seconds, stage) for stage, label in CONCURRENT_STAGES.items()}
    concurrent["encode texts, on the device"] = seconds.text - breakdown["text"]
    titles = {
        "Stages, one after another: together, all of the time": sequential,
        "At the same time": concurrent,
    }
    tables = []
    for title, durations in titles.items():
        values = [(label, spent, format_duration(spent)) for label, spent in durations.items()]
        tables.append(share_table(title, ("stage", "time"), values, seconds.total))
    return [table for table in tables if table.rows]


def find_bottleneck(seconds: StageSeconds, busy: float | None) -> Bottleneck | None:
    """Find the bottleneck of a run; None if no shard has statistics."""
    if not seconds.total:
        return None
    breakdown = break_down_time(seconds, busy)
    # The device waits for the slower of the two stages that follow it.
    faster = "encoding" if seconds.write > seconds.encode else "storage"
    lost = {kind: breakdown[stage] for kind, (stage, _, _) in LOSSES.items() if kind != faster}
    largest = max(lost, key=lost.__getitem__)
    if lost[largest] > MIN_LOST_SHARE * seconds.total:
        _, sentence, advice = LOSSES[largest]
        share = format_percent(lost[largest] / seconds.total)
        return Bottleneck(largest, sentence.format(share), advice)

    if busy is None:
        busy = 1.0 - sum(lost.values()) / seconds.total
    share = format_percent(busy)
    if busy >= MIN_BUSY_SHARE:
        sentence = f"The device was the limit, as it should be: it computed {share} of the time."
        return Bottleneck("device", sentence, "")
    return Bottleneck(
        "launching",
        f"Nothing held the device up, yet it computed only {share} of the time after loading: it "
        "gets too little work at once.",
        "Generate more images in a batch, or let the model be compiled.",
    )


def slow_shards_table(throughput: Throughput) -> TextTable | None:
    """Build a table of the slowest shards; None if no shard has a rate."""
    if not throughput.shards:
        return None
    title = (
        f"{pluralize(throughput.shards, 'shard')} made {format_number(throughput.least)} to "
        f"{format_number(throughput.most)} images per second, "
        f"{format_number(throughput.median)} in the median; "
        f"{format_count(throughput.slow)} made less than 80 % of it."
    )
    rows = [
        (
            format_count(shard.shard),
            format_number(shard.images / shard.seconds),
            format_count(shard.images),
            format_duration(shard.seconds),
            format_count(shard.attempts),
        )
        for shard in throughput.slowest
    ]
    columns = ("slow shard", "images per second", "images", "time", "attempts")
    return TextTable(title, columns, tuple(rows))


def cost_table(spending: Spending) -> TextTable | None:
    """Build a table of the time, share and cost of each use; None if no time is recorded."""
    total = spending.gpu_seconds.total
    if not total:
        return None
    seconds = {label: getattr(spending.gpu_seconds, use) for use, label in USES.items()}
    seconds[NOT_OK] = spending.not_ok_seconds
    columns: tuple[str, ...] = ("use", "time", "share", "cost")
    if spending.cost is None:
        columns = columns[:-1]
    rows = []
    for label, duration in seconds.items():
        share = duration / total
        cost = format_money(share * (spending.cost or 0.0))
        cells = (label, format_duration(duration), format_percent(share), cost)
        if duration:
            rows.append(cells[: len(columns)])
    title = "Uses of the time of all devices, over all attempts and retries"
    return TextTable(title, columns, tuple(rows))


def describe_cost(summary: Summary) -> str:
    """Describe lost attempts, prices and the estimate in sentences."""
    spending = summary.spending
    sentences = []
    if spending.lost_attempts:
        sentences.append(
            f"Of {pluralize(spending.attempts, 'attempt')}, each a command or a pod, "
            f"{spending.lost_attempts:,} left no end, as after a kill. What each did after "
            "it last wrote, a minute at most, is not counted."
        )
    for price in spending.prices:
        sentence = f"{price.device or 'An unknown device'}: {format_device_hours(price.gpu_hours)}"
        if price.per_hour is not None:
            sentence += f" at {format_money(price.per_hour)} an hour ({price.source})"
        sentences.append(f"{sentence}.")
    if summary.expected is not None:
        sentences.append(
            f"Planning estimated {format_device_hours(summary.expected.gpu_hours)}, "
            f"{summary.expected.source}."
        )
    if summary.estimate_error is not None:
        hours = format_device_hours(summary.device_hours)
        error = format_estimate_error(summary.estimate_error)
        sentences.append(f"The run took {hours}, {error}.")
    return " ".join(sentences)
