"""Where a run's time went: what the device did, stage after stage, and what was done beside it."""

from dataclasses import dataclass

from imagekiln.steps.charts import Chart, Share, Stack
from imagekiln.steps.stats import Seconds
from imagekiln.steps.wording import percent, seconds

FEWEST_SECONDS = 60.0  # of less, words and a table say all
IN_TURN = {
    "load": "load the model",
    "compile": "compile",
    "text": "encode texts",
    "denoise": "denoise",
    "decode": "decode",
    "copy": "copy",
    "denoise_waits": "wait",
}
REST = "begin and end"  # and whatever lies between two stages
BESIDE = {"encode": "encode and hash", "write": "write parts"}
OLD = "text, denoise, decode"  # what versions told that knew no more


@dataclass(frozen=True, slots=True)
class Spent:
    """Shares of the shards' wall time: of stages `in_turn`, which add up to all of it, and of those `beside` them."""

    in_turn: tuple[Share, ...]
    beside: tuple[Share, ...]
    chart: Chart


def spent(took: Seconds) -> Spent | None:
    """Where the time went; None where no shard told."""
    if not took.total:
        return None
    each = [(_named(stage, name, took), getattr(took, stage)) for stage, name in IN_TURN.items()]
    rest = max(0.0, took.total - sum(time for _, time in each))
    in_turn = _shares([*each, (REST, rest)], took.total)
    beside = _shares([(name, getattr(took, stage)) for stage, name in BESIDE.items()], took.total)
    return Spent(tuple(share for share in in_turn if share.share), beside, _chart(took, in_turn, beside))


def _named(stage: str, name: str, took: Seconds) -> str:
    return OLD if stage == "denoise" and not took.decode else name


def _shares(each: list[tuple[str, float]], total: float) -> tuple[Share, ...]:
    return tuple(Share(name, seconds(time), time / total) for name, time in each)


def _chart(took: Seconds, in_turn: tuple[Share, ...], beside: tuple[Share, ...]) -> Chart:
    text = (
        f"Of the {seconds(took.total)} that the shards took, in turn: {_said(in_turn)}. "
        f"Beside these, in other threads: {_said(beside)}."
    )
    drawing = Stack(in_turn, beside) if took.total >= FEWEST_SECONDS else None
    return Chart("time", "Where the time went", text, (), (), drawing)


def _said(shares: tuple[Share, ...]) -> str:
    return ", ".join(f"{each.name} {percent(each.share)}" for each in shares if each.share)
