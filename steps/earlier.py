"""Which earlier runs a plan looks into for images that need not be made again: chosen once, then frozen.

A plan that was cut short and is made again must choose the same images, even if another run has ended since.
"""

from pydantic import TypeAdapter, ValidationError

from imagekiln.steps import commit, names, runs
from imagekiln.steps.errors import BadInput, Missing, TryAgain
from imagekiln.steps.job import Job
from imagekiln.steps.storage import Store

RUN_IDS_TYPE_ADAPTER: TypeAdapter[tuple[runs.RunId, ...]] = TypeAdapter(tuple[runs.RunId, ...])


def successful_runs(job: Job) -> tuple[str, ...]:
    """The ids of the successful runs under the job's output, oldest first; none where it is not to skip any."""
    return tuple(entry.run_id for entry in runs.read_registry(job.output)) if job.skip_existing else ()


def choose_existing_runs(store: Store, job: Job, run_id: str) -> tuple[str, ...]:
    """The runs that the plan of `run_id`, which lies in `store`, looks into. Raises BadInput on damage."""
    if not job.skip_existing:
        return ()
    try:
        return RUN_IDS_TYPE_ADAPTER.validate_json(store.read(names.EXISTING_RUNS_KEY))
    except Missing:
        return tuple(each for each in successful_runs(job) if each != run_id)
    except ValidationError as error:
        raise BadInput(
            f"{store.uri_of(names.EXISTING_RUNS_KEY)}: is damaged. Delete it, or choose another run_id."
        ) from error


def freeze_existing_runs(store: Store, job: Job, looked_at: tuple[str, ...]) -> None:
    """Write down the choice, before anything that follows from it. Raises TryAgain where someone chose otherwise."""
    if not job.skip_existing:
        return
    content = RUN_IDS_TYPE_ADAPTER.dump_json(looked_at) + b"\n"
    if not store.create(names.EXISTING_RUNS_KEY, content) and store.read(names.EXISTING_RUNS_KEY) != content:
        raise TryAgain(f"{store.uri}: is being planned by someone else too. Run the command again.")
    if job.unconditional_writes == "refuse":
        commit.require_conditional_writes(store, names.EXISTING_RUNS_KEY, content)
