"""Names in a listing."""

from typing import Any

import pytest

from imagekiln.steps.storage.object_store import ObjectStore
from imagekiln.steps.storage.store import is_plain_name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b"])
def test_a_name_that_leads_elsewhere_is_not_plain(name: str) -> None:
    assert not is_plain_name(name)
    assert is_plain_name(f"x{name}".replace("/", "").replace("\0", ""))


class Hostile:
    """A file system whose listing has whatever keys somebody wrote."""

    async_impl = False

    def ls(self, path: str, **_: object) -> list[dict[str, Any]]:
        keys = [
            f"{path}/good",
            f"{path}/..",
            f"{path}/.",
            f"{path}//",
            f"{path}/../other",
            "bucket/elsewhere",
            path,
        ]
        return [{"name": key, "type": "file", "size": 3, "LastModified": 7} for key in keys]


def test_keys_that_only_look_like_being_in_the_folder_are_left_out() -> None:
    store = ObjectStore("s3://bucket/run", "bucket/run", Hostile())
    assert [each.key for each in store.list_folder("images")] == ["images/good"]
    assert [
        (each.key, each.is_folder, each.size, each.modified) for each in store.list_folder("")
    ] == [("good", False, 3, 7.0)]
