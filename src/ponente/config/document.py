"""Reading YAML: a file at any fsspec URL, with what it includes, as a Tree that knows the place of each value.

In: a path or URL. Out: dicts, lists and scalars; nothing else, whatever tags a file holds. `!include x.yaml` stands for
the content of that file wherever a value may stand, also as `<<: !include x.yaml`; the path is taken from the file that
includes. A key that stands twice is an error, for one of the two would be lost.
"""

import os
import posixpath
from typing import Any

import fsspec
import yaml

from ponente.config.problems import ConfigError, Problem, shown
from ponente.config.scalars import FLOAT, INT, MERGE, implicit_resolvers, value_of
from ponente.config.tree import Path, Place, Tree

INCLUDE = "!include"
_MOST_VALUES = 200_000  # a few lines of nested aliases can stand for more than memory holds
_DEEPEST = 100
_SCALAR_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "value", "merge")}

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _ConfigLoader(_Loader):  # type: ignore[misc]
    """Finds the nodes of a document; the values are made here, not by PyYAML."""

    yaml_implicit_resolvers = implicit_resolvers()


def read_document(url: str) -> Tree:
    """The configuration at `url` (a local path, memory://…, s3://…), with everything it includes."""
    tree = _Reader().read(url, chain=(), asked_by="")
    if not isinstance(tree.raw, dict):
        raise ConfigError(
            Problem(
                found=f"{shown(tree.raw)} as the whole of {url}",
                needed="keys with values, such as data: and model:",
                remedy="give the file at least one key, or leave --config_path out",
            )
        )
    return tree


class _Reader:
    """One reading of a file and all that it includes."""

    def __init__(self) -> None:
        self._values = 0

    def read(self, url: str, chain: tuple[str, ...], asked_by: str) -> Tree:
        """The document at `url`, which the files of `chain` led to; its raw value may be anything."""
        name = _identity(url)
        if name in map(_identity, chain):
            circle = " → ".join([*chain, url])
            raise ConfigError(
                Problem(
                    found=f"files that include each other{asked_by}: {circle}",
                    needed="includes that end",
                    remedy=f"take the {INCLUDE} of {url} out of {chain[-1]}",
                )
            )
        root = _compose(_read_text(url, asked_by), url)
        document = _Document(self, url, (*chain, url))
        raw = {} if root is None else document.value(root, ())
        return Tree(raw, document.places)

    def count(self, url: str) -> None:
        """Counts one more value."""
        self._values += 1
        if self._values > _MOST_VALUES:
            raise ConfigError(
                Problem(
                    found=f"more than {_MOST_VALUES} values in {url} and its aliases",
                    needed="a configuration that fits in memory",
                    remedy="write lists of files as patterns (train.{1..32}.jsonl.gz), and nest fewer aliases",
                )
            )


