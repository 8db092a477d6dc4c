"""A run, drawn live in the terminal until it ends."""

import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ponente.executor.status import Phase, RunStatus, StepStatus

_COLOURS = {
    Phase.HIT: "dim",
    Phase.UNNEEDED: "dim",
    Phase.DONE: "green",
    Phase.RUNNING: "cyan",
    Phase.RETRYING: "yellow",
    Phase.STOPPED: "yellow",
    Phase.FAILED: "red",
    Phase.HELD: "magenta",
    Phase.WAITING: "",
}
_INTERESTING = [Phase.FAILED, Phase.RUNNING, Phase.RETRYING, Phase.STOPPED, Phase.HELD, Phase.WAITING, Phase.DONE]


def follow(look: Callable[[], RunStatus], refresh_seconds: float = 0.5) -> RunStatus:
    """Draws what `look` sees until the run has ended; Ctrl-C leaves the run alone."""
    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            status = look()
            live.update(_drawing(status, console.size.height - 3), refresh=True)
            if not status.is_running:
                return status
            time.sleep(refresh_seconds)


def _drawing(status: RunStatus, height: int) -> Group:
    shown = status.steps
    hidden = 0
    if len(shown) > height:
        order = {phase: position for position, phase in enumerate([*_INTERESTING, Phase.HIT, Phase.UNNEEDED])}
        shown = sorted(shown, key=lambda step: order[step.phase])[: max(1, height - 1)]
        hidden = len(status.steps) - len(shown)
    table = Table.grid(padding=(0, 2))
    for step in shown:
        table.add_row(*_row(step))
    more = Text(f"… and {hidden} more" if hidden else "", style="dim")
    return Group(Text(status.headline, style="bold"), table, more)


def _row(step: StepStatus) -> list[Text]:
    return [Text(step.phase.value, style=_COLOURS[step.phase]), Text(step.name), Text(step.detail, style="dim")]
