"""The columns of a table by our names: exactly so, or in another spelling, such as `CFG Scale`.

A header is read as a whole: a table whose prompts are called `Prompt` calls its seeds `Seed`.
"""

import re
from collections.abc import Iterable, Sequence

from imagekiln.steps.errors import BadInput, cut_name
from imagekiln.steps.job.columns import PROMPT_COLUMNS
from imagekiln.steps.job.job import ColumnNames

# Further names, as tools and datasets write them, without what separates their words.
SYNONYMS = {
    "prompt": ("prompts", "text", "caption"),
    "negative_prompt": ("negative",),
    "steps": ("samplingsteps", "inferencesteps", "numinferencesteps"),
    "guidance": ("cfg", "cfgscale", "guidancescale"),
    "sampler": ("samplername", "samplingmethod"),
    "loras": ("lora",),
    "source_image": ("initimage",),
    "images": ("numimages", "imagesperprompt", "numimagesperprompt"),
}
SEPARATORS = re.compile(r"[\W_]+")  # of words; a byte order mark is one, too
DEFAULT_NAMES = ColumnNames()
OUR_NAMES = tuple(column.name for column in PROMPT_COLUMNS)


def fold_name(name: str) -> str:
    """A name without case and separators, by which `CFG Scale` is `cfg_scale`."""
    return SEPARATORS.sub("", name).casefold()


def match_names(
    names: Sequence[str],
    columns: ColumnNames,
    where: str,
    wanted: Iterable[str] = OUR_NAMES,
) -> dict[str, str]:
    """The table's names of the `wanted` columns that it has, by ours.

    A name that the job sets is taken exactly. Raises BadInput where two columns may be meant.
    """
    chosen = {theirs for ours, theirs in columns if is_set(ours, theirs)}
    free = [name for name in dict.fromkeys(names) if name not in chosen]
    matched: dict[str, str] = {}
    for ours in wanted:
        theirs = getattr(columns, ours)
        likely: list[str] = []
        if theirs in names:
            likely = [theirs]
        elif not is_set(ours, theirs):
            likely = find_spellings(free, ours)
        if len(likely) > 1:
            quoted = [repr(cut_name(name)) for name in likely]
            listed = " and ".join(quoted)
            raise BadInput(
                f"{where}: columns {listed} may each be {ours}. Set columns.{ours} to one of them."
            )
        if likely:
            matched[ours] = likely[0]
    return matched


def is_set(ours: str, theirs: str | None) -> bool:
    """Whether a job sets the name of a column; one that is written and read again names all."""
    default: str | None = getattr(DEFAULT_NAMES, ours)
    return theirs != default


def find_spellings(names: Iterable[str], ours: str) -> list[str]:
    """The names that mean a column of ours, the exact one first."""
    synonyms = SYNONYMS.get(ours, ())
    spellings = {fold_name(ours), *synonyms}
    likely = [name for name in names if fold_name(name) in spellings]
    return sorted(likely, key=lambda name: name != ours)


def describe_unread(ours: str) -> str:
    """A sentence on how to leave a column of ours unread; none for the prompt and for others."""
    if ours == "prompt" or ours not in OUR_NAMES:
        return ""
    return f" To leave {ours} unread, set `columns: {{{ours}: null}}`."
