"""Names in paths, and what Argo's server says in a log's place."""

from collections.abc import Iterator
from typing import cast

import pytest

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.workflows.client.argo_server import ArgoServer
from imagekiln.workflows.client.http import ApiConnection
from imagekiln.workflows.client.kubernetes import KubernetesApi


class Stream:
    """A connection whose every answer is the lines that it was given."""

    url = "https://argo"

    def __init__(self, *lines: str) -> None:
        """Take them."""
        self._lines = lines

    def request(self, *_: object, **__: object) -> None:
        """Fail: nothing should be asked."""
        pytest.fail("was asked")

    def stream_lines(self, *_: object) -> Iterator[str]:
        """Give them."""
        yield from self._lines


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a?b", "a%2fb", "a\nb", "-a", "A", "{{a}}", "a" * 254]
)
@pytest.mark.parametrize("kind", [ArgoServer, KubernetesApi])
def test_name_that_leads_elsewhere_is_refused(
    kind: type[ArgoServer | KubernetesApi], name: str
) -> None:
    argo = kind(cast("ApiConnection", Stream()))
    for given in (("images", name), (name, "postcards")):
        for asked in (argo.get, argo.delete):
            with pytest.raises(BadInput, match="is no name"):
                asked("Workflow", *given)
        with pytest.raises(BadInput, match="is no name"):
            argo.stop(*given)


def test_log_of_argos_server_is_lines_until_it_says_why_there_is_none() -> None:
    line = '{"result":{"content":"drawn","podName":"a"}}'
    argo = ArgoServer(cast("ApiConnection", Stream(line, "", '{"result":{}}')))
    assert list(argo.logs("images", "postcards", "a", follow=False)) == ["drawn", ""]
    error = '{"error":{"grpc_code":5,"http_code":404,"message":"pods \\"a\\" not found"}}'
    with pytest.raises(Missing, match='pods "a" not found'):
        list(
            ArgoServer(cast("ApiConnection", Stream(error))).logs(
                "images", "postcards", "a", follow=False
            )
        )
