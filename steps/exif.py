"""A text as EXIF, in the tag `UserComment`: where programs look for it in files that have no text of their own.

Big-endian, with the text as UTF-16 of the same order: some readers take the order for granted.
"""

import struct

BEGINNING = b"Exif\0\0"
UNICODE = b"UNICODE\0"
SUB_IFD, USER_COMMENT = 0x8769, 0x9286
LONG, UNDEFINED = 4, 7
IFD = 18  # bytes of a directory with one entry
MOST_BYTES = 65_533  # of what a JPEG has room for in one segment
MOST_UNITS = (MOST_BYTES - len(BEGINNING) - 8 - 2 * IFD - len(UNICODE)) // 2


def comment(text: str) -> bytes:
    """EXIF that holds the text and nothing else. A JPEG takes at most MOST_UNITS of UTF-16."""
    content = UNICODE + text.encode("utf-16-be")
    header = b"MM\0\x2a" + struct.pack(">I", 8)
    return (
        BEGINNING
        + header
        + _ifd(SUB_IFD, LONG, 1, 8 + IFD)
        + _ifd(USER_COMMENT, UNDEFINED, len(content), 8 + 2 * IFD)
        + content
    )


def _ifd(tag: int, kind: int, count: int, value: int) -> bytes:
    return struct.pack(">HHHIII", 1, tag, kind, count, value, 0)
