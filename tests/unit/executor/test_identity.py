"""Identity: stable wherever it is computed, changed by what changes a result and by nothing else."""

import dataclasses
import datetime
import enum
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import zoo

from ponente.cluster import CpuOnly, GpuConfig
from ponente.config import Kind, UserError, execution
from ponente.executor import ExecutorStep, Retries, output_path_of, this_output_path, versioned
from ponente.executor.canonical import UnhashableError, canonical_text
from ponente.executor.graph import build_graph

if TYPE_CHECKING:
    from somewhere_else import Unknown

ROOT = Path(__file__).parents[3]
ZOO = Path(zoo.__file__)
DEPENDENCIES = Path.home() / ".cache" / "ponente-test-deps"

# A change here re-runs every step in the world that is like it: never change one without raising the payload's format.
GOLDEN = {
    "nothing": "e61eff8dfc490417cddfdbac55dd22137c20851feceef3c734541807746abec4",
    "text": "4feff97965e1158ba47f6cb71c93dc856d5ac7c5e665137e28c3f8e062a63752",
    "unicode": "f6c003a06c74b8e283e4495e5a2dedb9d44056b284786250fcce937c42715dbf",
    "numbers": "98aefdb49081c3c0ca16c42fccb1878a10c278484080975bb7a9f3dbf0a17cbd",
    "floats": "ee765dd43701abb90b7ac80ae3d44abb1a3c739d632e3c420fba1dd81bf19c97",
    "no numbers": "2639a73f500603b9af02e82e4b32de2fcf1ff311ec5d78cc393a45d1598c1d30",
    "list": "d8109152c517d7e08c23d6d0c1684a9f349890d7346680532ab0b644b50ea29a",
    "tuple": "d8109152c517d7e08c23d6d0c1684a9f349890d7346680532ab0b644b50ea29a",
    "set": "465fc1d58084667a7ee8b6820c4b1c67f8264d0a1c1989db39c95de6ed1d771f",
    "frozen set": "bd095134fa7ab956e327b1ce0d78287692ca3e9af9d0026375771cdf008161c6",
    "set of tuples": "c97462ae62a0210549db6d0fc47db5e8890ef9a12daf1b392c0e50131435a6db",
    "dict": "aaddc141019ed722fa678917df0568c7e0a10c5556c338f70c925a637ffa4820",
    "dict of other keys": "2ab00b612bc9f5b93ac3f33c9617928b4bf7f04a59d61e89ee88a3717717a667",
    "enums": "d257f9ef211dd4103c0f862e50ac879489a53fea402802c620ee538410bc23df",
    "flags": "ada83e0ba56a6910c8f60efb8319a02153e9ba6c2ce16ebbfba8e239f952dff0",
    "paths": "b0e2f8e29ba85fe4774269a1e28c174f258fb57e5af4f21d98067a79aab0e412",
    "times": "8edad454c33fcd5bf6a5d7fb2c43e8072b366b36e877e3fdc939311ee5129842",
    "named tuple": "de5c695ed47bf08cfbaacde09a7c20c6f6479f2bf28f669d00ec8f7a88854192",
    "dataclass": "47315c388a1d6620ccd874c82309495eea90de1970cae575ba15df948170742f",
    "dataclass at its defaults": "f37dcb043858d7653c070c7a1f6df19c7f569b8e953b9aa674a8356319d1a845",
    "renamed dataclass": "8a46724a2633fd92daf575a7aab039bb9f0b57e3ca64d25aa20cc3b181072bbe",
    "versioned": "cb13b4e8812677f54e6bcdc4f719d3b964a924a55a6c09cd21d8dc97d5bdfe97",
    "own places": "b2da4d0692c73cedc0e05326ad613ba14cf78e0022f6152bdc9195d19aafcdeb",
    "resources inside": "cb13b4e8812677f54e6bcdc4f719d3b964a924a55a6c09cd21d8dc97d5bdfe97",
    "secret": "8c37f686cfc9f1eadc7802fea14d071705c4077940793870e916f159ecdfc3eb",
    "dependency": "0c71852c3a79df61fc4708658ed7cfa01210c598248a949bd38d1204706bedca",
    "dependencies": "8aa371436967d8a8cc651715faf1d0e8b3c67889cd5bc65d9852bac0751ede5f",
}


def identity(config: Any = None, **options: Any) -> str:
    step = zoo.step(config, **options)
    return build_graph([step]).node_of(step).identity


def payload(config: Any) -> Any:
    step = zoo.step(config)
    return build_graph([step]).node_of(step).payload.get("config")


