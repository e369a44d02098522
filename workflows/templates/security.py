"""What makes every container pass Pod Security "restricted" with a read-only root, Argo's own ones too."""

from hera.workflows import models as m

USER_ID = 1000  # as the images have it; a number, since runAsNonRoot cannot look up names
SECCOMP_PROFILE = {"type": "RuntimeDefault"}
CONTAINER_SECURITY: dict[str, object] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": SECCOMP_PROFILE,
}
# Counted by a namespace's quota like any other: small, and the same everywhere, rather than a LimitRange's default.
ARGO_RESOURCES = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}


def pod_security_context() -> m.PodSecurityContext:
    """Every pod's: our user, whatever user an image (Argo's too) would take."""
    return m.PodSecurityContext(
        run_as_non_root=True,
        run_as_user=USER_ID,
        run_as_group=USER_ID,
        fs_group=USER_ID,
        fs_group_change_policy="OnRootMismatch",  # a large model cache is not walked through at each start
        seccomp_profile=m.SeccompProfile(type="RuntimeDefault"),
    )


def container_security_context() -> m.SecurityContext:
    """Our own containers'."""
    return m.SecurityContext.model_validate(CONTAINER_SECURITY)


def resource_pod_patch() -> dict[str, object]:
    """A patch for a pod of Argo's own containers. The first writes to /tmp, and gets a volume named tmp there."""
    container: dict[str, object] = {
        "securityContext": CONTAINER_SECURITY,
        "resources": ARGO_RESOURCES,
    }
    mount = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108  # an emptyDir of the pod's own
    return {
        "initContainers": [{"name": "init", "volumeMounts": [mount]} | container],
        "containers": [{"name": "main"} | container],
    }


def argo_containers_patch() -> dict[str, object]:
    """A patch for the two containers that Argo adds to a pod: without it, "restricted" refuses them."""
    return {
        "initContainers": [
            {"name": "init", "securityContext": CONTAINER_SECURITY, "resources": ARGO_RESOURCES}
        ],
        "containers": [
            {"name": "wait", "securityContext": CONTAINER_SECURITY, "resources": ARGO_RESOURCES}
        ],
    }
