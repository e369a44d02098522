"""Which failures are tried again, where, and with how much memory."""

from hera.workflows import models as m

from imagekiln.workflows.profiles.profile import Retries

# In double quotes: in a patch, which is YAML, single ones are doubled.
OOM_EXPRESSION = (
    '(get(get($env, "lastRetry") ?? {}, "message") ?? "OOMKilled") contains "OOMKilled"'
)
MAX_EXPONENTIAL_RETRIES = 6  # retries, the last of which waits eight minutes
# By the step's exit code, as text. 2 and 3 say that trying again is useless. 75 asks for it. 137 and 143 are signals:
# out of memory, or stopped before the step could say so. -1: the pod is gone (its node lost, evicted, deleted) or was
# never let in. The rest, a bug of ours (1), a crash, or 0 where Argo's own container failed, gets two more tries.
RETRY_EXPRESSION = (
    "lastRetry.exitCode not in ['2', '3'] and "
    "(lastRetry.exitCode in ['75', '-1', '137', '143'] or lastRetry.message contains 'OOMKilled' or asInt(retries) < 2)"
)


def retry_strategy(retries: Retries) -> m.RetryStrategy:
    """For templates of containers only: on a DAG, Argo would make the whole DAG again."""
    return m.RetryStrategy(
        limit=m.IntOrString(retries.limit),
        retry_policy="Always",
        expression=RETRY_EXPRESSION,
        backoff=_backoff(retries.limit),
        # Argo can only require another node, not prefer one.
        affinity=m.RetryAffinity(node_anti_affinity=m.RetryNodeAntiAffinity())
        if retries.elsewhere
        else None,
    )


def _backoff(limit: int) -> m.Backoff:
    # Argo before 3.7 knows no cap: many tries come evenly.
    if limit > MAX_EXPONENTIAL_RETRIES:
        return m.Backoff(duration="1m", factor=m.IntOrString(1))
    return m.Backoff(duration="15s", factor=m.IntOrString(2))


def memory_expression(base: int, most: int | None) -> str:
    """So many MiB, and after OOMKilled half of that more for each retry so far, up to `most`, as Argo works it out.

    Argo before 3.7 does not tell a pod why the last one failed: there, each retry gets more.
    """
    if most is None or most <= base:
        return f"{base}Mi"
    more = f"sprig.min(sprig.div(sprig.mul({base}, sprig.add(retries, 2)), 2), {most})"
    return f"{{{{={OOM_EXPRESSION} ? {more} : {base}}}}}Mi"