# -- the same everywhere


def identities_of(python: str | Path, **environment: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ended = subprocess.run(
        [python, str(ZOO)], capture_output=True, text=True, check=True, env={**clean, **environment}, timeout=120
    )
    found: dict[str, str] = json.loads(ended.stdout)
    return found


def test_identities_are_those_that_are_written_here() -> None:
    assert zoo.identities() == GOLDEN


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_identities_do_not_depend_on_the_process_or_its_hash_seed(seed: str) -> None:
    assert identities_of(sys.executable, PYTHONHASHSEED=seed) == GOLDEN


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_identities_do_not_depend_on_the_version_of_python(version: str) -> None:
    python = interpreter(version)
    path = os.pathsep.join([str(ROOT / "src"), str(dependencies(python, version))])
    assert identities_of(python, PYTHONPATH=path) == GOLDEN


def interpreter(version: str) -> Path:
    """A Python of this version: of pyenv, or on the PATH."""
    candidates = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    on_path = shutil.which(f"python{version}")
    found = candidates[-1:] or ([Path(on_path)] if on_path else [])
    if not found or subprocess.run([found[0], "-c", ""], capture_output=True).returncode:
        pytest.skip(f"there is no Python {version} on this machine")
    return found[0]


def dependencies(python: Path, version: str) -> Path:
    """A folder with the two packages that identities need, in their locked versions, fetched once a machine."""
    lock = (ROOT / "requirements.lock").read_text().splitlines()
    wanted = [line.split()[0] for line in lock if line.startswith(("msgspec==", "packaging=="))]
    target = DEPENDENCIES / f"{version}-{'-'.join(wanted)}"
    if not target.is_dir():
        DEPENDENCIES.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=DEPENDENCIES) as private:
            install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", f"{private}/it", *wanted]
            ended = subprocess.run(install, capture_output=True, text=True, timeout=200)
            if ended.returncode:
                pytest.skip(f"{wanted} cannot be had for Python {version}: {ended.stderr.strip()[-200:]}")
            if not target.is_dir():
                os.rename(f"{private}/it", target)
    return target


def test_a_payload_is_plain_json_with_sorted_keys_and_ascii_only() -> None:
    text = canonical_text(payload(zoo.ANIMALS["unicode"]))
    assert text.isascii() and json.loads(text) == zoo.ANIMALS["unicode"]
    assert canonical_text({"b": 1, "a": [1.0, True, None]}) == '{"a":[1.0,true,null],"b":1}'


# -- values


def test_lists_and_tuples_of_equal_items_are_equal() -> None:
    assert identity([1, (2, 3)]) == identity((1, [2, 3]))


def test_the_order_of_keys_and_of_set_members_says_nothing() -> None:
    assert identity({"a": 1, "b": 2}) == identity({"b": 2, "a": 1})
    assert identity({3, 1, 2}) == identity({2, 3, 1}) == identity(frozenset({1, 2, 3}))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0, False),
        (0, None),
        ("", None),
        ("1", 1),
        (1, 1.0),
        (0.0, -0.0),
        (math.inf, -math.inf),
        (math.nan, None),
        ([1, 2], [2, 1]),
        ([1, 2], {1, 2}),
        ([], {}),
        ([[1], 2], [[1, 2]]),
        ({"1": "a"}, {1: "a"}),
        ({"a": None}, {}),
        (zoo.Wind.PONENTE, "west"),
        (zoo.Level.HIGH, 3),
        (zoo.Sail.MAIN, zoo.Sail.JIB),
        (datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1)),
        (datetime.date(2026, 1, 1), "2026-01-01"),
        (datetime.timedelta(seconds=1), 1.0),
        (zoo.Optimizer(), zoo.Renamed()),
        (zoo.Optimizer(rate=0.5), {"rate": 0.5}),
        ({"$set": [1]}, {1}),
        ({"$type": "Optimizer"}, zoo.Optimizer()),
        (zoo.parent, zoo.parent / "a"),
        (zoo.parent, zoo.parent.nonblocking()),
        (zoo.parent, "zoo/parent"),
        (this_output_path("a"), "a"),
    ],
    ids=repr,
)
def test_values_that_differ_have_identities_that_differ(one: Any, other: Any) -> None:
    assert identity({"x": one}) != identity({"x": other})


def test_nan_equals_nan_and_a_path_equals_its_text() -> None:
    assert identity([float("nan")]) == identity([math.nan])
    assert identity(Path("data") / "x") == identity("data/x")


