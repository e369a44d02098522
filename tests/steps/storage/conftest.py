"""File systems that tests of stores ask for."""

from typing import cast

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

SCHEME = "looks-first"


class LookingFirst(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A disk that creates files as most of fsspec's file systems do: it looks, and then writes."""

    protocol = SCHEME

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return cast("str", super()._strip_protocol(path.removeprefix(f"{SCHEME}://")))


@pytest.fixture
def looking_first() -> str:
    """The beginning of the URIs of such a disk, which a path follows."""
    fsspec.register_implementation(SCHEME, LookingFirst, clobber=True)
    return f"{SCHEME}://"
