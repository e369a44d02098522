"""The plan as a pass sees it that draws with a diffusion model of its own."""

from collections.abc import Iterator
from dataclasses import replace

from imagekiln.steps.models.pass_models import iter_pass_jobs
from imagekiln.steps.runs.plan import Plan


def iter_pass_plans(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """The passes with a model of their own, by name, each with the plan of a run of that model.

    Batches have the sizes that the plan gives those of the job's own model.
    """
    drawn_size = (plan.width, plan.height)
    sizes = dict(zip(plan.job.passes, plan.pass_sizes.sizes_by_pass(drawn_size), strict=True))
    for name, job in iter_pass_jobs(plan.job):
        facts = plan.passes[name].model
        if facts is None:
            raise ValueError(f"the plan of {plan.run_id} has no model of the pass {name}")
        width, height = sizes[name]
        yield (
            name,
            replace(
                plan,
                job=job,
                model=facts,
                width=width,
                height=height,
                adapters={},
                loras={},
                scores={},
                passes={},
            ),
        )
