"""A workflow's work once more, after it has ended: under a name of its own, with what the first was given."""

import hashlib
from typing import cast

from imagekiln.steps.errors import BadInput
from imagekiln.workflows import status, submission
from imagekiln.workflows.argo import Argo, identity, metadata
from imagekiln.workflows.connection import Json
from imagekiln.workflows.further import PART_OF
from imagekiln.workflows.refusals import Taken
from imagekiln.workflows.status import FAILED, Status

MOST_TRIES = 100  # of one job, after failures
AGAIN = "-again-"
LONGEST = 60  # Argo takes names of 63 signs, and further workflows add up to three
SCHEDULED = "workflows.argoproj.io/scheduled-time"  # by it, a workflow of a schedule knows its date


def begin(there: Json, argo: Argo) -> Status:
    """Go on with a workflow's work: under the first name that is free, unless the one that has it still may succeed."""
    about = metadata(there)
    if parts := going(str(about["name"]), str(about["namespace"]), argo):
        raise BadInput(
            f"{parts[0]}: is still running, as part of {about['name']}. Wait for it, or stop {about['name']}."
        )
    first = _shortened(str(about["name"]).partition(AGAIN)[0])
    spec = {key: value for key, value in cast("Json", there["spec"]).items() if key != "shutdown"}
    kept = {"namespace": about["namespace"]} | {key: _ours(about.get(key)) for key in ("labels", "annotations")}
    for number in range(2, MOST_TRIES):
        name = f"{first}{AGAIN}{number}"
        # Argo's server does not say of what kind its answer is.
        made: Json = {"apiVersion": submission.API, "kind": "Workflow", "metadata": kept | {"name": name}, "spec": spec}
        try:
            return status.status(argo.create(made))
        except Taken:
            found = status.listed(argo.get(*identity(made)))
            if found.phase not in FAILED:
                return found
    raise BadInput(f"{first}: failed {MOST_TRIES} times. See why, then delete these workflows.")


def going(name: str, namespace: str, argo: Argo) -> list[str]:
    """The further workflows of one that have not ended: Argo lets them go on when that one is stopped or fails."""
    found = argo.find("Workflow", namespace, f"{PART_OF}={name}")
    return [str(metadata(each)["name"]) for each in found if not status.has_ended(each)]


def _shortened(name: str) -> str:
    """A workflow's name, with room for what numbers its tries; one that is cut short stays apart from its like."""
    if len(name) + len(f"{AGAIN}{MOST_TRIES}") <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name[: LONGEST - len(f'-{digest}{AGAIN}{MOST_TRIES}')]}-{digest}"


def _ours(given: object) -> dict[str, str]:
    """Labels or annotations without those that Argo keeps its own state in."""
    kept = {"workflows.argoproj.io/title", "workflows.argoproj.io/description", SCHEDULED}
    pairs = cast("dict[str, str]", given or {}).items()
    return {key: value for key, value in pairs if key in kept or not key.startswith("workflows.argoproj.io/")}
