"""Where a run's time went: what the device did, stage after stage, and what was done beside it."""

from dataclasses import dataclass

from imagekiln.steps.charts import Chart, Share, Stack
from imagekiln.steps.stats import Seconds
from imagekiln.steps.turns import Turns, turns
from imagekiln.steps.usage import Usage
from imagekiln.steps.wording import percent, seconds

FEWEST_SECONDS = 60.0  # of less, words and a table say all
IN_TURN = {
    "load": "load the model",
    "compile": "compile",
    "text": "encode texts",
    "denoise": "denoise",
    "decode": "decode",
    "wait": "wait",
    "rest": "begin and end",
}
OLD = "text, denoise, decode"  # what versions told that knew no more
BESIDE = {"encode": "encode and hash", "write": "write parts"}


@dataclass(frozen=True, slots=True)
class Spent:
    """Shares of the shards' wall time: of stages `in_turn`, which add up to all of it, and of those `beside` them."""

    in_turn: tuple[Share, ...]
    beside: tuple[Share, ...]
    chart: Chart


def spent(took: Seconds, used: Usage) -> Spent | None:
    """Where the time went; None where no shard told."""
    if not took.total:
        return None
    each = turns(took, used)
    in_turn = _shares([(_named(name, took), getattr(each, name)) for name in IN_TURN], took.total)
    main = [(name, getattr(took, stage)) for stage, name in BESIDE.items()]
    beside = _shares([*main, *_little(took, each)], took.total)
    chart = _chart(took, in_turn, beside[: len(main)], beside)
    return Spent(tuple(share for share in in_turn if share.share), beside, chart)


def _named(stage: str, took: Seconds) -> str:
    return OLD if stage == "denoise" and not took.decode else IN_TURN[stage]


def _little(took: Seconds, each: Turns) -> list[tuple[str, float]]:
    """What the device itself does beside its batches, where it did any of it."""
    named = (("encode texts, on the device", took.text - each.text), ("copy pixels", took.copy))
    return [(name, time) for name, time in named if time > 0]


def _shares(each: list[tuple[str, float]], total: float) -> tuple[Share, ...]:
    return tuple(Share(name, seconds(time), time / total) for name, time in each)


def _chart(took: Seconds, in_turn: tuple[Share, ...], bars: tuple[Share, ...], beside: tuple[Share, ...]) -> Chart:
    text = (
        f"Of the {seconds(took.total)} that the shards took, in turn: {_said(in_turn)}. Beside these: {_said(beside)}."
    )
    drawing = Stack(in_turn, bars) if took.total >= FEWEST_SECONDS else None
    return Chart("time", "Where the time went", text, (), (), drawing)


def _said(shares: tuple[Share, ...]) -> str:
    return ", ".join(f"{each.name} {percent(each.share)}" for each in shares if each.share) or "nothing"
