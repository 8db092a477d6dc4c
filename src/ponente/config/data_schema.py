"""The `data` section of either Levanter schema as components: one dataset inline, `configs`, or `components`.

In: raw trees. Out: `data.components.NAME: {source: {type, …}, format: {type, …}, pack, tags, cache_dir}`. One dataset
inline becomes the component `main`, whose caches lie in `data.cache_dir` itself, where Levanter put them.
"""

from typing import Any

from ponente.config.problems import ConfigError, Problem, shown
from ponente.config.tree import Path, Tree

MAIN = "main"
DEFAULT_CACHE_DIR = "cache/"  # of data.cache_dir too

_DATA = ("data",)
_COMPONENTS = ("data", "components")
_URL_KEYS = ("train_urls", "validation_urls")
_HF_KEYS = ("id", "name", "revision", "stream", "splits")
_FILE_KEYS = ("txt_unit",)  # ours: how files are read
_COMPONENT_KEYS = ("source", "format", "pack", "tags", "over_length")
_IDLE_BESIDE_URLS = ("stream", "splits")  # Levanter read them for hub datasets only
_FORMAT_NAMES = {"messages_key": "messages_field"}
_FLAT_KEYS = (*_HF_KEYS, *_URL_KEYS, *_FILE_KEYS, "text_key", "format")


SPELLINGS = (  # other names of our keys, for who looks for the nearest to a misspelt one
    "data.configs",
    *(f"{section}.{key}" for section in ("data", "data.components.*") for key in _FLAT_KEYS),
    *(f"{section}.format.{key}" for section in ("data", "data.components.*") for key in _FORMAT_NAMES),
)


def rename(tree: Tree) -> None:
    """Gives the keys of one layer their one name, in whichever of the shapes it has."""
    tree.move(("data", "configs"), _COMPONENTS)
    for name in tree.keys(_COMPONENTS):
        _rename_component(tree, (*_COMPONENTS, name))
    _rename_component(tree, _DATA)


def _rename_component(tree: Tree, path: Path) -> None:
    for key in (*_HF_KEYS, *_URL_KEYS, *_FILE_KEYS):
        tree.move((*path, key), (*path, "source", key))
    tree.move((*path, "text_key"), (*path, "format", "text_key"))
    if tree.get((*path, "format", "type")) in ("chat", None):
        for old, new in _FORMAT_NAMES.items():
            tree.move((*path, "format", old), (*path, "format", new))


def make_way(whole: Tree, layer: Tree, warnings: list[str]) -> None:
    """Where a layer gives URLs and the ones below a hub dataset, or the reverse, the source below goes."""
    for pattern in (("data", "source"), ("data", "components", "*", "source")):
        for path in layer.matching(pattern):
            kinds = {_kind(whole.get(path)), _kind(layer.get(path))}
            if kinds == {"url", "hf"} and set(layer.keys(path)) != {"type"}:
                old, new = whole.first_place(path), layer.first_place(path)
                warnings.append(f"{new} takes the place of {old} and all of that source.")
                whole.drop(path)


def to_components(tree: Tree, warnings: list[str]) -> None:
    """Brings the whole of `data` to components."""
    _inline_to_main(tree)
    for name in tree.keys(_COMPONENTS):
        path = (*_COMPONENTS, name)
        _check_component_type(tree, path)
        _complete_source(tree, (*path, "source"), warnings)
        _name_splits(tree, (*path, "source"))
        if tree.has((*path, "format", "text_key")) and not tree.has((*path, "format", "type")):
            tree.put((*path, "format", "type"), "text", like=(*path, "format", "text_key"))


def _inline_to_main(tree: Tree) -> None:
    inline = [(*_DATA, key) for key in _COMPONENT_KEYS if tree.has((*_DATA, key))]
    if not inline:
        return
    if tree.get(_COMPONENTS):
        raise ConfigError(
            Problem(
                found=f"{tree.first_place(inline[0])} beside {tree.first_place(_COMPONENTS)}",
                needed="one dataset right under data, or several under data.components (or configs)",
                remedy="move the dataset into data.components under a name of its own; a flag for one of several is "
                "--data.components.NAME.source.train_urls",
            )
        )
    if not tree.has((*_DATA, "source")):
        raise ConfigError(
            Problem(
                found=f"{tree.first_place(inline[0])}, and nothing that its rows come from",
                needed="files, or a dataset of the hub",
                remedy="add data.train_urls (as a flag: --data.train_urls FILES), or data.id",
            )
        )
    for path in inline:
        tree.move(path, (*_COMPONENTS, MAIN, path[-1]))
    cache_dir = tree.get(("data", "cache_dir")) if tree.has(("data", "cache_dir")) else DEFAULT_CACHE_DIR
    tree.put((*_COMPONENTS, MAIN, "cache_dir"), cache_dir, like=("data", "cache_dir"))


def _check_component_type(tree: Tree, path: Path) -> None:
    """Levanter's components have a type, of which "cached" is the one that reads token caches."""
    kind = (*path, "type")
    if tree.get(kind) == "cached":
        tree.drop(kind)
    elif tree.has(kind):
        raise ConfigError(
            Problem(
                found=f"{tree.place(kind)} = {shown(tree.get(kind))}",
                needed="a component whose rows come from a source, which is Levanter's type cached",
                remedy="remove the type, and give the files under source: {train_urls: […]}",
            )
        )


def _complete_source(tree: Tree, path: Path, warnings: list[str]) -> None:
    """Adds the `type` that a source's keys imply."""
    source = tree.get(path)
    if not isinstance(source, dict) or "type" in source:
        return
    kind = _kind(source)
    if kind is None:
        return
    for key in _URL_KEYS if kind == "hf" else _HF_KEYS:
        if key in source and source[key] in (None, []):
            tree.drop((*path, key))
    strangers = [key for key in _URL_KEYS if key in source] if kind == "hf" else []
    if strangers:
        raise ConfigError(
            Problem(
                found=f"{tree.place((*path, 'id'))} beside {tree.place((*path, strangers[0]))}",
                needed="a hub dataset or files, not both, in one dataset",
                remedy="make two components of them under data.components",
            )
        )
    for key in _IDLE_BESIDE_URLS if kind == "url" else ():
        if key in source:
            warnings.append(f"{tree.place((*path, key))} is left out: it means nothing beside URLs. Remove it.")
            tree.drop((*path, key))
    tree.put((*path, "type"), kind, like=path)


def _name_splits(tree: Tree, path: Path) -> None:
    """Levanter lists the splits of a hub dataset that are to be read; ours says how each is called there."""
    splits = tree.get((*path, "splits"))
    if isinstance(splits, list) and _kind(tree.get(path)) == "hf":
        names = {str(split): str(split) for split in splits}
        tree.put((*path, "split_names"), names, like=(*path, "splits"))
        tree.drop((*path, "splits"))


def _kind(source: Any) -> str | None:
    """Which of our own sources this is; None for others and where it cannot be told."""
    if not isinstance(source, dict):
        return None
    if source.get("type") is not None:
        return source["type"] if source["type"] in ("url", "hf") else None
    if source.get("id") is not None:
        return "hf"
    return "url" if any(source.get(key) for key in _URL_KEYS) else None