class _Document:
    """The values of one file."""

    def __init__(self, reader: _Reader, url: str, chain: tuple[str, ...]) -> None:
        self.places: dict[Path, Place] = {}
        self._reader = reader
        self._url = url
        self._chain = chain
        self._open: list[int] = []

    def value(self, node: yaml.Node, path: Path) -> Any:
        """The value of a node; the places of all below it are noted."""
        self._reader.count(self._url)
        if id(node) in self._open:
            raise self._error(
                node, f"an alias in {'.'.join(path)} that holds itself", "values that end", "write it out"
            )
        if len(self._open) == _DEEPEST:
            raise self._error(node, f"more than {_DEEPEST} levels of nesting", "a few", "flatten the value")
        self._open.append(id(node))
        try:
            if node.tag == INCLUDE:
                return self._include(node, path)
            if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
                return [self._item(item, (*path, str(index))) for index, item in enumerate(node.value)]
            return self._scalar(node, path)
        finally:
            self._open.pop()

    def _item(self, node: yaml.Node, path: Path) -> Any:
        self._note(path, node, node)
        return self.value(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        merges = [value for key, value in node.value if key.tag == MERGE]
        brought = self._merged(merges, path) if merges else {}
        own: dict[str, Any] = {}
        keys: dict[str, yaml.Node] = {}
        for key_node, value_node in node.value:
            if key_node.tag == MERGE:
                continue
            key = self._key(key_node)
            if key in keys:
                lines = f"{_line(keys[key])} and {_line(key_node)}"
                found = f"{'.'.join([*path, key])} twice, in lines {lines}"
                raise self._error(key_node, found, "each key once", "remove one of them")
            keys[key] = key_node
            self._note((*path, key), key_node, value_node)
            own[key] = self.value(value_node, (*path, key))
        return {**brought, **own}

    def _merged(self, nodes: list[yaml.Node], path: Path) -> dict[str, Any]:
        """What `<<:` brings in; of several mappings the first wins, so it is read last."""
        together: dict[str, Any] = {}
        for node in reversed(nodes):
            if isinstance(node, yaml.SequenceNode):
                value: Any = self._merged(node.value, path)
            else:
                value = self.value(node, path)
            if not isinstance(value, dict):
                raise self._error(node, f"{shown(value)} after <<", "a mapping", "merge a section, not a single value")
            together |= value
        return together

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, "a list or mapping as a key", "a word", "quote the key if it is meant as text")
        return str(node.value)

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        where = f" as {'.'.join(path)}" if path else ""
        if node.tag not in _SCALAR_TAGS:
            remedy = f"take the tag away, or quote the value; the only tag besides YAML's own is {INCLUDE}"
            raise self._error(node, f"the tag {node.tag}{where}", "plain values: configurations run no code", remedy)
        try:
            return value_of(node.value, node.tag)
        except ValueError as error:
            raise self._error(node, f"{error}{where}", "a value that its tag fits", "remove the tag") from None

    def _include(self, node: yaml.Node, path: Path) -> Any:
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            raise self._error(node, f"{INCLUDE} without a single file", f"{INCLUDE} other.yaml", "name one file")
        asked_by = f" (included in {self._url}:{_line(node)})"
        inner = self._reader.read(_beside(self._url, node.value), self._chain, asked_by)
        for below, place in inner.places.items():
            written = ".".join([*path, place.written])
            self.places[(*path, *below)] = Place(where=place.where, written=written, text=place.text)
        return inner.raw

    def _note(self, path: Path, key_node: yaml.Node, value_node: yaml.Node) -> None:
        text = value_node.value if value_node.tag in (INT, FLOAT) else None
        where = f"{self._url}:{_line(key_node)}"
        self.places[path] = Place(where=where, written=".".join(path), text=text)

    def _error(self, node: yaml.Node, found: str, needed: str, remedy: str) -> ConfigError:
        return ConfigError(Problem(found=f"{found} ({self._url}:{_line(node)})", needed=needed, remedy=remedy))


def parse_flow(text: str) -> Tree:
    """What a list or mapping on one line, `["a", "b"]`, says, as the "value" of a tree."""
    document = _Document(_Reader(), "the value", ())
    root = _compose(text, "the value")
    return Tree({"value": None if root is None else document.value(root, ("value",))}, document.places)


def _compose(text: str, url: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_ConfigLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{url}:{mark.line + 1}" if mark is not None else url
        reason = getattr(error, "problem", None) or str(error).replace("\n", " ")
        raise ConfigError(
            Problem(
                found=f"broken YAML in {place}: {reason}",
                needed="valid YAML",
                remedy="look at that line and the one before it: indentation, brackets, quotes, spaces after colons",
            )
        ) from error
    return node


def _read_text(url: str, asked_by: str) -> str:
    try:
        with fsspec.open(url, "rb") as file:
            return str(file.read(), "utf-8-sig")
    except FileNotFoundError as error:
        remedy = "check the path; relative ones start at the working folder, those of an include at the including file"
        raise _unreadable(url, asked_by, "no file", remedy) from error
    except IsADirectoryError as error:
        raise _unreadable(url, asked_by, "a folder", "name the file in it") from error
    except UnicodeDecodeError as error:
        raise _unreadable(url, asked_by, "bytes that are not UTF-8 text", "save the file as UTF-8") from error
    except ImportError as error:
        remedy = f"install what the protocol needs ({error}); s3:// and gs:// come with pip install 'ponente[cloud]'"
        raise _unreadable(url, asked_by, "a protocol whose package is missing", remedy) from error
    except Exception as error:
        reason = f"an error ({type(error).__name__}: {error})"
        raise _unreadable(url, asked_by, reason, "check the URL, the credentials and the rights") from error


def _unreadable(url: str, asked_by: str, found: str, remedy: str) -> ConfigError:
    return ConfigError(Problem(found=f"{found} at {url}{asked_by}", needed="a YAML file", remedy=remedy))


def _beside(url: str, name: str) -> str:
    """`name` as seen from the folder of `url`."""
    if "://" in name or name.startswith(("/", "~")):
        return name
    protocol, found, rest = url.rpartition("://")
    folder = posixpath.dirname(rest)
    return f"{protocol}{found}{posixpath.normpath(posixpath.join(folder, name))}"


def _identity(url: str) -> str:
    """One name for one file."""
    protocol, found, rest = url.rpartition("://")
    if found and protocol not in ("file", "local"):
        return f"{protocol}://{posixpath.normpath(rest)}"
    return os.path.realpath(os.path.expanduser(rest))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
