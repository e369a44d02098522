"""How many prompts a job's templates make, before any is made."""

from dataclasses import dataclass
from math import prod

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.prompts import PromptTemplate
from imagekiln.steps.prompts.compiler import make_recipe
from imagekiln.steps.prompts.recipe import Recipe
from imagekiln.steps.prompts.wildcards import WildcardFiles
from imagekiln.steps.runtime.figures import pluralize

TEMPLATE_SETTING = "prompts.template"
NEGATIVE_SETTING = "prompts.negative_template"


@dataclass(frozen=True, slots=True)
class PromptRecipes:
    """The templates of a job with their wildcards, read and checked.

    `draws` is how often each template is drawn for a row of the table, `swept` how many settings
    each prompt is made with, and `digest` a hash of the wildcard files.
    """

    prompts: tuple[Recipe, ...]
    negative: Recipe | None
    draws: int
    swept: int
    digest: str

    @property
    def columns(self) -> set[str]:
        """The columns of the table that the templates name."""
        names: set[str] = set()
        for recipe in self.prompts:
            names |= recipe.columns
        if self.negative is not None:
            names |= self.negative.columns
        return names

    @property
    def negatives(self) -> int:
        """The negative prompts with which each prompt is combined."""
        return 1 if self.negative is None else self.negative.count

    @property
    def combinations(self) -> int:
        """The prompts of one row of the table, before any sweep."""
        return self.draws * self.negatives * sum(recipe.count for recipe in self.prompts)


@dataclass(frozen=True, slots=True)
class PromptCount:
    """How many prompts there are: the combinations, for each row of a table and of the sweep."""

    combinations: int
    rows: int
    swept: int

    @property
    def prompts(self) -> int:
        """All of them."""
        return self.combinations * self.rows * self.swept

    def describe(self) -> str:
        """The product, such as `6 prompts (3 combinations x 2 rows)`."""
        factors = [pluralize(self.combinations, "combination")]
        if self.rows != 1:
            factors.append(f"{self.rows:,} rows")
        if self.swept != 1:
            factors.append(f"{self.swept:,} settings of the sweep")
        return f"{pluralize(self.prompts, 'prompt')} ({' x '.join(factors)})"


def load_recipes(settings: PromptTemplate) -> PromptRecipes:
    """Read the templates and their wildcard files. Raises BadInput, Missing, TryAgain."""
    draws = 1 if settings.combinations == "all" else settings.combinations
    is_random = settings.combinations != "all"
    wildcards = WildcardFiles(settings.wildcards)
    prompts = []
    for index, template in enumerate(settings.templates):
        where = TEMPLATE_SETTING
        if len(settings.templates) > 1:
            where += f"[{index}]"
        prompts.append(make_recipe(template, where, wildcards, is_random=is_random))
    negative = None
    if settings.negative_template is not None:
        negative = make_recipe(
            settings.negative_template, NEGATIVE_SETTING, wildcards, is_random=is_random
        )
    swept = prod(map(len, settings.sweep.values.values()))
    return PromptRecipes(tuple(prompts), negative, draws, swept, wildcards.digest)


def count_prompts(settings: PromptTemplate, recipes: PromptRecipes, rows: int) -> PromptCount:
    """What the templates make of a table of so many rows, or of none, as if it had one.

    Raises BadInput where it is more than the job allows.
    """
    count = PromptCount(recipes.combinations, rows, recipes.swept)
    if count.prompts > settings.max_prompts:
        raise BadInput(
            f"{TEMPLATE_SETTING}: makes {count.describe()}, and prompts.max_prompts is "
            f"{settings.max_prompts:,}. Set prompts.combinations to how many are drawn for each "
            "row, or raise prompts.max_prompts."
        )
    return count
