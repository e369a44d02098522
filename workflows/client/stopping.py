"""A workflow is stopped once, and its exit handler runs; terminated by the second time, at once.

The pods of an exit handler may find no node, as those before them. A workflow that was only stopped
would then run until its deadline.
"""

from typing import Literal

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.connect import connect, next_command
from imagekiln.workflows.client.status import has_ended, has_succeeded
from imagekiln.workflows.objects import Json, get_mapping, object_metadata, object_name
from imagekiln.workflows.templates.dag import PARENT_LABEL

Stopping = Literal["stopping", "terminated", "ended", "succeeded"]


def stop(name: str, namespace: str, argo: ArgoApi | None = None) -> Stopping:
    """Stop a workflow and its child workflows: pods finish their part; a resubmission resumes.

    What is stopping already, all of it, is terminated: its exit handler, which reports how it
    ended, does not run. Returns which of both was done; "ended" or "succeeded" where nothing
    was to be done.
    """
    argo = argo or connect()
    workflow = argo.get("Workflow", namespace, name)
    # The parent first, since it would create more children. Argo's server refuses to stop what
    # has ended, and does not stop children with their parent.
    running = [] if has_ended(workflow) else [workflow]
    running += running_children(name, namespace, argo)
    if not running:
        return "succeeded" if has_succeeded(workflow) else "ended"
    left = [member for member in running if not is_stopping(member)]
    for member in left or running:
        try:
            argo.stop(namespace, object_name(member), at_once=not left)
        except KilnError:  # Argo's server refuses to stop what has ended meanwhile
            if not has_ended(argo.get("Workflow", namespace, object_name(member))):
                raise
    return "stopping" if left else "terminated"


def running_children(name: str, namespace: str, argo: ArgoApi) -> list[Json]:
    """The child workflows that have not ended: Argo does not stop them with their parent."""
    children = argo.list_objects("Workflow", namespace, f"{PARENT_LABEL}={name}")
    return [child for child in children if not has_ended(child)]


def is_stopping(workflow: Json) -> bool:
    """Return whether somebody has stopped the workflow, which has not ended yet."""
    spec = get_mapping(workflow, "spec")
    return bool(spec.get("shutdown")) and not has_ended(workflow)


def require_not_stopping(workflow: Json) -> None:
    """Raise BadInput while a workflow that was stopped has not ended."""
    if not is_stopping(workflow):
        return
    name = str(object_metadata(workflow)["name"])
    again = next_command("stop", name, str(object_metadata(workflow)["namespace"]))
    raise BadInput(
        f"{name}: is stopping. Wait for its end; if its last pods do not start, {again} "
        "terminates it, which loses no image. Then run this again."
    )
