"""How many prompts a job's templates make, before any is made."""

from dataclasses import dataclass
from math import prod

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.prompts import PromptTemplate
from imagekiln.steps.prompts.parser import Mode, parse_template
from imagekiln.steps.prompts.template import MAX_COUNT, Template, TemplateMistake, count_texts
from imagekiln.steps.prompts.wildcards import WildcardFiles
from imagekiln.steps.runtime.figures import pluralize

TEMPLATE_SETTING = "prompts.template"
NEGATIVE_SETTING = "prompts.negative_template"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A template as it was written and as it was read, with how many prompts it makes."""

    source: str
    template: Template
    count: int


@dataclass(frozen=True, slots=True)
class PromptRecipes:
    """The templates of a job with their wildcards, and the columns of the table that they name.

    `draws` is how often each template is drawn for a row of the table, and `digest` a hash of the
    wildcard files.
    """

    prompts: tuple[Recipe, ...]
    negative: Recipe
    columns: frozenset[str]
    draws: int
    digest: str

    @property
    def combinations(self) -> int:
        """The prompts of one row of the table, before any sweep."""
        counts = [recipe.count for recipe in self.prompts]
        return self.draws * self.negative.count * sum(counts)


@dataclass(frozen=True, slots=True)
class PromptCount:
    """How many prompts there are, and of what: `6 prompts (3 combinations x 2 rows)`."""

    prompts: int
    description: str


def load_recipes(settings: PromptTemplate) -> PromptRecipes:
    """Read the templates and their wildcard files. Raises BadInput, Missing, TryAgain."""
    wildcards = WildcardFiles(settings.wildcards)
    mode: Mode = "all" if settings.combinations == "all" else "random"

    def load(source: str, setting: str) -> Recipe:
        try:
            template = parse_template(source, wildcards, mode)
        except TemplateMistake as mistake:
            raise BadInput(f"{setting}, {mistake}.") from mistake
        return Recipe(source, template, count_texts(template))

    prompts = []
    for index, source in enumerate(settings.templates):
        setting = TEMPLATE_SETTING
        if len(settings.templates) > 1:
            setting += f"[{index}]"
        prompts.append(load(source, setting))
    return PromptRecipes(
        prompts=tuple(prompts),
        negative=load(settings.negative_template or "", NEGATIVE_SETTING),
        columns=frozenset(wildcards.columns),
        draws=1 if settings.combinations == "all" else settings.combinations,
        digest=wildcards.digest,
    )


def count_prompts(settings: PromptTemplate, recipes: PromptRecipes, rows: int) -> PromptCount:
    """What the templates make of a table of so many rows, or of none, as if it had one.

    Raises BadInput where it is more than the job allows.
    """
    combinations = recipes.combinations
    swept = prod(map(len, settings.sweep.values.values()))
    factors = [pluralize(combinations, "combination")]
    if rows != 1:
        factors.append(f"{rows:,} rows")
    if swept != 1:
        factors.append(f"{swept:,} settings of the sweep")
    product = " x ".join(factors)
    prompts = combinations * rows * swept
    least = "at least " if combinations >= MAX_COUNT else ""
    count = PromptCount(prompts, f"{least}{pluralize(prompts, 'prompt')} ({product})")
    if prompts > settings.most_prompts:
        raise BadInput(
            f"{TEMPLATE_SETTING}: makes {count.description}, and at most "
            f"{settings.most_prompts:,} are allowed. Set prompts.combinations to how many are "
            "drawn for each row."
        )
    return count
