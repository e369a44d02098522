"""The metadata of an image file, as exiv2, Pillow and web UIs read it."""

import io
import json
import re
from dataclasses import dataclass, field

import exiv2
from PIL import Image

COMMENT = "Exif.Photo.UserComment"
SOURCE = "Xmp.iptcExt.DigitalSourceType"
PAIR = re.compile(r'\s*(\w[\w /-]+):\s*("(?:[^"\\]|\\.)+"|[^,]*)(?:,|$)')
NEGATIVE = "Negative prompt:"


@dataclass(frozen=True, slots=True)
class Read:
    """The text `parameters`, and every XMP property."""

    parameters: str | None
    xmp: dict[str, str]


def read(content: bytes) -> Read:
    """The metadata of a file of any format. In PNG, the text is a chunk unknown to exiv2."""
    exiv2.LogMsg.setLevel(exiv2.LogMsg.Level.error)
    image = exiv2.ImageFactory.open(content)
    image.readMetadata()
    comments = [bytes(tag.value().data()) for tag in image.exifData() if tag.key() == COMMENT]
    xmp = {tag.key(): str(tag.value()) for tag in image.xmpData()}
    with Image.open(io.BytesIO(content)) as opened:
        text = opened.info.get("parameters")
    for comment in comments:
        assert comment.startswith(b"UNICODE\0")
        text = comment[8:].decode("utf-16-be")
    return Read(text, xmp)


@dataclass(slots=True)
class WebUi:
    """The text as a web UI parses it: see parse_generation_parameters of AUTOMATIC1111."""

    prompt: list[str] = field(default_factory=list)
    negative: list[str] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def prompts(self) -> tuple[str, str]:
        """Prompt and negative prompt."""
        return "\n".join(self.prompt).lstrip("\n"), "\n".join(self.negative).lstrip("\n")


def parse(text: str) -> WebUi:
    """Parse prompt, negative prompt, and settings: the last line if it has three or more pairs."""
    result = WebUi()
    *lines, last = text.strip().split("\n")
    pairs = PAIR.findall(last)
    if len(pairs) < 3:
        lines, pairs = [*lines, last], []
    result.settings = {name: _plain(value) for name, value in pairs}
    target = result.prompt
    for line in map(str.strip, lines):
        if line.startswith(NEGATIVE):
            target = result.negative
            target.append(line.removeprefix(NEGATIVE).strip())
        else:
            target.append(line)
    return result


def _plain(value: str) -> str:
    return str(json.loads(value)) if value.startswith('"') and value.endswith('"') else value
