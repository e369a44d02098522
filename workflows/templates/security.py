"""Settings with which all containers, including Argo's, pass Pod Security "restricted"."""

from collections.abc import Mapping

from hera.workflows import models as m

USER_ID = 1000  # as in the images; a number, since runAsNonRoot cannot look up names
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
# Folder in which a Kubernetes client looks for its token.
TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105  # a path
_TOKEN_MOUNT = {"name": "argo-token", "mountPath": TOKEN_FOLDER, "readOnly": True}
# Equal to the volume that Kubernetes would mount into every container: a token that expires in an
# hour, is renewed while the pod lives, and ends with it.
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
# Interval at which Argo reads a pod's progress and reports changes, which come once a minute
# (JsonLinesProgress). With the default of a minute, the last change of a failing attempt would be
# lost.
_PROGRESS_TICKS = [
    {"name": "ARGO_PROGRESS_FILE_TICK_DURATION", "value": "1s"},
    {"name": "ARGO_PROGRESS_PATCH_TICK_DURATION", "value": "1s"},
]
# A namespace's quota also counts Argo's containers. Their resources are small and fixed, instead of
# a LimitRange's defaults.
ARGO_RESOURCES = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}


def pod_security_context() -> m.PodSecurityContext:
    """Return the security context of a pod: our user, instead of the user of an image."""
    return m.PodSecurityContext(
        run_as_non_root=True,
        run_as_user=USER_ID,
        run_as_group=USER_ID,
        fs_group=USER_ID,
        fs_group_change_policy="OnRootMismatch",  # do not walk a large model cache at every start
        seccomp_profile=m.SeccompProfile(type="RuntimeDefault"),
    )


def every_pod_patch() -> dict[str, object]:
    """Build the patch of the two containers in every pod: Argo's `init`, and `main`, usually ours.

    Without it, "restricted" refuses Argo's container, and `main` has a Kubernetes token that it
    does not need. Argo's `executor.serviceAccountName` would prevent the latter, but with a token
    in a Secret, which never expires.
    """
    return {
        "automountServiceAccountToken": False,
        "volumes": [_TOKEN_VOLUME],
        "initContainers": [{**_argo_container("init"), "volumeMounts": [_TOKEN_MOUNT]}],
        "containers": [{"name": "main", "securityContext": CONTAINER_SECURITY}],
    }


def step_pod_patch(main: Mapping[str, object]) -> dict[str, object]:
    """Build an additional patch for a pod with Argo's `wait` container beside `main`.

    Separate from the patch of every pod, which would add the container to all: most pods of
    resource templates have no `wait`.
    """
    wait = {**_argo_container("wait"), "volumeMounts": [_TOKEN_MOUNT], "env": _PROGRESS_TICKS}
    return {"containers": [wait, {"name": "main", **main}]}


def resource_pod_patch() -> dict[str, object]:
    """Build an additional patch for a pod of a resource template, in which `main` is Argo's.

    Its `init` writes to /tmp. Each container has the token, since all are Argo's, including `wait`
    if logs are archived.
    """
    tmp = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108  # an emptyDir of the pod's own
    return {
        "automountServiceAccountToken": True,
        "initContainers": [{"name": "init", "volumeMounts": [tmp]}],
        "containers": [{"name": "main", "resources": ARGO_RESOURCES}],
    }


def _argo_container(name: str) -> dict[str, object]:
    return {"name": name, "securityContext": CONTAINER_SECURITY, "resources": ARGO_RESOURCES}
