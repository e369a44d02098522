"""How a finished run is aggregated again: it stays finished until its replacement is whole.

Everything is read and made first, and what would change waits on this machine. Then the report and
the card are replaced, which no reader relies on. Only where the manifest or what goes with it
changes is the success marker removed, so that no reader takes a mixture for a finished run; the
step writes it again, last.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.errors import BadInput, Missing, StorageRefused, TryAgain
from imagekiln.steps.runs.keys import CARD_KEY, REPORT_KEY, SUCCESS_KEY, SUMMARY_KEY
from imagekiln.steps.runs.rounds import Run
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.staging import StagedStore

REPORT_FOLDER = f"{PurePosixPath(REPORT_KEY).parent}/"


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run was finished with; None where its summary is lost or damaged."""

    summary: Summary | None


def read_finished(run: Run) -> Finished | None:
    """What the run was finished with; None where it is unfinished."""
    if not run.is_finished:
        return None
    try:
        return Finished(load_summary(run.store))
    except StorageRefused:
        raise
    except BadInput:
        return Finished(None)


@contextmanager
def stage(run: Run) -> Iterator[StagedStore]:
    """Where what is written to a finished run waits for `publish`."""
    with temporary_folder("imagekiln-aggregate-") as folder:
        yield StagedStore(run.store, Path(folder))


def require_unchanged(run: Run, earlier: Finished) -> None:
    """Raise TryAgain where another process has aggregated a finished run since `earlier`."""
    if read_finished(run) != earlier:
        raise TryAgain(
            f"{run.store.uri}: was aggregated by another process. Run the command again."
        )


def require_certain_absence(run: Run, summary: Summary) -> None:
    """Raise TryAgain where a part that a finished run seemed to lack is there after all."""
    for key in summary.missing_parts:
        if run.store.exists(key):
            raise TryAgain(
                f"{run.store.uri_of(key)}: was not found, and is there now. Run the command again."
            )


def publish(run: Run, staged: StagedStore, earlier: Finished) -> None:
    """Replace what waits, unless another process has aggregated the run since `earlier`.

    Where that changes what a reader relies on, the run is unfinished then.

    The summary also has prices and times: where it alone changes, the run stays finished.
    """
    report = [key for key in staged.staged_keys if _is_of_report(key)]
    summary = [key for key in staged.staged_keys if key == SUMMARY_KEY]
    others = {*staged.staged_keys} - {*report, *summary}

    require_unchanged(run, earlier)
    staged.publish(report)
    if others:
        require_unchanged(run, earlier)
        revoke_success(run)
    staged.publish(sorted(others))
    staged.publish(summary)


def revoke_success(run: Run) -> None:
    """Let the run be unfinished."""
    if run.is_finished:
        with suppress(Missing):  # another process was faster
            run.store.remove(SUCCESS_KEY)


def _is_of_report(key: str) -> bool:
    return key == CARD_KEY or key.startswith(REPORT_FOLDER)
