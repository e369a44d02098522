"""The page that shows two runs side by side: relative pictures, no script."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader

from imagekiln.steps import names
from imagekiln.steps.visible import sanitize_page_text

if TYPE_CHECKING:
    from imagekiln.steps.diff import Diff

MAX_PROMPT_CHARS = 400  # of a text that has a megabyte


@dataclass(frozen=True, slots=True)
class PairComparison:
    """One pair. `rms` is the distance of its pixels; sizes are width and height of the images themselves."""

    prompt: str
    seeds: tuple[str, str]
    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    rms: float


def render_diff(result: "Diff", shown: list[PairComparison]) -> str:
    """The page as HTML. Everything of the user's is escaped."""
    environment = Environment(loader=PackageLoader("imagekiln.steps", "."), autoescape=True, trim_blocks=True)
    environment.filters["visible"] = _visible_prompt
    template = environment.get_template("diff.html.j2")
    pictures = [[names.diff_image_key(place, which) for which in "ab"] for place in range(len(shown))]
    return template.render(diff=result, pairs=list(zip(shown, pictures, strict=True)))


def _visible_prompt(text: str) -> str:
    return sanitize_page_text(text if len(text) <= MAX_PROMPT_CHARS else f"{text[:MAX_PROMPT_CHARS]}…")
