"""Kubernetes objects as YAML that kubectl takes as it is."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

NUMBER_LIKE = re.compile(r"[-+.]?[0-9][0-9a-fxo_.:+-]*", re.IGNORECASE)
MAX_FLOW_CHARS = 100  # signs of a group in one line
UNQUOTED = "unquoted"  # a style that YAML itself does not have


class Unquoted(str):
    """What Argo replaces before the YAML is read, by a number or by JSON: quotes around it would make a text of it."""

    __slots__ = ()


class _ManifestDumper(yaml.SafeDumper):
    """Lists as people indent them, and texts of several lines as blocks."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, indentless=False)

    def represent_mapping(
        self, tag: str, mapping: Any, flow_style: bool | None = None
    ) -> yaml.MappingNode:  # noqa: ANN401
        node = super().represent_mapping(tag, mapping, flow_style)
        if sum(len(str(each)) + 4 for pair in mapping.items() for each in pair) > MAX_FLOW_CHARS:
            node.flow_style = False
        return node

    def choose_scalar_style(self) -> Any:  # noqa: ANN401  # as PyYAML declares it
        if isinstance(self.event, yaml.ScalarEvent) and self.event.style == UNQUOTED:
            return ""
        return super().choose_scalar_style()

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    # Readers differ on what is a number: 1e3 is text here and a number to Kubernetes.
    style = "|" if "\n" in text else '"' if NUMBER_LIKE.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _unquoted(dumper: yaml.SafeDumper, text: Unquoted) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=UNQUOTED)


_ManifestDumper.add_representer(str, _represent_text)
_ManifestDumper.add_representer(Unquoted, _unquoted)


def to_yaml(value: Mapping[str, object]) -> str:
    """One object, its keys in their order but for names, which come first. The innermost groups are in one line."""
    # Never wrapped: a wrapped text can come back as another one.
    return yaml.dump(
        _names_first(value),
        Dumper=_ManifestDumper,
        width=2**31,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
    )


def _names_first(value: object) -> object:
    if isinstance(value, Mapping):
        names = [key for key in ("name", "generateName") if key in value]
        return {
            key: _names_first(value[key])
            for key in [*names, *(key for key in value if key not in names)]
        }
    return [_names_first(each) for each in value] if isinstance(value, list) else value


def to_yaml_documents(objects: Iterable[Mapping[str, object]]) -> str:
    """Several objects, one document each."""
    return "---\n".join(map(to_yaml, objects))
