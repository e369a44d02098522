"""A text as EXIF, in the tag `UserComment`: where programs look for it in files that have no text of their own.

Big-endian, with the text as UTF-16 of the same order: some readers take the order for granted.
"""

import struct
from functools import cache
from importlib.metadata import PackageNotFoundError, version

EXIF_HEADER = b"Exif\0\0"
UNICODE_PREFIX = b"UNICODE\0"
SUB_IFD_TAG, USER_COMMENT_TAG = 0x8769, 0x9286
TYPE_LONG, TYPE_UNDEFINED = 4, 7
IFD_BYTES = 18  # bytes of a directory with one entry
MAX_EXIF_BYTES = 65_533  # of what a JPEG has room for in one segment
MAX_COMMENT_UNITS = (
    MAX_EXIF_BYTES - len(EXIF_HEADER) - 8 - 2 * IFD_BYTES - len(UNICODE_PREFIX)
) // 2


def exif_user_comment(text: str) -> bytes:
    """EXIF that holds the text and nothing else. A JPEG takes at most MOST_UNITS of UTF-16."""
    content = UNICODE_PREFIX + text.encode("utf-16-be")
    header = b"MM\0\x2a" + struct.pack(">I", 8)
    return (
        EXIF_HEADER
        + header
        + _single_entry_ifd(SUB_IFD_TAG, TYPE_LONG, 1, 8 + IFD_BYTES)
        + _single_entry_ifd(USER_COMMENT_TAG, TYPE_UNDEFINED, len(content), 8 + 2 * IFD_BYTES)
        + content
    )


def _single_entry_ifd(tag: int, kind: int, count: int, value: int) -> bytes:
    return struct.pack(">HHHIII", 1, tag, kind, count, value, 0)


TRAINED_ALGORITHMIC_MEDIA = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
AI_XMP_PACKET = f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description rdf:about="" xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/">
<Iptc4xmpExt:DigitalSourceType>{TRAINED_ALGORITHMIC_MEDIA}</Iptc4xmpExt:DigitalSourceType>
</rdf:Description>
</rdf:RDF>
</x:xmpmeta>
<?xpacket end="r"?>""".encode()


@cache
def program_version() -> str:
    """Imagekiln, with its version where it is installed."""
    try:
        return f"Imagekiln {version('imagekiln')}"
    except PackageNotFoundError:
        return "Imagekiln"
