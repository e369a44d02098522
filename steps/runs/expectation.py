"""What planning expected a run to take, so that it can be compared with what the run took."""

from dataclasses import dataclass

from pydantic import TypeAdapter

from imagekiln.steps.runs.amounts import Amount, read_or_none
from imagekiln.steps.runs.keys import ESTIMATE_KEY
from imagekiln.steps.storage.store import Store


@dataclass(frozen=True, slots=True)
class Expectation:
    """The estimate of a run when it was planned, and where its figures are from."""

    gpu_hours: Amount
    source: str
    cost: Amount | None = None


EXPECTATION_TYPE_ADAPTER: TypeAdapter[Expectation] = TypeAdapter(Expectation)


def write_expectation(store: Store, expectation: Expectation) -> None:
    """Write the estimate of a new run."""
    content = EXPECTATION_TYPE_ADAPTER.dump_json(expectation, indent=1) + b"\n"
    store.replace(ESTIMATE_KEY, content)


def read_expectation(store: Store) -> Expectation | None:
    """The estimate of the run in `store`; None where there was none, or it is damaged."""
    return read_or_none(store, ESTIMATE_KEY, EXPECTATION_TYPE_ADAPTER)
