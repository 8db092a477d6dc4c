"""The graph: every step that the targets need, each once, parents first.

In: target steps. Out: nodes with identities, joined by identity: two steps of equal identity are one node. Each config
is walked once, however many paths lead to it, and without recursion, so diamonds and long chains are cheap.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ponente.config.errors import RefusedError
from ponente.executor.identity import Payload, identity_of, payload_of
from ponente.executor.step import ExecutorStep


@dataclass(eq=False)
class Node:
    """A step in the graph.

    `parents` are waited for; `watched` are nonblocking parents, neither run nor waited for.
    """

    step: ExecutorStep
    identity: str
    payload: dict[str, Any]
    parents: list["Node"] = field(default_factory=list)
    watched: list["Node"] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    defaults: str = "{}"

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def folder_name(self) -> str:
        """`{name}-{first 8 of identity}`, below the prefix."""
        return f"{self.step.name}-{self.identity[:8]}"


@dataclass(frozen=True)
class Graph:
    """All nodes, parents before children, and which node each step object became."""

    targets: list[Node]
    nodes: list[Node]
    watched: list[Node]  # nonblocking parents that are not themselves to be run
    by_identity: dict[str, Node]
    by_step: dict[ExecutorStep, Node]

    def node_of(self, step: ExecutorStep) -> Node:
        """The node that `step` became."""
        return self.by_step[step]

    def restricted_to(self, patterns: Sequence[str]) -> "Graph":
        """The part that steps whose name matches any pattern need, themselves included."""
        chosen = matching(self.nodes, patterns, "--run_only")
        needed: dict[str, Node] = {}
        stack = list(chosen)
        while stack:
            node = stack.pop()
            if node.identity not in needed:
                needed[node.identity] = node
                stack += node.parents
        kept = [node for node in self.nodes if node.identity in needed]
        watched = {parent.identity: parent for node in kept for parent in node.watched if parent.identity not in needed}
        return replace(self, targets=chosen, nodes=kept, watched=list(watched.values()))


def matching(nodes: Iterable[Node], patterns: Sequence[str], flag: str) -> list[Node]:
    """The nodes whose name (or name-hash) any pattern finds; each pattern must find one."""
    listed = list(nodes)
    chosen: dict[str, Node] = {}
    for pattern in patterns:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise RefusedError(
                f"found {flag} {pattern!r}, which is no regular expression ({error}); correct it"
            ) from error
        hits = [node for node in listed if compiled.search(node.name) or compiled.search(node.folder_name)]
        if not hits:
            names = ", ".join(node.name for node in listed[:12])
            raise RefusedError(f"found {flag} {pattern!r}, which matches no step; the steps are {names}")
        chosen |= {node.identity: node for node in hits}
    return list(chosen.values())


def build_graph(targets: Iterable[ExecutorStep]) -> Graph:
    """The graph of everything that `targets` need."""
    roots = _flatten(targets)
    if not roots:
        raise RefusedError("found no steps; needed at least one: executor_main(steps=[…])")
    payloads = _walk_configs(roots)
    order = _parents_first(payloads)
    by_identity: dict[str, Node] = {}
    by_step: dict[ExecutorStep, Node] = {}
    for step in order:
        node = _join(step, payloads[step], by_identity, by_step)
        by_step[step] = node
    wanted = [by_step[root] for root in roots]
    run = _reachable(wanted)
    nodes = [node for node in by_identity.values() if node.identity in run]
    watched = [node for node in by_identity.values() if node.identity not in run]
    return Graph(targets=wanted, nodes=nodes, watched=watched, by_identity=by_identity, by_step=by_step)


def _flatten(targets: Iterable[Any]) -> list[ExecutorStep]:
    flat: list[ExecutorStep] = []
    for target in targets:
        if isinstance(target, ExecutorStep):
            flat.append(target)
        elif isinstance(target, list | tuple):
            flat += _flatten(target)
        else:
            raise RefusedError(f"found {target!r} among the steps; needed ExecutorStep values")
    return flat


def _walk_configs(roots: list[ExecutorStep]) -> dict[ExecutorStep, Payload]:
    payloads: dict[ExecutorStep, Payload] = {}
    stack = list(reversed(roots))
    while stack:
        step = stack.pop()
        if step in payloads:
            continue
        payloads[step] = payload = payload_of(step)
        stack += [reference.step for reference in payload.references]
    return payloads


def _parents_first(payloads: dict[ExecutorStep, Payload]) -> list[ExecutorStep]:
    order: list[ExecutorStep] = []
    finished: set[ExecutorStep] = set()
    open_steps: dict[ExecutorStep, None] = {}  # in the order in which they were opened, to name a cycle
    for root in payloads:
        stack: list[tuple[ExecutorStep, Iterator[ExecutorStep]]] = []
        if root not in finished:
            stack.append((root, iter([reference.step for reference in payloads[root].references])))
            open_steps[root] = None
        while stack:
            step, parents = stack[-1]
            parent = next((parent for parent in parents if parent not in finished), None)
            if parent is None:
                stack.pop()
                finished.add(step)
                del open_steps[step]
                order.append(step)
            elif parent in open_steps:
                names = [step.name for step in open_steps]
                raise RefusedError(
                    f"found a cycle of steps: {' -> '.join([*names, parent.name])}; a step cannot need itself"
                )
            else:
                open_steps[parent] = None
                stack.append((parent, iter([reference.step for reference in payloads[parent].references])))
    return order


def _join(
    step: ExecutorStep, payload: Payload, by_identity: dict[str, Node], by_step: dict[ExecutorStep, Node]
) -> Node:
    parents: dict[str, Node] = {}
    watched: dict[str, Node] = {}
    for reference in payload.references:
        parent = by_step[reference.step]
        reference.entry["$step"] = parent.identity
        (parents if reference.blocking else watched)[parent.identity] = parent
    identity = identity_of(payload.content)
    known = by_identity.get(identity)
    if known is None:
        node = Node(
            step=step,
            identity=identity,
            payload=payload.content,
            parents=list(parents.values()),
            watched=list(watched.values()),
            secrets=payload.secrets,
            defaults=payload.defaults,
        )
        by_identity[identity] = node
        return node
    if step.override_output_path and not known.step.override_output_path:
        known.step = step
    elif step.override_output_path and step.override_output_path != known.step.override_output_path:
        raise RefusedError(
            f"step {step.name!r} is pinned to both {known.step.override_output_path!r} and "
            f"{step.override_output_path!r}; keep one override_output_path"
        )
    return known


def _reachable(roots: Iterable[Node]) -> set[str]:
    seen: set[str] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node.identity not in seen:
            seen.add(node.identity)
            stack += node.parents
    return seen
