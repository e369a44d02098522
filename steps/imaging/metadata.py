"""Metadata of an image file: its parameters in EXIF, and a statement in XMP that AI made it."""

import struct
from functools import cache
from importlib.metadata import PackageNotFoundError, version

# The parameters are in the EXIF tag `UserComment`, which programs read in files without text
# chunks. Big-endian, with UTF-16 in the same byte order, which some readers assume.
EXIF_HEADER = b"Exif\0\0"
TIFF_HEADER = b"MM\0\x2a" + struct.pack(">I", 8)
UNICODE_PREFIX = b"UNICODE\0"
SUB_IFD_TAG = 0x8769
USER_COMMENT_TAG = 0x9286
TYPE_LONG = 4
TYPE_UNDEFINED = 7
IFD_BYTES = 18  # of a directory with one entry
MAX_EXIF_BYTES = 65_533  # in one segment of a JPEG
MAX_COMMENT_UNITS = (
    MAX_EXIF_BYTES - len(EXIF_HEADER) - len(TIFF_HEADER) - 2 * IFD_BYTES - len(UNICODE_PREFIX)
) // 2

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


def exif_user_comment(text: str) -> bytes:
    """Build EXIF with only this comment. In a JPEG, it may have MAX_COMMENT_UNITS of UTF-16."""
    content = UNICODE_PREFIX + text.encode("utf-16-be")
    sub_ifd_offset = len(TIFF_HEADER) + IFD_BYTES
    comment_offset = sub_ifd_offset + IFD_BYTES
    return b"".join(
        [
            EXIF_HEADER,
            TIFF_HEADER,
            _single_entry_ifd(SUB_IFD_TAG, TYPE_LONG, 1, sub_ifd_offset),
            _single_entry_ifd(USER_COMMENT_TAG, TYPE_UNDEFINED, len(content), comment_offset),
            content,
        ]
    )


@cache
def program_version() -> str:
    """Return `Imagekiln` with its version, if it is installed."""
    try:
        return f"Imagekiln {version('imagekiln')}"
    except PackageNotFoundError:
        return "Imagekiln"


def _single_entry_ifd(tag: int, kind: int, count: int, value: int) -> bytes:
    return struct.pack(">HHHIII", 1, tag, kind, count, value, 0)
