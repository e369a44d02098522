"""Read-only view of a cluster, in which each list is requested once."""

from dataclasses import dataclass
from urllib.parse import quote

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.workflows.client.http import ApiConnection, Forbidden
from imagekiln.workflows.objects import Json, get_mapping, get_mappings

PAGE_LIMIT = "500"
AUTHORIZATION_GROUP = "authorization.k8s.io/v1"
CLUSTER_READER_ADVICE = (
    "Ask a cluster administrator for the ClusterRole imagekiln-doctor: "
    "`imagekiln manifests cluster`, `kubectl apply -k cluster/overlays/whole-cluster`, then "
    "`kubectl create clusterrolebinding NAME --clusterrole=imagekiln-doctor --user=YOU`."
)
DISCOVERY_ADVICE = "Ask a cluster administrator for the ClusterRole system:discovery."


class Unreadable(BadInput):
    """Raised if the user has no right to read something. `remedy` names the right to request."""

    def __init__(self, says: str, remedy: str) -> None:
        """Take the problem and the remedy, as sentences."""
        super().__init__(f"{says} {remedy}")
        self.says = says
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """Kind of object: its API path, its plural, and whether it is namespaced.

    A namespaced kind that is read in all namespaces counts as not namespaced.
    """

    api: str
    plural: str
    namespaced: bool = False


@dataclass(frozen=True, slots=True)
class AccessRight:
    """A verb on a resource of the namespace, such as get on pods/log."""

    verb: str
    resource: str
    group: str = ""

    def __str__(self) -> str:
        """Return the verb and the resource, as in `get pods/log`."""
        return f"{self.verb} {self.resource}"


class ClusterView:
    """View of a cluster from one of its namespaces. Every method raises Unreadable and TryAgain."""

    def __init__(self, connection: ApiConnection, namespace: str) -> None:
        """Use a connection, without sending a request."""
        self._connection = connection
        self._lists: dict[tuple[ResourceKind, str], list[Json]] = {}
        self.url = connection.url
        self.namespace = namespace

    @property
    def submitter_advice(self) -> str:
        """Explain how the user gets the rights of a submitter in the namespace."""
        return (
            "Ask an administrator for the Role imagekiln-submitter: "
            f"`kubectl create rolebinding NAME -n {self.namespace} "
            "--role=imagekiln-submitter --user=YOU`."
        )

    def version(self) -> str:
        """Return the version of Kubernetes, such as v1.34.4."""
        return str(self._get_public("version").get("gitVersion", ""))

    def resource_names(self, api: str) -> set[str]:
        """Return the plurals that an API such as apis/apps/v1 serves; none if it does not exist."""
        try:
            resources = get_mappings(self._get_public(api), "resources")
        except Missing:
            return set()
        return {str(resource.get("name")) for resource in resources}

    def get(self, kind: ResourceKind, name: str) -> Json | None:
        """Return an object by name; None if it does not exist."""
        try:
            return self._connection.request("GET", f"{self._path(kind)}/{quote(name, safe='')}")
        except Missing:
            return None
        except Forbidden as error:
            raise self._unreadable(kind) from error

    def list_objects(self, kind: ResourceKind, selector: str = "") -> list[Json]:
        """Return the objects of a kind that match a selector such as labelSelector=a=b."""
        if (kind, selector) not in self._lists:
            key, _, value = selector.partition("=")
            query = {"limit": PAGE_LIMIT} | ({key: value} if value else {})
            try:
                items = list(self._connection.list_items(self._path(kind), query))
            except Missing:
                items = []
            except Forbidden as error:
                raise self._unreadable(kind) from error
            self._lists[kind, selector] = items
        return self._lists[kind, selector]

    def is_allowed(self, right: AccessRight, account: str | None = None) -> bool:
        """Return whether the user, or a ServiceAccount of the namespace, has this right there."""
        resource, _, subresource = right.resource.partition("/")
        spec: Json = {
            "resourceAttributes": {
                "namespace": self.namespace,
                "verb": right.verb,
                "group": right.group,
                "resource": resource,
                "subresource": subresource,
            }
        }
        kind, place = "SelfSubjectAccessReview", ""
        if account is not None:
            kind, place = "LocalSubjectAccessReview", f"namespaces/{self.namespace}/"
            spec |= _account_spec(self.namespace, account)
        body: Json = {"apiVersion": AUTHORIZATION_GROUP, "kind": kind, "spec": spec}
        body["metadata"] = {"namespace": self.namespace} if account else {}
        path = f"apis/{AUTHORIZATION_GROUP}/{place}{kind.lower()}s"
        try:
            answer = self._connection.request("POST", path, body=body)
        except Forbidden as error:
            raise Unreadable(f"You cannot create a {kind}.", self.submitter_advice) from error
        return bool(get_mapping(answer, "status").get("allowed"))

    def _path(self, kind: ResourceKind) -> str:
        place = f"namespaces/{self.namespace}/" if kind.namespaced else ""
        return f"{kind.api}/{place}{kind.plural}"

    def _get_public(self, path: str) -> Json:
        """Read an object that is public to authenticated users by default."""
        try:
            return self._connection.request("GET", path)
        except Forbidden as error:
            raise Unreadable(f"You cannot read /{path}.", DISCOVERY_ADVICE) from error

    def _unreadable(self, kind: ResourceKind) -> Unreadable:
        advice = self.submitter_advice if kind.namespaced else CLUSTER_READER_ADVICE
        return Unreadable(f"You cannot read {kind.plural}.", advice)


def _account_spec(namespace: str, account: str) -> Json:
    """Return a ServiceAccount with its groups, as an access review names it."""
    return {
        "user": f"system:serviceaccount:{namespace}:{account}",
        "groups": [
            "system:serviceaccounts",
            f"system:serviceaccounts:{namespace}",
            "system:authenticated",
        ],
    }
