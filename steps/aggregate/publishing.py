"""How a finished run is aggregated again: it stays finished until its replacement is whole.

Everything is read and made first, and what would change waits on this machine. Then the report and
the card are replaced, which no reader relies on. Only where the manifest or what goes with it
changes is the success marker removed, so that no reader takes a mixture for a finished run; the
step writes it again, last.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from imagekiln.steps.errors import Missing
from imagekiln.steps.runs.keys import (
    CARD_KEY,
    REPORT_KEY,
    SUCCESS_KEY,
    SUMMARY_KEY,
    SUSPENDED_KEY,
)
from imagekiln.steps.runs.rounds import Run
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.staging import StagedStore

SUSPENSION = b"Its objects are replaced.\n"
REPORT_FOLDER = f"{PurePosixPath(REPORT_KEY).parent}/"


@contextmanager
def stage_if_finished(run: Run) -> Iterator[StagedStore | None]:
    """Where what is written to a finished run waits for `publish`; None where it does not wait."""
    if not run.is_finished:
        yield None
        return
    with temporary_folder("imagekiln-aggregate-") as folder:
        yield StagedStore(run.store, Path(folder))


def publish(run: Run, staged: StagedStore) -> None:
    """Replace what waits. Where that changes what a reader relies on, the run is unfinished then.

    The summary also has prices and times: where it alone changes, the run stays finished.
    """
    report = [key for key in staged.staged_keys if _is_of_report(key)]
    summary = [key for key in staged.staged_keys if key == SUMMARY_KEY]
    others = {*staged.staged_keys} - {*report, *summary}

    staged.publish(report)
    if others:
        suspend_success(run)
    staged.publish(sorted(others))
    staged.publish(summary)


def suspend_success(run: Run) -> None:
    """Let a finished run be unfinished until it is aggregated again.

    It holds its images all the while: later nights skip them, and `gc` leaves it.
    """
    if run.is_finished:
        run.store.create(SUSPENDED_KEY, SUSPENSION)
    if revoke_success(run):
        # A store removes whatever marker is there: where this process was frozen, that of another
        # one, which has finished the run and ended the suspension. So no turn is needed.
        open_store(run.store.uri).create(SUSPENDED_KEY, SUSPENSION)


def end_suspension(run: Run) -> None:
    """Let a run that is aggregated be what its success marker says, or its absence."""
    with suppress(Missing):
        if run.is_suspended:
            run.store.remove(SUSPENDED_KEY)


def revoke_success(run: Run) -> bool:
    """Let the run be unfinished; whether it was finished."""
    with suppress(Missing):  # another process may have done so
        if run.is_finished:
            run.store.remove(SUCCESS_KEY)
            return True
    return False


def _is_of_report(key: str) -> bool:
    return key == CARD_KEY or key.startswith(REPORT_FOLDER)
