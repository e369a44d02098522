"""Section `tune`: what `imagekiln tune` picks, beside the bare loop at neighboring batch sizes."""

from dataclasses import replace

from imagekiln.steps.generate.diffusion.device import is_out_of_memory
from imagekiln.steps.generate.trial import TrialBudget
from imagekiln.steps.generate.tune import tune
from tests.bench.contenders import measure
from tests.bench.gpu.session import Session
from tests.bench.measure import scratch_folder
from tests.bench.processes import in_child
from tests.bench.work import Work, make_job

BATCHES_PER_SIZE = 5
MINUTES = 4.0
SECONDS_PER_SIZE = 60.0


def measure_tune(session: Session) -> None:
    """The pick, up to twice the usual batch, and the bare loop at half, at once and at twice it."""
    largest = 2 * session.work.batch
    picked = in_child(pick_batch, session.job_work, largest)
    session.report.figure("tune.picked", picked, "images", up_to=largest)

    half = max(1, picked // 2)
    twice = min(2 * picked, largest)
    rates: dict[int, float] = {}
    for batch in sorted({half, picked, twice}):
        rate = _measure_batch(session, batch)
        if rate is not None:
            rates[batch] = rate

    if picked in rates:
        share = 100 * rates[picked] / max(rates.values())
        session.report.figure("tune.share_of_best", share, "%", picked=picked)


def _measure_batch(session: Session, batch: int) -> float | None:
    """The rate of the bare loop; None where time or memory does not suffice."""
    if not session.has_time_for(f"tune, batch {batch}", SECONDS_PER_SIZE):
        return None
    rate = _bare_rate(session.job_work, batch)
    if rate is None:
        session.report.note(f"tune: a batch of {batch} does not fit in memory.")
    else:
        session.report.figure("tune.bare", rate, "images/s", batch=batch)
    return rate


def pick_batch(work: Work, largest: int) -> int:
    """The batch size that tuning picks for the job, whose compiled code it loads and keeps."""
    with scratch_folder() as folder:
        budget = TrialBudget(minutes=MINUTES)
        path = str(folder / "tuning.yaml")
        result = tune(make_job(work, folder), path, (), budget, max_batch=largest)
    (entry,) = result.entries
    return entry.batch


def _bare_rate(work: Work, batch: int) -> float | None:
    """The rate of the bare loop in few steps; None where the batch does not fit."""
    fewer = replace(work, batch=batch, images=BATCHES_PER_SIZE * batch)
    try:
        return measure("bare", fewer).steady_rate
    except RuntimeError as error:  # torch's class for a device that is full is one of these
        if is_out_of_memory(error):
            return None
        raise
