"""The metrics of a run and of its pods, which Argo's controller serves after the pods are gone.

Those of a run are computed by the exit handler's pod (`workflows/pod/outputs.py`), which leaves
every value as an output parameter, a number even if the run failed: Argo would mark a workflow
whose metric has no value. What they mean is in docs/monitoring.md, which a test compares with
these.

A help text never changes, in no version: Argo's controller refuses a metric that it knows with
another help until it is started again. A metric that means something else gets another name.
"""

from hera.workflows import Counter, Gauge, Histogram, Label

SERVED_PREFIX = "argo_workflows_"  # which Argo's exporter puts before every name
PREFIX = "imagekiln_"
JOB_OUTPUT = "job"
UNKNOWN_JOB = "unknown"  # of a workflow that failed before its job was read
IMAGE_STATUSES = ("ok", "blank", "filtered", "failed", "outscored", "forgotten", "missing")
GPU_USES = ("drawing", "loading", "idle", "repeated")
COST = "cost"
SPENT_FIGURES = (*GPU_USES, COST)  # GPU seconds by use, and what all of them cost
# From a shard of ten seconds to a day, which is when a pod is stopped.
SHARD_BUCKETS = (10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400)
SUCCEEDED = "{{workflow.status}} == Succeeded"

Metric = Counter | Gauge | Histogram


def plan_metrics() -> list[Metric]:
    """Metrics of the plan step, which progress is compared with."""
    return [
        Gauge(
            name=f"{PREFIX}run_images_planned",
            help="Images that the latest run is to have.",
            labels=[Label(key="job", value=_output("job_name"))],
            realtime=False,
            # A step that failed has no outputs: Argo would report a metric without a value.
            when="{{status}} == Succeeded",
            value=_output("images"),
        )
    ]


def outcome_metrics() -> list[Metric]:
    """Metrics of the exit handler's pod."""
    status = "{{workflow.status}}"
    return [
        Counter(
            name=f"{PREFIX}runs_total",
            help="Workflows of a job that ended.",
            labels=_job_labels(status=status),
            value="1",
        ),
        _gauge(
            "run_duration_seconds",
            "From the creation of the latest workflow to its end.",
            "seconds",
        ),
        _gauge(
            "run_last_success_timestamp_seconds",
            "When the latest successful run ended, in seconds since 1970.",
            "ended_at",
            when=SUCCEEDED,
        ),
        *(
            _gauge("run_images", "Images of the latest run, by status.", value, status=value)
            for value in IMAGE_STATUSES
        ),
        *(
            _counter("run_gpu_seconds_total", "GPU time, by what it was used for.", use, use=use)
            for use in GPU_USES
        ),
        _counter("run_cost_total", "Cost of the GPU time, in the currency of the price.", COST),
    ]


def run_outputs() -> tuple[str, ...]:
    """The output parameters of that pod, from which their values are taken."""
    return (JOB_OUTPUT, "seconds", "ended_at", *IMAGE_STATUSES, *SPENT_FIGURES)


def shard_metrics() -> list[Metric]:
    """Metrics of generate."""
    return [
        Histogram(
            name=f"{PREFIX}shard_seconds",
            help="From the creation of a shard's pod to its end.",
            labels=[
                Label(key="job", value="{{inputs.parameters.job_name}}"),
                Label(key="status", value="{{status}}"),
            ],
            buckets=list(SHARD_BUCKETS),
            value="{{duration}}",
        )
    ]


def _gauge(name: str, meaning: str, output: str, when: str | None = None, **labels: str) -> Gauge:
    return Gauge(
        name=PREFIX + name,
        help=meaning,
        labels=_job_labels(**labels),
        realtime=False,
        value=_output(output),
        when=when,
    )


def _counter(name: str, meaning: str, output: str, **labels: str) -> Counter:
    return Counter(
        name=PREFIX + name, help=meaning, labels=_job_labels(**labels), value=_output(output)
    )


def _job_labels(**labels: str) -> list[Label]:
    values = {"job": _output(JOB_OUTPUT)} | labels
    return [Label(key=key, value=value) for key, value in values.items()]


def _output(name: str) -> str:
    return f"{{{{outputs.parameters.{name}}}}}"
