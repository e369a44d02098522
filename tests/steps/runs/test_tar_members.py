"""Tars that strangers wrote: their plain files, or a sentence within bounded memory."""

import io
import tarfile
from collections.abc import Callable

import pytest

from imagekiln.steps.runs.webdataset_format import iter_members

Block = bytes


def header(kind: bytes, content: bytes = b"", **values: object) -> Block:
    """A member of a tar as its bytes, with these values in its header."""
    info = tarfile.TarInfo("__index__")
    info.type = kind
    info.size = len(content)
    for name, value in values.items():
        setattr(info, name, value)
    padding = bytes(-len(content) % tarfile.BLOCKSIZE)
    return info.tobuf(tarfile.GNU_FORMAT) + content + padding


def extended(record: str) -> Block:
    """A member with this in a header of pax before it."""
    length = len(record) + len(" \n") + len(str(len(record)))
    return header(tarfile.XHDTYPE, f"{length} {record}\n".encode()) + header(tarfile.REGTYPE)


REFUSED: dict[str, Callable[[], bytes]] = {
    "a link to itself": lambda: header(tarfile.SYMTYPE, linkname="__index__"),
    "a hard link to itself": lambda: header(tarfile.LNKTYPE, linkname="__index__"),
    "a device": lambda: header(tarfile.CHRTYPE),
    "a folder": lambda: header(tarfile.DIRTYPE),
    "headers without end": lambda: header(tarfile.XHDTYPE, b"12 path=abc\n") * 3000,
    "a sparse file": lambda: header(tarfile.GNUTYPE_SPARSE),
    "a sparse file of terabytes": lambda: extended("GNU.sparse.size=9999999999999"),
    "a map of nonsense": lambda: extended("GNU.sparse.map=1,2,x"),
    "a size beyond all numbers": lambda: extended("size=99999999999999999999"),
    "a negative size": lambda: header(tarfile.REGTYPE, size=-1024),
    "a size beyond the tar": lambda: header(tarfile.REGTYPE, size=10**12),
    "no end": lambda: header(tarfile.REGTYPE, b"content"),
    "noise": lambda: b"x" * 700,
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_tar_with_anything_but_whole_files_is_refused_in_a_sentence(
    make: Callable[[], bytes],
) -> None:
    tar = make() if make is REFUSED["no end"] else make() + bytes(2 * tarfile.BLOCKSIZE)
    with pytest.raises(ValueError, match=r"it is no whole tar|no whole file"):
        list(iter_members(tar))


def test_plain_files_are_where_other_readers_find_them() -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in {"a.png": b"1" * 700, "a.json": b"{}", "é.txt": b""}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    tar = sink.getvalue()

    members = list(iter_members(tar))
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        expected = [(info.name, info.offset, info.offset_data, info.size) for info in archive]
    found = [(member.name, member.start, member.content, member.size) for member in members]
    assert found == expected
