"""What a GPU costs an hour: one number for all, or a table by the names of GPUs."""

from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

from pydantic import Discriminator, Field, Tag

from imagekiln.steps.job.fields import NonEmptyText, Number

PriceNumber = Annotated[Number, Field(ge=0)]
PriceTable = Annotated[dict[NonEmptyText, PriceNumber], Field(min_length=1)]
# A mistake in one of them is reported as such, not as the lack of the other.
PricePerHour: TypeAlias = Annotated[
    Annotated[PriceNumber, Tag("number")] | Annotated[PriceTable, Tag("table")],
    Discriminator(lambda value: "table" if isinstance(value, dict) else "number"),
]


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a GPU for an hour, and where it is from.

    `is_highest`: it is the highest of a table that has none for the GPU.
    """

    per_hour: float
    source: str
    is_highest: bool = False


def find_price(prices: PricePerHour | None, gpu: str | None) -> Price | None:
    """The price of a GPU of this name; None if the table has none.

    Without a name, a table of a single GPU has its price.
    """
    if prices is None:
        return None
    if not isinstance(prices, dict):
        return Price(prices, "one price for all GPUs")
    if gpu is None:
        return find_highest_price(prices) if len(prices) == 1 else None
    for name, per_hour in prices.items():
        if normalize_gpu(name) == normalize_gpu(gpu):
            return Price(per_hour, name)
    return None


def find_highest_price(prices: PricePerHour | None) -> Price | None:
    """The price of the most expensive GPU; None if no price is known."""
    if not isinstance(prices, dict):
        return find_price(prices, None)
    name = max(prices, key=prices.__getitem__)
    return Price(prices[name], name)


def find_price_or_highest(prices: PricePerHour | None, gpu: str | None) -> Price | None:
    """The price of a GPU of this name, or else the highest; None if no price is known."""
    price = find_price(prices, gpu)
    if price is not None:
        return price
    highest = find_highest_price(prices)
    return None if highest is None else replace(highest, is_highest=True)


def normalize_gpu(name: str) -> str:
    """A GPU's name, alike for nvidia-smi, which has spaces, and node labels, which have hyphens."""
    return "-".join(name.lower().split())
