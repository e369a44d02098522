"""Retries of failed pods by Argo: exit codes, nodes and memory.

Every container uses `retry_strategy`: plan, generate, aggregate and the others. To change which
failures are retried:

1. Change `RETRY_EXPRESSION`, or `FINAL_EXIT_CODES`, which `watch` reads too. Two places mention
   OOMKilled: the expression, and `OOM_EXPRESSION`, which increases memory. Exit codes without a
   clause are retried while `asInt(retries) < 2`.
2. Change the comment above it, which gives the reason for each exit code.
3. A pod of several GPUs ends with 75 if so many of its workers were lost that images are
   missing: `make_shards` (`steps/generate/workers.py`) raises the error with this code.
4. For memory, see `memory_expression` and the profiles' `most_memory`. With a `limit`
   of n retries, memory grows to `memory` times 1 + n / 2 at most: a larger `most_memory` is never
   reached.
5. Test it in `tests/workflows/templates/test_pod_retries.py`.
6. Run `make golden`, and read the diff. Only `CHILD_RETRY_EXPRESSION` is repeated by hand, in
   `workflows/cluster/base/batch.yaml`; a test compares the two.
7. Change `docs/cluster.md` ("Failures") and the table of exit codes in `docs/operations.md`. Users
   have to run `imagekiln apply`.
"""

from hera.workflows import RetryStrategy
from hera.workflows import models as m

from imagekiln.workflows.profiles.profile import Retries

# Double quotes, since single quotes are doubled in the YAML of a patch.
OOM_EXPRESSION = (
    '(get(get($env, "lastRetry") ?? {}, "message") ?? "OOMKilled") contains "OOMKilled"'
)
MAX_EXPONENTIAL_RETRIES = 6  # retries, the last of which waits eight minutes
# By the step's exit code, as a string. 2 and 3: another attempt is useless. 75 requests another
# attempt. 137 and 143 are signals: out of memory, or stopped before the step could report it. -1:
# the pod is gone (its node lost, evicted, deleted) or was never admitted. 128: the container could
# not be started, as on a node whose GPU driver is not ready. These are retried up to the limit. Any
# other code is unexpected: 1 is a bug of Imagekiln, others a crash, and 0 means that Argo's own
# container failed. It is retried only after fewer than two retries. `retries` counts all retries,
# since Argo has no count by exit code, so a crash after two retries for 75 is not retried.
FINAL_EXIT_CODES = ("2", "3")
RETRY_EXPRESSION = (
    f"lastRetry.exitCode not in {[*FINAL_EXIT_CODES]} and "
    "(lastRetry.exitCode in ['75', '-1', '128', '137', '143'] "
    "or lastRetry.message contains 'OOMKilled' or asInt(retries) < 2)"
)
# For the pod of a resource template, in which Argo's program creates a child workflow and waits for
# it. Its exit code is 64 for any failure, and its message has the reason. A failed child is final,
# since another pod would find the same one. Any other failure, such as an unreachable API server or
# a lost pod, says nothing about the child, and is retried. cluster/base/batch.yaml repeats the
# expression by hand, and a test compares the two.
CHILD_RETRY_EXPRESSION = "not (lastRetry.message contains 'failure condition')"


def retry_strategy(retries: Retries) -> RetryStrategy:
    """Build the strategy of a container. On a DAG, Argo would run the whole DAG again."""
    return RetryStrategy(  # with an expression, Argo's policy is Always
        limit=retries.limit,
        expression=RETRY_EXPRESSION,
        backoff=_backoff(retries.limit),
        affinity=_other_node() if retries.elsewhere else None,
    )


def child_retry_strategy(limit: int) -> RetryStrategy:
    """Build the strategy of a template that creates a child workflow and waits for it."""
    return RetryStrategy(limit=limit, expression=CHILD_RETRY_EXPRESSION, backoff=_backoff(limit))


def _other_node() -> m.RetryAffinity:
    # Argo can require another node, but not prefer one.
    return m.RetryAffinity(node_anti_affinity=m.RetryNodeAntiAffinity())


def _backoff(limit: int) -> m.Backoff:
    # Argo before 3.7 has no cap, so many retries come at even intervals.
    if limit > MAX_EXPONENTIAL_RETRIES:
        return m.Backoff(duration="1m", factor=m.IntOrString(1))
    return m.Backoff(duration="15s", factor=m.IntOrString(2))


def memory_expression(base: int, maximum: int | None) -> str:
    """Build Argo's expression for memory: `base` MiB, plus half per retry after OOMKilled.

    It is at most `maximum` MiB. Argo before 3.7 does not tell a pod why the last one failed, so
    each retry gets more.
    """
    if maximum is None or maximum <= base:
        return f"{base}Mi"
    more = f"sprig.min(sprig.div(sprig.mul({base}, sprig.add(retries, 2)), 2), {maximum})"
    return f"{{{{={OOM_EXPRESSION} ? {more} : {base}}}}}Mi"
