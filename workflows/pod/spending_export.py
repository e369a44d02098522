"""What a run's workflows add to the counters of its job, each amount once.

A try of `aggregate` that fails may leave a summary and still give Argo nothing: of several tries,
only the figures of the last one count. So what the counters have is an object in the run's folder,
written before an aggregation and after it, and every try of it begins with the same amounts.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

from pydantic import TypeAdapter, ValidationError

from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.runs.amounts import Amount
from imagekiln.steps.runs.keys import EXPORTED_KEY, PLAN_KEY
from imagekiln.steps.runs.rounds import resolve_run
from imagekiln.steps.runtime.log_events import ATTEMPT_VARIABLE
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from imagekiln.workflows.templates.metrics import COST, GPU_USES, WORKFLOW_UID_VARIABLE


@dataclass(frozen=True, slots=True)
class Exported:
    """What the counters have of a run, by name, without and with the aggregation of a workflow."""

    workflow: str
    before: Mapping[str, Amount]
    total: Mapping[str, Amount]


EXPORTED_TYPE_ADAPTER: TypeAdapter[Exported] = TypeAdapter(Exported)


@dataclass(frozen=True, slots=True)
class SpendingExport:
    """The aggregation of a run by a workflow: what it adds to the counters."""

    store: Store
    exported: Exported

    @classmethod
    def begin(cls, run: str, environment: Mapping[str, str]) -> Self | None:
        """Note which workflow aggregates, before it does. None where there is no such run.

        A further try begins with the amounts that the first one did.
        """
        store = _open_run_folder(run)
        if store is None:
            return None
        workflow = environment.get(WORKFLOW_UID_VARIABLE, "")
        earlier = _read_exported(store)
        if _is_further_try(environment) and earlier is not None and earlier.workflow == workflow:
            return cls(store, earlier)
        before = _exported_by_older_version(store) if earlier is None else earlier.total
        export = cls(store, Exported(workflow, before, before))
        export._write()
        return export

    def end(self, summary: Summary) -> dict[str, float]:
        """What the aggregation adds, once it is noted that it does."""
        before = self.exported.before
        total = {
            name: max(amount, before.get(name, 0.0))
            for name, amount in spending_of(summary).items()
        }
        replace(self, exported=replace(self.exported, total=total))._write()
        return {name: round(total[name] - before.get(name, 0.0), 3) for name in total}

    def read_summary(self) -> Summary | None:
        """The summary of the run; None where there is none to read."""
        return _find_summary(self.store)

    def _write(self) -> None:
        content = EXPORTED_TYPE_ADAPTER.dump_json(self.exported, indent=1) + b"\n"
        self.store.replace(EXPORTED_KEY, content)


def spending_of(summary: Summary) -> dict[str, float]:
    """GPU seconds by use, and the cost of all."""
    gpu_seconds = summary.spending.gpu_seconds
    by_use = {use: getattr(gpu_seconds, use) for use in GPU_USES}
    return {**by_use, COST: summary.cost or 0.0}


def _open_run_folder(run: str) -> Store | None:
    """The folder of a run, or of the run of a round."""
    with suppress(Missing, BadInput):
        root, *_ = resolve_run(run)
        store = open_store(root)
        return store if store.exists(PLAN_KEY) else None
    return None


def _is_further_try(environment: Mapping[str, str]) -> bool:
    return environment.get(ATTEMPT_VARIABLE, "0") not in ("", "0")


def _read_exported(store: Store) -> Exported | None:
    """What the counters have of the run; None where that is unknown."""
    with suppress(Missing, ValidationError):
        return EXPORTED_TYPE_ADAPTER.validate_json(store.read(EXPORTED_KEY))
    return None


def _exported_by_older_version(store: Store) -> dict[str, float]:
    """What versions without that object have exported: all that the summary has."""
    summary = _find_summary(store)
    return {} if summary is None else spending_of(summary)


def _find_summary(store: Store) -> Summary | None:
    with suppress(Missing, BadInput):
        return load_summary(store)
    return None
