"""Metrics of a run and of its pods, which Argo's controller serves after the pods are gone.

The exit handler's pod computes the metrics of a run (`workflows/pod/outputs.py`). It writes every
value as an output parameter, and a number even if the run failed, since Argo would mark a workflow
with a missing value. docs/monitoring.md explains the metrics, and a test compares it with this
module.

Never change a help string, even in a new version. Argo's controller refuses a known metric with
another help until it restarts. If the meaning of a metric changes, rename it.
"""

from hera.workflows import Counter, Gauge, Histogram, Label

SERVED_PREFIX = "argo_workflows_"  # added by Argo's exporter before every name
PREFIX = "imagekiln_"
JOB_OUTPUT = "job"
UNKNOWN_JOB = "unknown"  # for a workflow that failed before its job was read
IMAGE_STATUSES = ("ok", "blank", "filtered", "failed", "outscored", "forgotten", "missing")
GPU_USES = ("drawing", "loading", "idle", "repeated")
COST = "cost"
SPENT_FIGURES = (*GPU_USES, COST)  # GPU seconds by use, and their total cost
# From a shard of ten seconds to a day, the time limit of a pod.
SHARD_BUCKETS = (10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400)
SUCCEEDED = "{{workflow.status}} == Succeeded"

Metric = Counter | Gauge | Histogram


def plan_metrics() -> list[Metric]:
    """Build the metrics of the plan step, with which progress is compared."""
    return [
        Gauge(
            name=f"{PREFIX}run_images_planned",
            help="Images that the latest run is to have.",
            labels=[Label(key="job", value=_output("job_name"))],
            realtime=False,
            # A failed step has no outputs, and Argo would report a metric without a value.
            when="{{status}} == Succeeded",
            value=_output("images"),
        )
    ]


def outcome_metrics() -> list[Metric]:
    """Build the metrics of the exit handler's pod."""
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
    """Return the output parameters of that pod, with the values of its metrics."""
    return (JOB_OUTPUT, "seconds", "ended_at", *IMAGE_STATUSES, *SPENT_FIGURES)


def shard_metrics() -> list[Metric]:
    """Build the metrics of generate."""
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
