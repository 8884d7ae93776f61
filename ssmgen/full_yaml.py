"""All of YAML 1.2, with the line of every key and an error for every violation.

`located_yaml` asks it for whatever `plain_yaml` leaves open.
"""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.tokens import AliasToken

from ssmgen.errors import Location, SsmgenError
from ssmgen.plain_yaml import Key

_YAML = "YAML 1.2: `key: value`, every bracket and quote closed"


def parse(text: str, path: str, error: type[SsmgenError]) -> tuple[Any, dict[Key, int]]:
    """The data in `text` and the 1-based line of every key path; raises `error`, placed in `path`."""
    yaml = YAML(typ="safe", pure=True)
    _no_aliases(text, path, error)
    try:
        node = yaml.compose(text)
    except MarkedYAMLError as e:
        # what is never closed is missed at the file's end, and is to be mended where it was opened
        at_end = "stream end" in (e.problem or "")
        mark = (at_end and e.context_mark) or e.problem_mark or e.context_mark
        line = mark.line + 1 if mark else 0
        raise error(
            "not valid YAML", where=Location(path, line), found=e.problem or e.context, expected=_YAML
        ) from None
    except ReaderError as e:
        where = Location(path, text.count("\n", 0, e.position) + 1)
        raise error("not valid YAML", where=where, found=e.reason, expected="printable characters") from None
    except RecursionError:
        where = Location(path, 1)
        raise error("nested too deeply", where=where, found="hundreds of levels", expected="a few levels") from None
    if node is None:
        return None, {(): 1}
    lines: dict[Key, int] = {}
    return _plain(node, (), lines, yaml, (path, error)), lines


def _no_aliases(text: str, path: str, error: type[SsmgenError]) -> None:
    """Raise `error` for an alias: a few of them can spell billions of values, and nothing here repeats itself."""
    try:
        for token in YAML(typ="safe", pure=True).scan(text):
            if isinstance(token, AliasToken):
                raise error(
                    "aliases are not allowed",
                    where=Location(path, token.start_mark.line + 1),
                    found=f"*{token.value}",
                    expected="the value itself",
                    next=f"write out what *{token.value} stands for",
                )
    except (MarkedYAMLError, ReaderError):
        # said better by the parser
        return


def _plain(node: Node, key: Key, lines: dict[Key, int], yaml: YAML, origin: tuple[str, type[SsmgenError]]) -> Any:
    path, error = origin
    lines.setdefault(key, node.start_mark.line + 1)
    if isinstance(node, MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            name = key_node.value if isinstance(key_node, ScalarNode) else None
            here = Location(path, key_node.start_mark.line + 1)
            if name is None:
                raise error("a key that is not plain text", where=here, found="a mapping or list", expected="a name")
            if name in result:
                raise error(
                    f"key {name!r} given twice",
                    where=here,
                    found=f"first given on line {lines[(*key, name)]}",
                    expected="each key once",
                    next="keep one of the two",
                )
            lines[(*key, name)] = here.line
            result[name] = _plain(value_node, (*key, name), lines, yaml, origin)
        return result
    if isinstance(node, SequenceNode):
        return [_plain(item, (*key, i), lines, yaml, origin) for i, item in enumerate(node.value)]
    try:
        return yaml.constructor.construct_object(node, deep=True)
    except ValueError as e:
        where = Location(path, node.start_mark.line + 1)
        raise error("not a value", where=where, found=e, expected="a number, a string, true or false") from None
