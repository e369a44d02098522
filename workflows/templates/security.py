"""Settings by which all containers, Argo's too, pass Pod Security "restricted"."""

from collections.abc import Mapping

from hera.workflows import models as m

USER_ID = 1000  # as the images have it; a number, since runAsNonRoot cannot look up names
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
# Where a Kubernetes client looks for its token.
TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105  # a path
_TOKEN_MOUNT = {"name": "argo-token", "mountPath": TOKEN_FOLDER, "readOnly": True}
# What Kubernetes would mount into every container of a pod: a token that expires in an hour, is
# renewed while the pod lives, and ends with it.
_TOKEN_VOLUME = {
    "name": "argo-token",
    "projected": {
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
            {
                "configMap": {
                    "name": "kube-root-ca.crt",
                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                }
            },
            {
                "downwardAPI": {
                    "items": [
                        {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
                    ]
                }
            },
        ]
    },
}
# How often Argo reads a pod's progress and passes on one that has changed, which is once a minute
# (JsonLinesProgress): a minute by default, which the last one of an attempt that fails would not
# outlive.
_PROGRESS_TICKS = [
    {"name": "ARGO_PROGRESS_FILE_TICK_DURATION", "value": "1s"},
    {"name": "ARGO_PROGRESS_PATCH_TICK_DURATION", "value": "1s"},
]
# A namespace's quota counts Argo's own containers too: small, and the same everywhere, rather than
# whatever a LimitRange defaults to.
ARGO_RESOURCES = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}


def pod_security_context() -> m.PodSecurityContext:
    """Return the security of a pod: our user, whatever user an image would run as."""
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

    Without it, "restricted" refuses Argo's, and `main` has a token of Kubernetes, which nothing of
    ours needs. Argo's `executor.serviceAccountName` would do the latter with a token in a Secret,
    which never expires.
    """
    return {
        "automountServiceAccountToken": False,
        "volumes": [_TOKEN_VOLUME],
        "initContainers": [{**_argo_container("init"), "volumeMounts": [_TOKEN_MOUNT]}],
        "containers": [{"name": "main", "securityContext": CONTAINER_SECURITY}],
    }


def step_pod_patch(main: Mapping[str, object]) -> dict[str, object]:
    """A further patch for a pod of ours: beside `main` runs Argo's `wait`.

    Not in the patch of every pod, which would add the container where there is none: most pods of
    resource templates have no `wait`.
    """
    wait = {**_argo_container("wait"), "volumeMounts": [_TOKEN_MOUNT], "env": _PROGRESS_TICKS}
    return {"containers": [wait, {"name": "main", **main}]}


def resource_pod_patch() -> dict[str, object]:
    """A further patch for a pod of a resource template: `init` writes to /tmp; `main` is Argo's.

    Each container has the token: all are Argo's, also a `wait` if logs are archived.
    """
    tmp = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108  # an emptyDir of the pod's own
    return {
        "automountServiceAccountToken": True,
        "initContainers": [{"name": "init", "volumeMounts": [tmp]}],
        "containers": [{"name": "main", "resources": ARGO_RESOURCES}],
    }


def _argo_container(name: str) -> dict[str, object]:
    return {"name": name, "securityContext": CONTAINER_SECURITY, "resources": ARGO_RESOURCES}
