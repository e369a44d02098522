"""Why a prompt row is refused. Each rule is one line of SQL, so that ten million rows are judged in a pass."""

from dataclasses import dataclass

from imagekiln.steps import carry
from imagekiln.steps.cells import COLUMNS
from imagekiln.steps.encodings import LARGEST_SIDES, Encoding
from imagekiln.steps.errors import BadInput
from imagekiln.steps.job import Job
from imagekiln.steps.loras import REASONS
from imagekiln.steps.model import ModelFacts
from imagekiln.steps.samplers import SAMPLERS

MOST_IMAGES = 10_000
NO_KIND = {"text": "is no UTF-8", "integer": "is no integer of 64 bits", "number": "is no number"}
LARGEST_SIDE = 65_536
LARGEST_SEED = 2**63 - 1 - MOST_IMAGES  # seed + image index still fits 64 bits


@dataclass(frozen=True, slots=True)
class Rule:
    """A row for which `broken` holds is refused, for this column and reason."""

    column: str
    broken: str
    reason: str


SAME_ID = Rule("id", "", "another row before it has this id and other content")


def rules(job: Job, model: ModelFacts) -> tuple[Rule, ...]:
    """The rules of a job, in the order in which a row is judged by them.

    Raises BadInput where a default breaks one: that is a mistake of the job, not of all its rows.
    """
    _refuse_defaults(job, model)
    limits = job.limits
    wrong = tuple(Rule(name, f"wrong = '{name}'", NO_KIND[kind]) for name, kind in COLUMNS.items() if kind in NO_KIND)
    names = ", ".join(f"'{name}'" for name in SAMPLERS)
    return (
        *wrong,
        Rule(carry.MARK, f"wrong = '{carry.MARK}'", f"{NO_KIND['text']} in one of its columns"),
        Rule("prompt", "prompt IS NULL", "is null"),
        Rule("prompt", r"NOT regexp_matches(prompt, '[^\s\p{Z}]')", "is blank"),
        Rule("prompt", f"length(prompt) > {limits.prompt_chars}", f"is over {limits.prompt_chars} characters"),
        Rule(
            "negative_prompt",
            f"length(negative_prompt) > {limits.prompt_chars}",
            f"is over {limits.prompt_chars} characters",
        ),
        *(_side(name, model.size_multiple) for name in ("width", "height")),
        *_file_sides(job.encoding),
        Rule("width", f"width * height > {limits.pixels}", f"times height is over {limits.pixels} pixels"),
        Rule("steps", "steps NOT BETWEEN 1 AND 1000", "is not between 1 and 1000"),
        Rule("guidance", "guidance NOT BETWEEN 0 AND 100", "is not between 0 and 100"),
        *(Rule("loras", f"lora_fault = '{fault}'", reason) for fault, reason in REASONS.items()),
        Rule("images", f"images NOT BETWEEN 1 AND {MOST_IMAGES}", f"is not between 1 and {MOST_IMAGES}"),
        Rule("seed", f"row_seed NOT BETWEEN 0 AND {LARGEST_SEED}", f"is not between 0 and {LARGEST_SEED}"),
        # NOT IN becomes a join, after which DuckDB keeps rows in no order.
        Rule("sampler", f"list_position([{names}], sampler) IS NULL", f"is none of {', '.join(SAMPLERS)}"),
    )


def first_broken_sql(all_rules: tuple[Rule, ...]) -> str:
    """The place of the first rule that a row breaks, or null."""
    cases = " ".join(f"WHEN {rule.broken} THEN {place}" for place, rule in enumerate(all_rules))
    return f"CAST(CASE {cases} END AS INTEGER)"


def _side(name: str, multiple: int) -> Rule:
    broken = f"({name} NOT BETWEEN {multiple} AND {LARGEST_SIDE} OR {name} % {multiple} <> 0)"
    return Rule(name, broken, f"is not a positive multiple of {multiple}, which this model needs")


def _file_sides(encoding: Encoding) -> tuple[Rule, ...]:
    most = LARGEST_SIDES.get(encoding.kind, LARGEST_SIDE)
    said = f"is over {most} pixels, the most that {encoding.kind} holds"
    return tuple(Rule(name, f"{name} > {most}", said) for name in ("width", "height")) if most < LARGEST_SIDE else ()


def _refuse_defaults(job: Job, model: ModelFacts) -> None:
    given, limits, multiple = job.defaults, job.limits, model.size_multiple
    for name, side in (("width", given.width), ("height", given.height)):
        if side is not None and (side % multiple or side > LARGEST_SIDE):
            near = min(max(1, round(side / multiple)), LARGEST_SIDE // multiple) * multiple
            raise BadInput(f"defaults.{name} is {side}; this model needs a multiple of {multiple}. Write {near}.")
    if given.width and given.height and given.width * given.height > limits.pixels:
        raise BadInput(
            f"defaults.width times defaults.height is {given.width * given.height}; limits.pixels allows "
            f"{limits.pixels}. Change one of them."
        )
    if len(given.negative_prompt) > limits.prompt_chars:
        raise BadInput(
            f"defaults.negative_prompt has {len(given.negative_prompt)} characters; limits.prompt_chars allows "
            f"{limits.prompt_chars}. Change one of them."
        )
