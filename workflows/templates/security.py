"""What makes every container pass Pod Security "restricted" with a read-only root, Argo's too."""

from collections.abc import Mapping

from hera.workflows import models as m

from imagekiln.workflows.templates.yaml import Anchored

USER_ID = 1000  # as the images have it; a number, since runAsNonRoot cannot look up names
CONTAINER_SECURITY = Anchored(
    "restricted",
    {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
)
# A namespace's quota counts Argo's own containers too: small, and the same everywhere, rather than
# whatever a LimitRange defaults to.
ARGO_RESOURCES = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}


def pod_security_context() -> m.PodSecurityContext:
    """Every pod's: our user, whatever user an image (Argo's too) would run as."""
    return m.PodSecurityContext(
        run_as_non_root=True,
        run_as_user=USER_ID,
        run_as_group=USER_ID,
        fs_group=USER_ID,
        fs_group_change_policy="OnRootMismatch",  # do not walk a large model cache at every start
        seccomp_profile=m.SeccompProfile(type="RuntimeDefault"),
    )


def every_pod_patch() -> dict[str, object]:
    """A patch for the two containers that every pod has: `init` is Argo's, `main` most often ours.

    Without it, "restricted" refuses Argo's.
    """
    return {
        "initContainers": [_argo_container("init")],
        "containers": [{"name": "main", "securityContext": CONTAINER_SECURITY}],
    }


def step_pod_patch(main: Mapping[str, object]) -> dict[str, object]:
    """A further patch for a pod of ours: beside `main` runs Argo's `wait`.

    Not in the patch of every pod, which would add the container where there is none: most pods of
    resource templates have no `wait`.
    """
    return {"containers": [_argo_container("wait"), {"name": "main", **main}]}


def resource_pod_patch() -> dict[str, object]:
    """A further patch for a pod of a resource template: `init` writes to /tmp; `main` is Argo's."""
    tmp = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108  # an emptyDir of the pod's own
    return {
        "initContainers": [{"name": "init", "volumeMounts": [tmp]}],
        "containers": [{"name": "main", "resources": ARGO_RESOURCES}],
    }


def _argo_container(name: str) -> dict[str, object]:
    return {"name": name, "securityContext": CONTAINER_SECURITY, "resources": ARGO_RESOURCES}
