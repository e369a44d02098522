"""What the Kubernetes API tells of a cluster: read only, and asked for once."""

from dataclasses import dataclass
from typing import cast
from urllib.parse import quote

from imagekiln.steps.errors import Missing
from imagekiln.workflows.connection import Connection, Json
from imagekiln.workflows.doctor.check import Unseen
from imagekiln.workflows.kubernetes_api import KubernetesApi
from imagekiln.workflows.refusals import Denied

PAGE = "500"
OUTLINES = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
REVIEWS = "apis/authorization.k8s.io/v1"
DOCTOR = "Ask for the ClusterRole imagekiln-doctor (workflows/cluster/overlays/whole-cluster/doctor.yaml)."
SUBMITTER = "Ask for the Role imagekiln-submitter (workflows/cluster/base/access.yaml)."


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object: its API and plural, and whether it lies in namespaces."""

    api: str
    plural: str
    namespaced: bool = False


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource of the namespace, such as get on pods/log."""

    verb: str
    resource: str
    group: str = ""

    def __str__(self) -> str:
        """As people say it."""
        return f"{self.verb} {self.resource}"


class KubernetesView:
    """A cluster, seen from one of its namespaces. Every method raises Unseen where one may not, and TryAgain."""

    def __init__(self, connection: Connection, namespace: str) -> None:
        """Take the connection that is to be used."""
        self._connection = connection
        self._listed: dict[tuple[Kind, str], list[Json]] = {}
        self.url = connection.url
        self.namespace = namespace

    def version(self) -> str:
        """The API's version, such as v1.34.4."""
        return str(self._public("version")["gitVersion"])

    def served(self, api: str) -> frozenset[str]:
        """The plurals that an API, such as apis/apps/v1, has. None where it is not there."""
        try:
            found = self._public(api)
        except Missing:
            return frozenset()
        return frozenset(str(each["name"]) for each in cast("list[Json]", found["resources"]))

    def get(self, kind: Kind, name: str) -> Json | None:
        """An object by its name; None where there is none."""
        try:
            return self._connection.ask("GET", f"{self._path(kind)}/{quote(name, safe='')}")
        except Missing:
            return None
        except Denied as error:
            raise _unseen(kind) from error

    def find(self, kind: Kind, query: str = "", *, everywhere: bool = False) -> list[Json]:
        """The objects of a kind, in the namespace or in all of them; with a `query` such as labelSelector=a=b."""
        if (kind, query) not in self._listed:
            path = f"{kind.api}/{kind.plural}" if everywhere else self._path(kind)
            try:
                self._listed[kind, query] = self._pages(path, query)
            except Missing:
                self._listed[kind, query] = []
            except Denied as error:
                raise _unseen(kind, everywhere=everywhere) from error
        return self._listed[kind, query]

    def outlines(self, kind: Kind) -> list[Json]:
        """The metadata of a kind's objects in the namespace, without the rest: a workflow can have a megabyte."""
        try:
            return self._pages(self._path(kind), "", OUTLINES)
        except Denied as error:
            raise _unseen(kind) from error
        except Missing:
            return []

    def may(self, right: Right) -> bool:
        """Whether who asks has a right in the namespace."""
        return self._reviewed(f"{REVIEWS}/selfsubjectaccessreviews", "SelfSubjectAccessReview", self._asked(right))

    def account_may(self, account: str, right: Right) -> bool:
        """Whether a service account of the namespace has a right there."""
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{self.namespace}", "system:authenticated"]
        user: Json = {"user": f"system:serviceaccount:{self.namespace}:{account}", "groups": groups}
        path = f"{REVIEWS}/namespaces/{self.namespace}/localsubjectaccessreviews"
        return self._reviewed(path, "LocalSubjectAccessReview", self._asked(right) | user)

    def would_be(self, made: Json) -> Json:
        """What an object of Argo's would be if it were applied. Nothing is written."""
        try:
            return KubernetesApi(self._connection).apply(made, dry_run=True)
        except Denied as error:
            raise Unseen(
                f"You may not apply a {made['kind']}, not even to see what it would change.", SUBMITTER
            ) from error

    def _public(self, path: str) -> Json:
        try:
            return self._connection.ask("GET", path)
        except Denied as error:
            raise Unseen(f"You may not read /{path}.", "Ask for the ClusterRole system:discovery.") from error

    def _pages(self, path: str, query: str, accept: str = "application/json") -> list[Json]:
        key, _, value = query.partition("=")
        return list(self._connection.pages(path, {"limit": PAGE} | ({key: value} if key else {}), accept))

    def _asked(self, right: Right) -> Json:
        resource, _, part = right.resource.partition("/")
        asked = {"namespace": self.namespace, "verb": right.verb, "group": right.group, "resource": resource}
        return {"resourceAttributes": asked | ({"subresource": part} if part else {})}

    def _reviewed(self, path: str, kind: str, spec: Json) -> bool:
        # A local review must say its namespace twice.
        about: Json = {"namespace": self.namespace} if kind.startswith("Local") else {}
        body: Json = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "metadata": about, "spec": spec}
        try:
            return bool(cast("Json", self._connection.ask("POST", path, body=body)["status"]).get("allowed"))
        except Denied as error:
            raise Unseen(f"You may not create a {kind}.", SUBMITTER) from error

    def _path(self, kind: Kind) -> str:
        return (
            f"{kind.api}/namespaces/{self.namespace}/{kind.plural}" if kind.namespaced else f"{kind.api}/{kind.plural}"
        )


def _unseen(kind: Kind, *, everywhere: bool = False) -> Unseen:
    return Unseen(f"You may not read {kind.plural}.", SUBMITTER if kind.namespaced and not everywhere else DOCTOR)
