"""Whether the namespace is there, and people and pods may do there what they must."""

from imagekiln.workflows.doctor.check import Finding, check, ok, unknown, wrong
from imagekiln.workflows.doctor.fields import part, texts
from imagekiln.workflows.doctor.kubernetes_view import SUBMITTER, Kind, KubernetesView, Right
from imagekiln.workflows.pods import STORAGE
from imagekiln.workflows.profile import Profile

ARGO = "argoproj.io"
OURS = (
    Right("create", "workflows", ARGO),
    Right("get", "workflowtemplates", ARGO),
    Right("create", "cronworkflows", ARGO),
    Right("get", "pods/log"),
)
RESULTS = tuple(Right(verb, "workflowtaskresults", ARGO) for verb in ("create", "patch"))
FURTHER = (Right("create", "workflows", ARGO),)
ACCOUNTS = {"imagekiln": RESULTS, "imagekiln-further": RESULTS + FURTHER}
# By them, clouds give a service account's pods rights without a key.
IDENTITIES = ("eks.amazonaws.com/role-arn", "iam.gke.io/gcp-service-account", "azure.workload.identity/client-id")
NAMESPACES = Kind("api/v1", "namespaces")
SERVICE_ACCOUNTS = Kind("api/v1", "serviceaccounts", namespaced=True)
SECRETS = Kind("api/v1", "secrets", namespaced=True)
SECURITY = "pod-security.kubernetes.io/enforce"
APPLY = "Apply the manifests: kubectl apply -k workflows/cluster/overlays/whole-cluster (or own-namespace)."


@check("namespace")
def namespace(view: KubernetesView, profile: Profile) -> Finding:
    """The namespace is there, and its Pod Security lets the profile's pods in."""
    found = view.get(NAMESPACES, view.namespace)
    if found is None:
        return wrong(f"There is no namespace {view.namespace}.", f"{APPLY} Or set cluster.namespace.")
    level = texts(found, "metadata", "labels").get(SECURITY)
    if level in ("restricted", "baseline") and profile.cache and profile.cache.host_path:
        says = f"{view.namespace} enforces Pod Security {level!r}, which refuses the profile's cache.host_path."
        return wrong(says, f"Keep models in cache.claim or cache.image, or label the namespace {SECURITY}=privileged.")
    return ok(f"{view.namespace} is there; Pod Security {f'{level!r} lets our pods in' if level else 'is not set'}.")


@check("your-rights")
def rights(view: KubernetesView) -> Finding:
    """Who asks may submit, schedule and read logs."""
    missing = [str(right) for right in OURS if not view.may(right)]
    if missing:
        return wrong(f"You may not {', '.join(missing)} in {view.namespace}.", SUBMITTER)
    return ok(f"You may {', '.join(map(str, OURS))}.")


@check("service-accounts")
def accounts(view: KubernetesView) -> Finding:
    """The pods' accounts are there."""
    missing = [account for account in ACCOUNTS if view.get(SERVICE_ACCOUNTS, account) is None]
    if missing:
        return wrong(f"There is no service account {' and no '.join(missing)}.", APPLY)
    return ok(f"{' and '.join(ACCOUNTS)} are there.")


@check("pod-rights")
def pod_rights(view: KubernetesView) -> Finding:
    """Pods may hand their outputs to Argo's controller, and those of large runs start further workflows."""
    for account, wanted in ACCOUNTS.items():
        missing = [str(right) for right in wanted if not view.account_may(account, right)]
        if missing:
            return wrong(f"Service account {account} may not {', '.join(missing)}.", APPLY)
    return ok("Pods may hand in their results.")


@check("store-credentials")
def credentials(view: KubernetesView, output: str) -> Finding:
    """Pods have a key to the object store, or an identity that stands for one. No value is looked at."""
    account = texts(view.get(SERVICE_ACCOUNTS, "imagekiln"), "metadata", "annotations")
    if found := [key for key in IDENTITIES if account.get(key)]:
        return ok(f"Service account imagekiln has an identity: {found[0]}.")
    if not output.startswith(("s3://", "s3a://")):
        remedy = "Annotate it as your cloud says, or bind its identity to the account in another way."
        return unknown(f"Service account imagekiln shows no identity for {output}.", remedy)
    secret, keys = next(iter(STORAGE.values()))[0], [key for _, key in STORAGE.values()]
    if not view.may(Right("get", "secrets")):
        remedy = f"Ask who may: Secret {secret} needs {' and '.join(keys)}, or the account imagekiln an identity."
        return unknown("You may not read Secrets, which is as it should be.", remedy)
    there = part(view.get(SECRETS, secret), "data")
    if missing := [key for key in keys if not there.get(key)]:
        remedy = "Fill in workflows/cluster/base/secrets.example.yaml, or annotate the account with an identity."
        return wrong(f"Secret {secret} does not have {' and '.join(missing)}.", remedy)
    return ok(f"Secret {secret} has {' and '.join(keys)}.")
