"""What a run's workflows add to the counters of its job, each amount once.

A workflow claims what no other one has claimed. Every try of its aggregation exports all of its
claim, since of several tries, Argo counts the figures of the last one alone.

The claims of a run are in numbered entries, each created once, as those of its account are: the
last one has them all, and of two workflows that claim at once, the second reads the entry of the
first.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from pydantic import TypeAdapter, ValidationError

from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain
from imagekiln.steps.runs.account import count_entries
from imagekiln.steps.runs.amounts import MAX_AMOUNT, Amount
from imagekiln.steps.runs.keys import PLAN_KEY, claims_key
from imagekiln.steps.runs.rounds import resolve_run
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from imagekiln.workflows.templates.metrics import COST, GPU_USES, SPENT_FIGURES

DECIMALS = 3
MAX_ROUNDED = len(GPU_USES) * 10**-DECIMALS  # what rounding a claim may leave of a total
MAX_TRIES = 20
MAX_ENTRY_BYTES = 64 * 2**10
MAX_WORKFLOWS = 100  # with a claim in an entry, which keeps it well below that size
Amounts = Mapping[str, Amount]


@dataclass(frozen=True, slots=True)
class Claims:
    """What was claimed of a run's spending: by workflow, the latest last, and otherwise.

    `settled` has claims that are not exported again.
    """

    settled: Amounts = field(default_factory=dict)
    by_workflow: Mapping[str, Amounts] = field(default_factory=dict)

    def claim(self, workflow: str, total: Amounts) -> "Claims":
        """Let a workflow claim what no other one has, and all that it claimed before."""
        earlier = self.by_workflow.get(workflow, {})
        others = {uid: claim for uid, claim in self.by_workflow.items() if uid != workflow}
        unclaimed = _unclaimed(total, _add(self.settled, *others.values()))
        amounts = {name: max(earlier.get(name, 0.0), unclaimed[name]) for name in SPENT_FIGURES}
        if amounts == earlier or not any(amounts.values()):
            return self

        claims = Claims(self.settled, {**others, workflow: amounts})
        return claims.settle(next(iter(others))) if len(others) >= MAX_WORKFLOWS else claims

    def settle(self, workflow: str) -> "Claims":
        """Let the workflow's next claim be one on top of what it has claimed so far."""
        if workflow not in self.by_workflow:
            return self
        others = {uid: claim for uid, claim in self.by_workflow.items() if uid != workflow}
        return Claims(_add(self.settled, self.by_workflow[workflow]), others)


CLAIMS_TYPE_ADAPTER: TypeAdapter[Claims] = TypeAdapter(Claims)


@dataclass(slots=True)
class SpendingExport:
    """The aggregation of a run by a workflow: what it adds to the counters.

    Nothing here stops it: `problem` says what makes the amounts unknown.
    """

    run: str
    workflow: str
    problem: KilnError | None = None

    @classmethod
    def begin(cls, run: str, workflow: str, attempt: str) -> Self:
        """Prepare the claim of a workflow, before the aggregation writes a summary.

        Where Argo retries a workflow that has ended, attempts count from 0 again, and its claim has
        reached the counters: the next one is on top of it. Should the first pod be lost before it
        gets here, the second one takes that claim for its own, which is then exported again.
        """
        export = cls(run, workflow)
        is_first_try = attempt in ("", "0")
        settle = partial(Claims.settle, workflow=export.workflow)
        try:
            store = _open_run_folder(run)
            if store is not None:
                _change_claims(store, settle if is_first_try else _keep)
        except KilnError as error:
            export.problem = error
        return export

    def read_summary(self) -> Summary | None:
        """The summary of the run; None where there is none to read."""
        try:
            store = _open_run_folder(self.run)
            return None if store is None else _find_summary(store)
        except KilnError as error:
            self.problem = error
            return None

    def end(self, summary: Summary) -> dict[str, float]:
        """What the workflow adds, which it has claimed; nothing where that is unknown."""
        if self.problem is not None:
            return {}
        try:
            root, *_ = resolve_run(self.run)
            change = partial(Claims.claim, workflow=self.workflow, total=spending_of(summary))
            claims = _change_claims(open_store(root), change)
        except KilnError as error:
            self.problem = error
            return {}
        return _add(claims.by_workflow.get(self.workflow, {}))


def spending_of(summary: Summary) -> dict[str, float]:
    """GPU seconds by use, and the cost of all. Raises BadInput where they cannot be true."""
    gpu_seconds = summary.spending.gpu_seconds
    by_use = {use: getattr(gpu_seconds, use) for use in GPU_USES}
    amounts = {**by_use, COST: summary.cost or 0.0}
    if not all(-1 <= amount <= MAX_AMOUNT for amount in amounts.values()):
        raise BadInput(f"{summary.run_id}: its summary is damaged. Aggregate the run again.")
    return {name: max(0.0, amount) for name, amount in amounts.items()}


def _unclaimed(total: Amounts, claimed: Amounts) -> dict[str, float]:
    """What of a total is not claimed, by name.

    Time that was claimed for one use may be of another by now, as once a process was lost: that
    much less of the other uses is left, since a counter takes nothing back.
    """
    left = {name: total.get(name, 0.0) - claimed[name] for name in SPENT_FIGURES}
    gains = {name: max(0.0, amount) for name, amount in left.items()}
    gained = sum(gains[use] for use in GPU_USES)
    all_left = sum(left[use] for use in GPU_USES)
    share = all_left / gained if all_left > MAX_ROUNDED else 0.0
    by_use = {use: gains[use] * share for use in GPU_USES}
    return {name: round(amount, DECIMALS) for name, amount in {**gains, **by_use}.items()}


def _add(*terms: Amounts) -> dict[str, float]:
    """The sum of amounts by name, with a number for each name and no other names."""
    return {name: sum(amounts.get(name, 0.0) for amounts in terms) for name in SPENT_FIGURES}


def _keep(claims: Claims) -> Claims:
    return claims


def _open_run_folder(run: str) -> Store | None:
    """The folder of a run, or of the run of a round; None where there is no run."""
    with suppress(Missing, BadInput):
        root, *_ = resolve_run(run)
        store = open_store(root)
        return store if store.exists(PLAN_KEY) else None
    return None


def _change_claims(store: Store, change: Callable[[Claims], Claims]) -> Claims:
    """Add an entry with the changed claims, unless nothing changes, and return them."""
    for _ in range(MAX_TRIES):
        entries = count_entries(store, claims_key)
        claims = _read_entry(store, entries - 1) if entries else Claims()
        changed = change(claims)
        if entries and changed == claims:
            return claims
        content = CLAIMS_TYPE_ADAPTER.dump_json(changed, indent=1) + b"\n"
        # Where an answer was lost, the entry is read next, and there is nothing left to change.
        if store.create(claims_key(entries), content):
            return changed
    raise TryAgain(f"{store.uri}: too many workflows write what they export at once.")


def _read_entry(store: Store, number: int) -> Claims:
    key = claims_key(number)
    content = store.read_prefix(key, MAX_ENTRY_BYTES)  # of a larger one, the end is missing
    try:
        return CLAIMS_TYPE_ADAPTER.validate_json(content)
    except ValidationError as error:
        raise BadInput(
            f"{store.uri_of(key)}: is damaged. Delete it and the entries after it."
        ) from error


def _find_summary(store: Store) -> Summary | None:
    with suppress(Missing, BadInput):
        return load_summary(store)
    return None
