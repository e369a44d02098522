"""The page of a gallery, with the script that gets its data: from a server, or from files."""

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

PAGE_NAME = "page.html"
SOURCE_TAG = '<script src="SOURCE"></script>'
FIRST_META = '<meta charset="utf-8">'
# Says whose page it is; nothing else of ours has it.
GENERATOR_META = '<meta name="generator" content="imagekiln gallery">'
INLINE_PATTERN = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)
PageSource = Literal["served", "static"]
# A static page makes its images of bytes that its script has read.
IMAGE_ORIGINS: dict[PageSource, str] = {"served": "'self'", "static": "blob:"}


@dataclass(frozen=True, slots=True)
class Page:
    """The page, and the policy that lets it run its own scripts and nothing else."""

    content: bytes
    policy: str


def load_page(source: PageSource) -> Page:
    """The page of this package, with the hashes of its scripts and its style in the policy."""
    folder = files(__package__)
    script = folder.joinpath(f"{source}.js").read_text(encoding="utf-8")
    text = folder.joinpath(PAGE_NAME).read_text(encoding="utf-8")
    text = text.replace(SOURCE_TAG, f"<script>\n{script}</script>")
    directives = [
        "default-src 'none'",
        f"script-src {_source_hashes(text, 'script')}",
        f"style-src {_source_hashes(text, 'style')}",
        f"img-src {IMAGE_ORIGINS[source]}",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    if source == "served":
        return Page(text.encode(), "; ".join([*directives, "frame-ancestors 'none'"]))
    policy = "; ".join(directives)
    return Page(_with_policy(text, policy).encode(), policy)


def _with_policy(text: str, policy: str) -> str:
    """The page with its policy within, since nobody sends a header with it."""
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return text.replace(FIRST_META, f"{FIRST_META}\n{meta}\n{GENERATOR_META}", 1)


def _source_hashes(text: str, tag: str) -> str:
    return " ".join(
        _source_hash(content) for name, content in INLINE_PATTERN.findall(text) if name == tag
    )


def _source_hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
