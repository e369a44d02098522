"""The commands that messages name as the next step, such that they work as they are typed."""

import os

DEFAULT_NAMESPACE = "imagekiln"
NAMESPACE_VARIABLE = "IMAGEKILN_NAMESPACE"


def next_command(verb: str, name: str, namespace: str) -> str:
    """A command on an object, with the namespace unless the command would take that one anyway."""
    assumed = os.environ.get(NAMESPACE_VARIABLE) or DEFAULT_NAMESPACE
    option = "" if namespace == assumed else f" -n {namespace}"
    return f"`imagekiln {verb} {name}{option}`"
