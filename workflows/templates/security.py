"""What makes every container pass Pod Security "restricted" with a read-only root, Argo's too."""

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


def container_security_context() -> m.SecurityContext:
    """Our own containers'."""
    return m.SecurityContext.model_validate(CONTAINER_SECURITY)


def resource_pod_patch() -> dict[str, object]:
    """A patch for a pod of Argo's own containers. The first writes to /tmp, volume tmp."""
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
    """A patch for the two containers that Argo adds to a pod: without it, they are refused."""
    container = {"securityContext": CONTAINER_SECURITY, "resources": ARGO_RESOURCES}
    return {
        "initContainers": [{"name": "init", **container}],
        "containers": [{"name": "wait", **container}],
    }
