"""Amounts of time and money in the objects of a run, as far as they can be true."""

from typing import Annotated

from pydantic import Field

MAX_AMOUNT = 1e18  # what exceeds it is damaged
Amount = Annotated[float, Field(ge=0, le=MAX_AMOUNT)]
