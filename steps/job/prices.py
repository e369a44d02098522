"""What GPUs cost an hour: one number for all, or a table by the names of GPUs, spot or not."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.fields import NonEmptyText, Number, Settings
from imagekiln.steps.job.settings_file import parse_settings, read_local_text, validate_settings
from imagekiln.steps.storage.uri import is_remote_uri, read_text

SPOT_VARIABLE = (
    "IMAGEKILN_SPOT"  # set in pods that plan and generate where those generate on spot nodes
)
# At the end of node labels, where a GPU is shared: it is priced as the whole GPU.
SHARED_SUFFIX = "-shared"
PRICE_TEXT = re.compile(r"\d+(\.\d*)?")


class GpuPrice(Settings):
    """What an hour of one GPU costs."""

    gpu: NonEmptyText = Field(
        description="The GPU's name in nvidia-smi, or in the node label nvidia.com/gpu.product."
    )
    spot: bool = Field(default=False, description="Whether the price is that of spot nodes.")
    per_hour: Number = Field(ge=0, description="The price of one GPU for an hour.")


class PriceFile(Settings):
    """A price table as a file has it."""

    prices: tuple[GpuPrice, ...] = Field(min_length=1, description="A price for each GPU.")


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a GPU for an hour, and where it is from.

    `is_highest`: it is the highest of a table that has none for the GPU.
    """

    per_hour: float
    source: str
    is_highest: bool = False


@dataclass(frozen=True, slots=True)
class Prices:
    """One price for all GPUs, which goes first, or a table."""

    per_hour: float | None = None
    table: tuple[GpuPrice, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no price is known."""
        return self.per_hour is None and not self.table

    @property
    def highest(self) -> float | None:
        """The highest price, for GPUs whose name is not known; None where no price is known."""
        price = self.find_highest()
        return None if price is None else price.per_hour

    def find_highest(self) -> Price | None:
        """The highest price and the GPU that has it; None where no price is known."""
        if self.per_hour is not None:
            return self.find(None)
        if not self.table:
            return None
        entry = max(self.table, key=lambda entry: entry.per_hour)
        return Price(entry.per_hour, _describe_entry(entry))

    def find(self, gpu: str | None, *, spot: bool = False) -> Price | None:
        """The price of a GPU of this name; None where the table has none.

        Without a name, a table of a single GPU has its price. For spot nodes without a price of
        their own, it is that of other nodes, which is no less.
        """
        if self.per_hour is not None:
            return Price(self.per_hour, "one price for all GPUs")
        matching = self._entries_for(gpu)
        for is_spot in (True, False) if spot else (False,):
            for entry in matching:
                if entry.spot == is_spot:
                    return Price(entry.per_hour, _describe_entry(entry))
        return None

    def find_or_highest(self, gpu: str | None, *, spot: bool = False) -> Price | None:
        """The price of a GPU of this name, or else the highest; None where no price is known."""
        price = self.find(gpu, spot=spot)
        if price is not None:
            return price
        highest = self.find_highest()
        return None if highest is None else replace(highest, is_highest=True)

    def _entries_for(self, gpu: str | None) -> list[GpuPrice]:
        names = {normalize_gpu(entry.gpu) for entry in self.table}
        if gpu is None:
            return list(self.table) if len(names) == 1 else []
        return [entry for entry in self.table if normalize_gpu(entry.gpu) == normalize_gpu(gpu)]


def normalize_gpu(name: str) -> str:
    """A GPU's name, alike for nvidia-smi, which has spaces, and node labels, which have hyphens."""
    hyphenated = "-".join(name.lower().split())
    return hyphenated.removesuffix(SHARED_SUFFIX)


def resolve_prices(price_per_hour: float | None, prices: str | Sequence[GpuPrice] | None) -> Prices:
    """The prices of these settings, a table's file read. Raises BadInput, Missing, TryAgain."""
    if prices is None:
        return Prices(price_per_hour)
    table = read_price_file(prices).prices if isinstance(prices, str) else tuple(prices)
    return Prices(price_per_hour, table)


def is_price(value: object) -> bool:
    """Whether a value in the place of a table, or of its name, is a single price."""
    if isinstance(value, str):
        return PRICE_TEXT.fullmatch(value.strip()) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_price_file(name: str) -> PriceFile:
    """The table in a file or at a URI. Raises BadInput, Missing, TryAgain."""
    if is_price(name):
        raise BadInput(
            f"{name}: is a number, not a price table. One price for all GPUs is --price {name}, "
            "or price_per_hour in the job."
        )
    text = read_text(name) if is_remote_uri(name) else read_local_text(name, "a price table")
    values, locations = parse_settings(text, name, "prices, a list of `{gpu: NAME, per_hour: 2.5}`")
    return validate_settings(PriceFile, values, name, locations, "the price table")


def is_spot_node() -> bool:
    """Whether the pod's profile says that images are generated on spot nodes."""
    return os.environ.get(SPOT_VARIABLE) == "true"


def _describe_entry(entry: GpuPrice) -> str:
    return f"{entry.gpu}, spot" if entry.spot else entry.gpu
