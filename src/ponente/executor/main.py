"""executor_main: turns a script of steps into a program, and a graph into results.

In: target steps and command-line flags. Out: a plan on paper, or a run with its manifest and records. The prefix is
resolved here, when the program runs, never when a module is imported.
"""

import contextlib
import errno
import gc
import logging
import multiprocessing
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from ponente.cluster.context import current_step
from ponente.cluster.launch import DriverLauncher, Launcher, SubprocessLauncher
from ponente.cluster.process import StoppedError
from ponente.cluster.resources import CpuOnly
from ponente.config.errors import RefusedError, UserError
from ponente.executor.estimate import RateCard
from ponente.executor.graph import build_graph
from ponente.executor.manifest import GitLookup, RunResult, Runs, new_run_name
from ponente.executor.options import ExecutorOptions, parse_options
from ponente.executor.outcome import Fate, RunOutcome, interruption_code
from ponente.executor.plan import Plan, PlanRequest, State, make_plan
from ponente.executor.recording import record_run
from ponente.executor.report import outcome_text, plan_text, plan_totals
from ponente.executor.run import Driver
from ponente.executor.script import current_script
from ponente.executor.step import ExecutorStep
from ponente.store.paths import PRIVATE_MARK, below, resolve_prefix
from ponente.store.redaction import Redactor
from ponente.store.trouble import sentence_of
from ponente.store.volume import is_no_space, volume_of

logger = logging.getLogger(__name__)

_MOST_ON_A_CLUSTER = 500  # steps at the same time: each is a thread here


def executor_main(
    steps: Sequence[ExecutorStep] | ExecutorStep, description: str | None = None, *, argv: Sequence[str] | None = None
) -> RunOutcome | None:
    """Plans and runs `steps` with the flags of the command line; exits with a code other than 0 if any failed.

    Args:
        steps: the targets; what they depend on is found in their configs.
        description: of the experiment, for its manifest.
        argv: flags in place of those of the process.

    Returns:
        What became of the steps, with their places; None after --dry_run.
    """
    if current_step() is not None or multiprocessing.parent_process() is not None:
        raise RuntimeError(
            "executor_main was called while a step's process imported this script; put the call under "
            "`if __name__ == '__main__':`"
        )
    targets = [steps] if isinstance(steps, ExecutorStep) else list(steps)
    script = current_script()
    if script is not None:
        script.reached(targets)
    options = parse_options(argv, description)
    show_logs()
    try:
        with _stopping_on_sigterm():
            outcome = _plan_or_run(targets, description, options)
    except UserError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(2)
    except OSError as error:
        prefix = resolve_prefix(options.prefix)
        if is_no_space(error):
            sys.stderr.write(
                f"no space left on the disk that holds {prefix} for the records of this run ({error}); "
                "free some space and run the same command again: it goes on from here\n"
            )
            sys.exit(1)
        sentence = sentence_of(error) if "://" in prefix else None
        if sentence is None:
            raise
        sys.stderr.write(f"{sentence}\n")
        sys.exit(2 if error.errno == errno.EACCES else 1)
    except (KeyboardInterrupt, StoppedError) as error:  # before the first step, or once more while steps were stopped
        sys.stderr.write("stopped; nothing that was finished is lost, the same command goes on\n")
        sys.exit(interruption_code(error))
    if outcome is not None and outcome.exit_code:
        sys.exit(outcome.exit_code)
    return outcome


def _plan_or_run(steps: list[ExecutorStep], description: str | None, options: ExecutorOptions) -> RunOutcome | None:
    if options.dry_run:
        plan = plan_steps(steps, options)
        sys.stdout.write(plan_text(plan))
        sys.stdout.flush()
        _check_cost(plan, options)
        return None
    outcome = run_steps(steps, options, description=description)
    sys.stdout.write(outcome_text(outcome, shlex.join([os.path.basename(sys.executable), *sys.argv])))
    return outcome


def plan_steps(steps: Sequence[ExecutorStep], options: ExecutorOptions) -> Plan:
    """The plan of `steps`; writes nothing."""
    with _collection_paused():
        graph = build_graph(steps)
        request = PlanRequest(
            run_only=options.run_only,
            force=options.force,
            force_run_failed=options.force_run_failed,
            rates=_rates(options),
        )
        return make_plan(graph, resolve_prefix(options.prefix), request)


