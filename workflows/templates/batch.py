"""Batch as one task of a user's own workflow."""

from collections.abc import Sequence

from hera.workflows import Parameter, Task
from hera.workflows.models import TemplateRef

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import ClusterSettings, Job
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.workflow import job_parameter, require_reachable_paths
from imagekiln.workflows.templates.workflow_template import template_name

BATCH_TEMPLATE = TemplateRef(name="imagekiln-batch", template="batch")  # cluster/base/batch.yaml

Text = str | Parameter  # a parameter is usually the output of an earlier task


class BatchTask(Task):
    """Task of a batch.

    Its outputs are `run`, the dataset's URI, `images`, the number of planned images, and `ok`, the
    number of images that are ok.
    """

    def get_parameter(self, name: str) -> Parameter:
        """Return an output as an argument for a later task."""
        return Parameter(name=name, value=f"{{{{tasks.{self.name}.outputs.parameters.{name}}}}}")


def batch_task(
    job: Job | Text,
    name: str = "batch",
    *,
    run_id: Text = "",
    date: Text = "",
    timezone: Text = "",
    settings: Sequence[str] = (),
    retry: bool = False,
    rewrites: bool = False,
    cluster: ClusterSettings | None = None,
) -> BatchTask:
    """Build a task that runs a job, and succeeds when its dataset is complete.

    `job` is the job itself, or the URI of its file, which an earlier task may write. With a URI,
    `cluster` replaces the job's cluster settings, and `rewrites` tells if the job has `rewrite`.
    The workflow must run in the namespace of the cluster settings, and the profile's template must
    be registered there. `name` distinguishes the batches of one workflow. The other parameters are
    as for `submit`. Raises BadInput if no pod could run the job.
    """
    if isinstance(job, Job):
        require_reachable_paths(job)
        source: dict[str, Text] = {"job": job_parameter(job)}
        cluster = cluster or job.cluster
        rewrites = job.rewrite is not None
    else:
        source = {"job-uri": job}
        cluster = cluster or ClusterSettings()
    template = template_name(load_profile(cluster.profile), rewrites=rewrites)
    options: dict[str, Text] = {
        "run-id": run_id,
        "logical-date": date,
        "timezone": timezone,
        "settings": "\n".join(settings),
        "retry": "true" if retry else "",
    }
    chosen = {option: value for option, value in options.items() if value}
    return BatchTask(
        name=name,
        template_ref=BATCH_TEMPLATE,
        arguments={"name": name} | _cluster_arguments(cluster, template) | source | chosen,
    )


def _cluster_arguments(cluster: ClusterSettings, template: str) -> dict[str, Text]:
    if cluster.cpu_image or cluster.gpu_image:
        raise BadInput(
            "cluster.cpu_image and cluster.gpu_image: a batch in another workflow has the images "
            "of its profile. Write them into a profile of your own."
        )
    return {
        "template": template,
        "parallelism": str(cluster.parallelism),
        "priority-class": cluster.priority_class or "",
    }
