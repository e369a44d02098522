"""How a run ended, in a line, and what to do next, as commands."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Literal

from imagekiln.steps import gates
from imagekiln.steps.gate_settings import Gates
from imagekiln.steps.gates import Exceeded
from imagekiln.steps.summary import Summary
from imagekiln.steps.wording import count, of, percent

MOST_SHARDS = 3
SHARD = re.compile(r"(\d+)-\d+\D*$")  # in the name of a part

Kind = Literal["finished", "incomplete", "failed"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run ended: `headline` and `advice` are sentences, `commands` what to type."""

    kind: Kind
    headline: str
    advice: str
    commands: tuple[str, ...]


def verdict(summary: Summary, uri: str, wanted: Gates) -> Verdict:
    """The verdict on the run at `uri`, whose job wants these gates."""
    if summary.missing:
        return _incomplete(summary, quote(uri))
    if summary.not_ok > summary.failed_share * summary.images:
        return _failed(summary, quote(uri))
    if over := gates.exceeded(wanted, summary):
        return _exceeded(summary, uri, over)
    return _finished(summary, quote(uri))


def _finished(summary: Summary, run: str) -> Verdict:
    verify = f"imagekiln verify {run}"
    if not summary.not_ok:
        advice = "Nothing is left to do. To read everything back and check it by hash:"
        return Verdict(
            "finished", f"Finished: all {of(summary.images, 'image is', 'images are')} ok.", advice, (verify,)
        )
    return Verdict(
        "finished",
        f"Finished: {count(summary.ok)} of {of(summary.images, 'image is', 'images are')} ok.",
        f"{percent(summary.not_ok / summary.images)} are not, within the {percent(summary.failed_share)} that the job "
        "accepts. To check what is there by hash, or to make the others again:",
        (verify, f"imagekiln retry {run}"),
    )


def _incomplete(summary: Summary, run: str) -> Verdict:
    shards = sorted({int(found[1]) for part in summary.missing_parts if (found := SHARD.search(part))})
    generate = [f"imagekiln generate {run} --shard {shard}" for shard in shards[:MOST_SHARDS]]
    some = len(shards) > MOST_SHARDS or summary.missing_parts_count > len(summary.missing_parts)
    return Verdict(
        "incomplete",
        f"Incomplete: {count(summary.missing)} of {of(summary.images, 'image')} are missing.",
        "Run the job again, or its workflow: it makes what is missing and nothing else. "
        f"Or by hand, shard by shard{', of which these are the first' if some else ''}:",
        (*generate, f"imagekiln aggregate {run}"),
    )


def _failed(summary: Summary, run: str) -> Verdict:
    bad = f"{count(summary.not_ok)} of {of(summary.images, 'image is', 'images are')} not ok"
    return Verdict(
        "failed",
        f"Too many images failed: {bad}.",
        f"That is {percent(summary.not_ok / summary.images)}, and the job accepts {percent(summary.failed_share)}. "
        "See the causes below; make these images again, or accept what is there:",
        (f"imagekiln retry {run}", f"imagekiln aggregate {run} --failed-share {summary.share_to_accept}"),
    )


def _exceeded(summary: Summary, uri: str, over: Sequence[Exceeded]) -> Verdict:
    found = "; ".join(
        f"{each.name} found {percent(each.found / summary.images)} of the images, and its share is "
        f"{percent(each.share)}"
        for each in over
    )
    return Verdict(
        "failed",
        f"The gates found too much: {', '.join(each.name for each in over)}.",
        f"{found}. See them below, then make the images anew with other settings, or accept what is there:",
        (gates.to_accept(uri, summary, over),),
    )
