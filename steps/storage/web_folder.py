"""The page on which a web server lists a folder: read with a bound, since anybody may have it.

fsspec reads such a page whole, and looks for links in a time that grows with its cube.
"""

import re
from contextlib import suppress
from urllib.parse import urljoin

MAX_PAGE_BYTES = 2**24
# Each `<` ends the search for the one before.
LINK = re.compile(r"""<a\s[^<>]*?\bhref=["']([^"'<>]+)""", re.IGNORECASE)


def list_page(url: str, page: bytes) -> list[dict[str, object]]:
    """What a page links to, as fsspec describes it: a folder's name ends with a slash."""
    names = dict[str, None]()
    for link in LINK.findall(page.decode(errors="ignore")):
        with suppress(ValueError):  # it is no address
            names[urljoin(f"{url}/", link)] = None
    return [{"name": name, "type": "directory" if name.endswith("/") else "file"} for name in names]
