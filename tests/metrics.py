"""Metrics as Prometheus reads them, and a free port to serve them on."""

import socket
import urllib.request
from contextlib import suppress

from prometheus_client.parser import text_string_to_metric_families

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def scrape(port: int) -> str:
    """What Prometheus gets."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def is_served(port: int) -> bool:
    """Whether anybody serves metrics there."""
    with suppress(OSError):
        return bool(scrape(port))
    return False


def parse(text: str) -> Series:
    """The value of each series, by its name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float:
    """The value of one series. Raises KeyError where it is missing."""
    return series[f"imagekiln_{name}", tuple(sorted(labels.items()))]