@contextlib.contextmanager
def _collection_paused() -> Iterator[None]:
    """A large plan is millions of small objects and no garbage; looking for some costs an eighth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _rates(options: ExecutorOptions) -> RateCard | None:
    path = options.rates or os.environ.get("PONENTE_RATES")
    if path is None:
        return None
    from ponente.executor.rates import load_rate_card

    return load_rate_card(path)


def run_steps(steps: Sequence[ExecutorStep], options: ExecutorOptions, *, description: str | None = None) -> RunOutcome:
    """Runs `steps` and what they need; the library call behind `executor_main`."""
    prefix = resolve_prefix(options.prefix)
    launcher_name = options.launcher
    if not volume_of(prefix).is_shared() and launcher_name != "driver":
        raise RefusedError(
            f"found prefix {prefix}, which only this process sees, with launcher {launcher_name!r}; "
            "use --launcher driver, or a prefix on disk"
        )
    with GitLookup(os.path.dirname(os.path.abspath(sys.argv[0])) if sys.argv and sys.argv[0] else ".") as git:
        plan = plan_steps(steps, options)
        _check_cost(plan, options)
        concurrent = _concurrency(plan, options)
        _check_environments(plan, options)
        redactor = Redactor.of_process(os.environ, sys.argv)
        for planned in plan.by_identity.values():
            redactor.learn_mapping(planned.node.step.environment.variables)
            redactor.learn(planned.node.secrets)
        _check_writable(prefix)
        run = new_run_name()
        if plan.of(State.RUN):
            logger.info("run %s: %s", run, plan_totals(plan))
        record_run(plan, run, redactor, git, description)
    with _launcher(options, redactor, concurrent) as launcher:
        outcome = Driver(plan, launcher, redactor, run=run, max_concurrent=concurrent).run()
    states = {fate.value: [step.name for step in outcome.of(fate)] for fate in Fate}
    try:
        Runs(prefix).write_result(run, RunResult(time=time.time(), exit_code=outcome.exit_code, states=states))
    except OSError as error:  # the logs of the steps say all that counts
        logger.warning("how run %s ended could not be recorded: %s", run, error)
    return outcome


def _check_writable(prefix: str) -> None:
    probe = below(prefix, f"{PRIVATE_MARK}{new_run_name()}")
    try:
        volume_of(prefix).replace(probe, b"")
        volume_of(prefix).remove(probe)
    except OSError as error:
        if is_no_space(error):
            raise
        if "://" in prefix and sentence_of(error) is not None:
            raise
        needed = "a bucket that is there" if "://" in prefix else "a folder of yours"
        raise RefusedError(
            f"found prefix {prefix}, where nothing can be written ({error}); needed {needed}. Give another --prefix"
        ) from error


def _check_cost(plan: Plan, options: ExecutorOptions) -> None:
    if options.max_cost is None:
        return
    unknown = [step.name for step in plan.unpriced if not isinstance(step.node.step.resources, CpuOnly | None)]
    if unknown:
        raise RefusedError(
            f"found no price for {', '.join(unknown[:5])}, which ask for accelerators, so --max_cost "
            f"{options.max_cost:g} cannot be kept; give their step type an estimate and name their device in --rates"
        )
    if plan.total_cost > options.max_cost:
        raise RefusedError(
            f"found an estimated cost of {plan.total_cost:.2f} {plan.currency or 'USD'}, above --max_cost "
            f"{options.max_cost:g}; nothing was run. See --dry_run for what each step costs"
        )


def _check_environments(plan: Plan, options: ExecutorOptions) -> None:
    """Refuses steps whose packages are not here, where no cluster makes them ready, and hosts that are not there."""
    for step in plan.of(State.RUN) if options.cluster is None else []:
        resources = step.node.step.resources
        if resources is not None and resources.host_count > 1:
            raise RefusedError(
                f"found {resources.host_count} hosts in the resources of {step.name}, and no cluster; needed one. "
                "Give --cluster ADDRESS, or ask for one host"
            )
        missing = step.node.step.environment.missing()
        if missing:
            raise RefusedError(
                f"found {step.name}, which needs {', '.join(missing)}, and not so installed here; needed it. Run: pip "
                f"install {' '.join(map(shlex.quote, missing))}, or give --cluster ADDRESS, where it is made ready"
            )


def _concurrency(plan: Plan, options: ExecutorOptions) -> int:
    several = _MOST_ON_A_CLUSTER if options.cluster else os.cpu_count() or 1
    concurrent = options.max_concurrent or (1 if options.launcher == "driver" else several)
    with_env = [step.name for step in plan.of(State.RUN) if step.node.step.environment.variables]
    if options.launcher == "driver" and concurrent > 1 and with_env:
        raise RefusedError(
            f"found env on {', '.join(with_env[:5])}, which steps in threads of one process would share; "
            "use --max_concurrent 1 or --launcher subprocess"
        )
    return concurrent


@contextlib.contextmanager
def _launcher(options: ExecutorOptions, redactor: Redactor, concurrent: int) -> Iterator[Launcher]:
    if options.launcher == "driver":
        yield DriverLauncher(redactor, concurrency=concurrent)
    elif options.cluster is None:
        yield SubprocessLauncher(redactor)
    else:
        from ponente.cluster.ray.connection import connected
        from ponente.cluster.ray.launcher import RayLauncher

        with connected(options.cluster):
            yield RayLauncher(redactor)


def show_logs() -> None:
    """Shows what ponente logs on standard error, unless the program has set up logging itself."""
    if logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    package = logging.getLogger("ponente")
    if not package.handlers:
        package.addHandler(handler)
        package.setLevel(logging.INFO)
        package.propagate = False
        logging.getLogger("ponente.executor.attempt").setLevel(logging.WARNING)  # the driver tells what came of it


@contextlib.contextmanager
def _stopping_on_sigterm() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signal_number: int, frame: FrameType | None) -> None:
        raise StoppedError(f"asked to end by {signal.Signals(signal_number).name}")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
