"""Figures as they become known: printed at once, and appended to a file of JSON lines.

A call that is killed at its time limit has lost only the section at hand.
"""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.bench.gpu.expected import EXPECTED, Expected, Scope

Detail = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Report:
    """Where figures go. Child processes may hold a copy: each line is written in one piece.

    `started` is a time of `time.time`, which all processes share.
    """

    started: float
    path: Path | None = None

    def figure(self, name: str, value: float, unit: str = "", **details: Detail) -> None:
        """Publish a measured value, beside what is expected of a figure of this name."""
        expected = EXPECTED.get(name)
        verdict = None if expected is None else find_verdict(expected, value)
        entry: dict[str, Detail] = {
            "figure": name,
            "value": value,
            "unit": unit,
            "ok": verdict,
        }
        phrases = [f"{name}: {format_number(value)} {unit}".rstrip()]
        for key, detail in details.items():
            phrases.append(f"{key} {format_detail(detail)}")
        if expected is not None:
            phrases.append(format_expected(expected, unit, verdict))
        self._print("; ".join(phrases))
        self._append(entry | details)

    def note(self, text: str) -> None:
        """Publish a sentence."""
        self._print(text)
        self._append({"note": text})

    def section(self, name: str, seconds_left: float) -> None:
        """Begin a section."""
        print(flush=True)
        self._print(f"== {name} ({seconds_left:.0f} s left)")
        self._append({"section": name, "seconds_left": round(seconds_left)})

    def seconds(self) -> float:
        """Seconds since the start."""
        return time.time() - self.started

    def _print(self, text: str) -> None:
        seconds = self.seconds()
        print(f"[{seconds:6.1f} s] {text}", flush=True)

    def _append(self, entry: dict[str, Detail]) -> None:
        if self.path is None:
            return
        stamp = {"at": round(self.seconds(), 1)}
        line = json.dumps(stamp | entry)
        with self.path.open("a") as file:
            file.write(line + "\n")


def scopes() -> set[Scope]:
    """The scopes whose bounds hold on this machine."""
    if not torch.cuda.is_available():
        return {"anywhere"}
    if "H200" not in torch.cuda.get_device_name():
        return {"anywhere", "cuda"}
    return {"anywhere", "cuda", "h200"}


def find_verdict(expected: Expected, value: float) -> bool | None:
    """Whether a value is as expected; None where this machine is none that the bounds are for."""
    if expected.scope not in scopes():
        return None
    return expected.contains(value)


def format_expected(expected: Expected, unit: str, verdict: bool | None) -> str:
    """The expected value, and whether the measured one is like it."""
    text = f"expected {expected.describe(unit)}"
    if verdict is None:
        machine = "an H200" if expected.scope == "h200" else "CUDA"
        return f"{text} on {machine}"
    return f"{text}: ok" if verdict else f"{text}: OFF"


def format_detail(detail: Detail) -> str:
    """A detail of a figure, as text."""
    if isinstance(detail, float):
        return format_number(detail)
    return str(detail)


def format_number(value: float) -> str:
    """A number with four digits, or all those before the point."""
    if math.isnan(value):
        return "unknown"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def format_seconds(seconds: Mapping[str, float]) -> str:
    """The names that took any time, as JSON."""
    return json.dumps({name: round(value, 2) for name, value in seconds.items() if value})