def test_versioned_means_the_value_itself() -> None:
    assert versioned(3) == 3
    assert identity({"x": versioned(1)}) == identity({"x": 1})
    assert identity(zoo.Train(steps=versioned(100))) == identity(zoo.Train())


def test_numbers_of_other_libraries_hash_as_the_numbers_they_are() -> None:
    class Half(float):
        pass

    assert identity({"x": Half(0.5)}) == identity({"x": 0.5})


class Opaque:
    pass


@dataclass(frozen=True, kw_only=True)
class Layered:
    inner: Any = None
    workers: int = execution(1)


@pytest.mark.parametrize(
    ("config", "place"),
    [
        (Layered(inner=[{"a": (1, Opaque())}]), "config.inner[0]['a'][1]"),
        (Layered(inner=Layered(inner=threading.Lock())), "config.inner.inner"),
        ({"f": lambda: 1}, "config['f']"),
        ({"n": Decimal(1)}, "config['n']"),
        ({"b": b"bytes"}, "config['b']"),
        ({"o": OrderedDict(a=1)}, "config['o']"),
        ({"t": int}, "config['t']"),
        (Layered(workers=Opaque()), "config.workers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_hashed_is_named_with_its_exact_field(config: Any, place: str) -> None:
    with pytest.raises(UnhashableError) as caught:
        identity(config)
    assert str(caught.value).startswith(f"step 'zoo/animal', {place}: found a ")
    assert "needed plain values" in str(caught.value)


def test_a_config_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UserError, match=r"'zoo/animal'.*contains itself"):
        identity(endless)


def test_local_classes_are_refused_wherever_they_stand() -> None:
    @dataclass(frozen=True)
    class Local:
        x: int = 1

    class LocalEnum(enum.Enum):
        A = 1

    local_tuple = namedtuple("local_tuple", ["x"])
    local_tuple.__qualname__ = "test.<locals>.local_tuple"
    for value in (Local(), LocalEnum.A, local_tuple(1)):
        with pytest.raises(UnhashableError, match=r"config\['x'\].*top of a module"):
            identity({"x": value})


# -- fields and kinds


def test_execution_and_observation_fields_change_nothing() -> None:
    assert identity(zoo.Train(workers=64, tags=("new", "tags"))) == identity(zoo.Train())


def test_execution_and_observation_fields_change_nothing_in_a_nested_config_at_its_defaults() -> None:
    assert identity(zoo.Train(optimizer=zoo.Optimizer(log_every=1))) == identity(zoo.Train())
    assert identity(zoo.Train(optimizer=zoo.Optimizer(rate=1e-3))) == identity(zoo.Train())
    assert identity(zoo.Train(optimizer=zoo.Optimizer(rate=2e-3))) != identity(zoo.Train())


def test_a_config_class_that_is_execution_as_a_whole_changes_nothing_wherever_it_stands() -> None:
    assert identity({"a": 1, "ask": CpuOnly(num_cpus=8)}) == identity({"a": 1})
    assert identity([1, GpuConfig(gpu_count=2)]) == identity([1])
    assert identity(CpuOnly(num_cpus=8)) == identity(None)


@pytest.mark.parametrize(
    "options",
    [
        {"resources": GpuConfig(gpu_count=8, gpu_type="H200")},
        {"env": {"TAGS": "a,b"}},
        {"description": "for people"},
        {"override_output_path": "somewhere/else"},
        {"retries": Retries(errors=9)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_how_a_step_runs_is_no_part_of_it_nor_of_its_descendants(options: dict[str, Any]) -> None:
    def child_of(parent: ExecutorStep) -> str:
        return identity(zoo.Train(data=zoo.step(zoo.Train(data=parent / "x"), name="zoo/middle")))

    assert identity({"x": 1}, **options) == identity({"x": 1})
    assert child_of(zoo.step({"x": 1}, **options)) == child_of(zoo.step({"x": 1}))


def test_name_kind_and_config_are_each_part_of_identity() -> None:
    assert len({identity(1), identity(2), identity(1, name="zoo/other"), identity(1, kind="other")}) == 4


@dataclass(frozen=True, kw_only=True)
class Before:
    identity_name: ClassVar[str] = "Config"

    width: int
    depth: int = 2


@dataclass(frozen=True, kw_only=True)
class After:
    identity_name: ClassVar[str] = "Config"

    new: float = 0.1
    width: int
    deeper: zoo.Optimizer = field(default_factory=zoo.Optimizer)
    depth: int = 2
    listed: list[int] = field(default_factory=lambda: [1, 2])


def test_adding_fields_with_defaults_changes_nothing() -> None:
    assert identity(After(width=1)) == identity(Before(width=1))
    assert identity(After(width=1, listed=[1, 2], deeper=zoo.Optimizer())) == identity(Before(width=1))
    assert identity(After(width=1, listed=[2, 1])) != identity(Before(width=1))


def test_renaming_a_class_changes_identity_unless_it_keeps_its_identity_name() -> None:
    one = dataclasses.make_dataclass("One", [("x", int)], frozen=True)
    two = dataclasses.make_dataclass("Two", [("x", int)], frozen=True)
    assert identity(one(1)) != identity(two(1))
    for cls in (one, two):
        cls.identity_name = "Kept"  # type: ignore[attr-defined]
    kept = [
        dataclasses.make_dataclass(name, [("x", int)], bases=(base,), frozen=True)
        for name, base in (("Three", one), ("Four", two))
    ]
    assert identity(kept[0](1)) == identity(kept[1](1))


@dataclass(frozen=True, kw_only=True)
class Inner:
    identity_version: ClassVar[int] = 1

    x: int = 1


@dataclass(frozen=True, kw_only=True)
class InnerRaised(Inner):
    identity_name: ClassVar[str] = "Inner"
    identity_version: ClassVar[int] = 2


def outer_with(inner: type) -> Any:
    """A config class whose field is, by default, an `inner` at its defaults."""
    cls = dataclasses.make_dataclass("Outer", [("inner", Any, inner())], frozen=True)
    return dataclasses.make_dataclass("Outermost", [("outer", Any, cls())], frozen=True)()


def test_raising_identity_version_changes_identity() -> None:
    assert identity(Inner(x=2)) != identity(InnerRaised(x=2))


def test_raising_identity_version_changes_those_who_hold_the_class_only_by_default() -> None:
    assert payload(outer_with(Inner)) == {"$type": "Outermost"}
    assert identity(outer_with(Inner)) != identity(outer_with(InnerRaised))


@dataclass(frozen=True, kw_only=True)
class Rates:
    rate: float = 1.0
    maybe: float | None = None
    either: int | float = 1


def test_an_integer_in_a_float_field_is_that_float() -> None:
    assert identity(Rates(rate=2)) == identity(Rates(rate=2.0))
    assert identity(Rates(rate=1)) == identity(Rates())
    assert identity(Rates(maybe=3)) == identity(Rates(maybe=3.0))
    assert identity(Rates(either=3)) != identity(Rates(either=3.0))
    assert identity(Rates(rate=True)) != identity(Rates())


@dataclass(frozen=True, kw_only=True)
class Tricky:
    pair: tuple[Any, ...] = (1, 0.0)
    zero: float = 0.0
    missing: float = math.nan


def test_only_the_same_value_counts_as_the_default_not_an_equal_one() -> None:
    assert identity(Tricky(pair=(1, 0.0), zero=0.0, missing=float("nan"))) == identity(Tricky())
    different = [Tricky(pair=(True, 0.0)), Tricky(pair=(1, -0.0)), Tricky(zero=-0.0), Tricky(missing=0.0)]
    assert len({identity(config) for config in [*different, Tricky()]}) == 5


@dataclass(frozen=True, kw_only=True)
class Sealed:
    source: "Unknown"
    rate: "float | None" = None


def test_types_that_are_imported_for_type_checkers_only_do_no_harm() -> None:
    assert identity(Sealed(source="x", rate=2)) == identity(Sealed(source="x", rate=2.0))


def test_class_kind_may_be_observation() -> None:
    cls = dataclasses.make_dataclass("Tracker", [("tags", tuple)], frozen=True)
    cls.config_kind = Kind.OBSERVATION  # type: ignore[attr-defined]
    assert identity({"x": 1, "tracker": cls(("a",))}) == identity({"x": 1})


# -- dependencies


@dataclass(frozen=True, kw_only=True)
class ByDefault:
    data: Any = zoo.parent / "text"
    where: str = execution("")


@pytest.mark.parametrize(
    "config",
    [
        zoo.parent,
        [1, (2, zoo.parent)],
        {"a": {"b": zoo.parent / "x"}},
        {zoo.Wind.PONENTE: zoo.parent},
        zoo.Train(data=[zoo.Train(data=(zoo.parent / "x",))]),
        zoo.Point(1, zoo.parent),
        output_path_of(zoo.parent, "x"),
        ByDefault(),
        versioned(zoo.parent),
    ],
    ids=lambda config: type(config).__name__,
)
def test_a_step_is_found_as_a_dependency_wherever_it_stands(config: Any) -> None:
    graph = build_graph([zoo.step(config)])
    assert [node.name for node in graph.nodes] == ["zoo/parent", "zoo/animal"]
    assert graph.nodes[1].parents == [graph.nodes[0]]


def test_a_changed_dependency_changes_its_descendants() -> None:
    ancestors = [zoo.step({"depth": depth}, name="zoo/parent") for depth in (0, 1)]
    middles = [zoo.step([ancestor], name="zoo/middle") for ancestor in ancestors]
    assert identity(middles[0]) != identity(middles[1])


def test_a_step_in_a_field_that_is_no_part_of_identity_is_refused_by_name() -> None:
    with pytest.raises(UnhashableError, match=r"config\.where: found step 'zoo/parent' in a field that is no part"):
        identity(ByDefault(where=zoo.parent))  # type: ignore[arg-type]


def test_the_payload_holds_identities_and_never_paths() -> None:
    config = payload({"data": zoo.parent / "a/b", "own": this_output_path("c")})
    assert config == {
        "data": {"$step": build_graph([zoo.parent]).nodes[0].identity, "name": "zoo/parent", "path": "a/b"},
        "own": {"$this": "output", "path": "c"},
    }


def test_no_prefix_and_no_folder_of_the_script_enters_identity(tmp_path: Path) -> None:
    found = []
    for folder in ("one", "two/deeper"):
        (tmp_path / folder).mkdir(parents=True)
        copy = shutil.copy(ZOO, tmp_path / folder / "zoo.py")
        found.append(identities_of_file(copy, prefix=str(tmp_path / folder)))
    assert found == [GOLDEN, GOLDEN]


def identities_of_file(script: str | Path, prefix: str) -> dict[str, str]:
    environment = {**os.environ, "PONENTE_PREFIX": prefix}
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, env=environment, cwd=prefix
    )
    found: dict[str, str] = json.loads(ended.stdout)
    return found


# -- secrets


@dataclass(frozen=True, kw_only=True)
class Remote:
    url: str = ""
    api_key: Any = None
    token: str = ""
    hf_token: str = execution("")
    eos_token: str = "</s>"
    tokenizer: str = "gpt2"
    max_tokens: int = 1
    text_key: str = "text"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Remote(api_key="first-key"), Remote(api_key="second-key")),
        (Remote(api_key=["first-key"]), Remote(api_key=["second-key"])),
        (Remote(api_key={"a": ("first-key",)}), Remote(api_key={"a": ("second-key",)})),
        ({"password": "first"}, {"password": "second"}),
        (Remote(token="0123456789abcdefg"), Remote(token="gfedcba9876543210")),
        (Remote(url="https://ann:first@host/x"), Remote(url="https://bob:second@host/x")),
        (Remote(url="https://host/x?sig=first"), Remote(url="https://host/x?sig=second")),
        (["hf_" + "a" * 20], ["hf_" + "b" * 20]),
    ],
    ids=str,
)
def test_a_new_key_re_runs_nothing(one: Any, other: Any) -> None:
    assert identity(one) == identity(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Remote(eos_token="<|endoftext|>"), Remote(eos_token="<|im_end|>")),
        (Remote(token="<|endoftext|>"), Remote(token="<|im_end|>")),
        (Remote(tokenizer="meta-llama/Llama-3.1-8B"), Remote(tokenizer="meta-llama/Llama-3.2-1B")),
        (Remote(text_key="content"), Remote(text_key="body")),
        (Remote(max_tokens=2), Remote(max_tokens=3)),
        (Remote(url="https://host/x?tokenizer=gpt2"), Remote(url="https://host/x?tokenizer=llama")),
        (Remote(url="https://host/x?max_tokens=1"), Remote(url="https://host/x?max_tokens=2")),
        (Remote(url="https://host/get?key=wiki/a.txt"), Remote(url="https://host/get?key=wiki/b.txt")),
        (Remote(url="https://one.org?mail=a@b.c"), Remote(url="https://two.org?mail=a@b.c")),
    ],
    ids=str,
)
def test_what_only_looks_like_a_secret_stays_part_of_identity(one: Any, other: Any) -> None:
    assert identity(one) != identity(other)


def test_secrets_are_collected_for_the_redactor_also_from_fields_that_are_no_part_of_identity() -> None:
    config = Remote(api_key=["first-key"], hf_token="an execution secret", url="https://ann:pass-word@host/x")
    node = build_graph([zoo.step({"nested": config})]).nodes[0]
    assert {"first-key", "an execution secret", "pass-word"} <= set(node.secrets)
    assert not any(secret in canonical_text(node.payload) for secret in node.secrets)
