"""One attempt at a step, in the process that does the work: claim, run, commit or release.

In: a job from the driver. Out: an exit code, and in the step's log a commit or a release. The process that runs the
step's function also heartbeats and commits, so what the driver believes never matters.
"""

import hashlib
import itertools
import json
import logging
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ponente.cluster.address import cluster_address
from ponente.cluster.context import Progress, StepContext, running_step
from ponente.cluster.launch import RESUME_EXIT
from ponente.cluster.process import StoppedError
from ponente.config.errors import UserError
from ponente.executor.claim import HEART, LostClaimError, Tenure, take_claim
from ponente.executor.records import Claim, Commit, ErrorNote, Outcome, Release, StepFolder, count_names
from ponente.executor.reference import Function, Reference, load, source_file
from ponente.executor.step import Own
from ponente.executor.summary import Summary
from ponente.executor.transit import unpack
from ponente.store.paths import join, parent, private_path
from ponente.store.redaction import Redactor
from ponente.store.volume import is_no_space, volume_of

logger = logging.getLogger(__name__)

DONE_EXIT = 0
FAILED_EXIT = 1
CLAIMED_EXIT = 3  # somebody else holds the step, or took it over
NO_SPACE_EXIT = 74  # EX_IOERR
_PROGRESS_SECONDS = 0.3
ENTRY = "ponente.executor.attempt:run_job"


class Job(msgspec.Struct, frozen=True):
    """All that an attempt needs; travels as JSON over a pipe. `secrets` are to be kept out of records."""

    prefix: str
    folder: str
    identity: str
    name: str
    fn: Reference
    config: Any
    run: str
    after: int  # the number of the log's last entry when the driver judged the step free
    errors_left: int
    preemptions_left: int
    forced: bool = False
    fresh: bool = False
    override_output: str | None = None
    resources: Any = None
    defaults: str = "{}"
    secrets: list[str] = []


def run_job(raw: Any) -> int:
    """Runs the job (as JSON) to its end; returns the exit code."""
    job = msgspec.convert(raw, Job)
    folder = StepFolder(job.prefix, job.folder)
    if cluster_address() is not None and folder.payload_record() is None:
        logger.error(
            "found nothing of this run in %s as %s sees it; needed a prefix that all machines of the cluster see: a "
            "bucket, or a disk that they share. Give another --prefix",
            *(job.prefix, socket.gethostname()),
        )
        return FAILED_EXIT
    try:
        tenure = take_claim(folder, job.after, job.run, forced=job.forced, fresh=job.fresh)
    except OSError as error:
        if not is_no_space(error):
            raise
        logger.error("no space left for the claim of %s: %s", folder.path, error)
        return NO_SPACE_EXIT
    if tenure is None:
        return CLAIMED_EXIT
    HEART.add(tenure)
    try:
        return _Attempt(job, tenure).run()
    finally:
        HEART.remove(tenure)


class _Attempt:
    """A job under a claim."""

    def __init__(self, job: Job, tenure: Tenure) -> None:
        self._job = job
        self._tenure = tenure
        self._folder = tenure.folder
        self._redactor = Redactor(job.secrets)
        self._volume = volume_of(self._folder.path)
        self._began = time.monotonic()
        self._fn: Function | None = None
        self._untold: Progress | None = None
        self._last_told = 0.0
        self._output = self._folder.output(tenure.number)
        self._state = f"{self._folder.path}/{tenure.claim.state}"
        if job.override_output is not None:
            self._output = private_path(job.override_output)

    def run(self) -> int:
        try:
            self._commit(self._work())
            return DONE_EXIT
        except LostClaimError as error:
            logger.warning("%s", error)
            self._note("lost_claim", {"claim": self._tenure.number})
            return CLAIMED_EXIT
        except (KeyboardInterrupt, StoppedError) as error:  # whoever runs this process must hear of it too
            self._release(Outcome.PREEMPTED, error)
            raise
        except BaseException as error:  # noqa: BLE001 (whatever ends the step is recorded and told by the exit code)
            return self._release(_outcome_of(error), error)

    def _work(self) -> StepContext:
        volume_of(self._output).make_folder(self._output)
        context = StepContext(
            name=self._job.name,
            output_path=self._output,
            state_path=self._state,
            resources=unpack(self._job.resources, self._own_place),
            redactor=self._redactor,
            publish_progress=self._publish_progress,
            record_event=self._note,
        )
        with running_step(context):
            self._fn = load(self._job.fn)
            config = unpack(self._job.config, self._own_place)
            try:
                result = self._fn(config)
            finally:
                self._tell_progress()
        self._summary = result.as_json() if isinstance(result, Summary) else {}
        return context

    def _own_place(self, own: Own, path: str) -> str:
        root = self._output
        if own is Own.STATE:
            root = self._state
            self._volume.make_folder(root)
        return join(root, path) if path else root

    def _commit(self, context: StepContext) -> None:
        volume_of(self._output).sync(self._output)
        output = self._output
        if self._job.override_output is not None:
            output = self._publish_override(self._job.override_output)
        objects = {name: self._folder.from_prefix(join(self._state, name)) for name in context.state_objects}
        places = [output, *(self._folder.absolute(path) for path in objects.values())]
        counts = {self._folder.from_prefix(place): count_names(place) for place in places if count_names(place)}
        summary: Any = self._redactor.value(self._summary)
        commit = Commit(
            identity=self._job.identity,
            output=self._folder.from_prefix(output),
            run=self._job.run,
            time=time.time(),
            seconds=round(time.monotonic() - self._began, 3),
            counts=counts,
            objects=objects,
            summary=summary,
            defaults=_without_secrets(self._job.defaults, self._redactor),
            notes=[self._redactor.text(note) for note in context.notes],
        )
        self._tenure.end(commit)
        if self._tenure.number > 1:
            self._sweep()

    def _publish_override(self, path: str) -> str:
        if not self._tenure.is_held():
            raise LostClaimError(f"{self._folder.path}: the claim was taken over before {path} was published")
        volume_of(path).publish_folder(self._output, path)
        return volume_of(path).published_folder(path) or path

    def _sweep(self) -> None:
        """Removes the outputs of attempts that came to nothing: claims that no commit follows."""
        entries = [self._folder.entry(number) for number in range(1, self._tenure.number + 1)]
        for number, (entry, following) in enumerate(itertools.pairwise(entries), start=1):
            if isinstance(entry, Claim) and not isinstance(following, Commit):
                try:
                    self._volume.remove(self._folder.output(number))
                except OSError as error:  # the step is committed; what is left over is only untidy
                    logger.warning("%s could not be removed: %s", self._folder.output(number), error)

    def _release(self, outcome: Outcome, error: BaseException) -> int:
        left = {
            Outcome.FAILED: 0 if isinstance(error, UserError) else self._job.errors_left,  # it would say the same again
            Outcome.PREEMPTED: self._job.preemptions_left,
            Outcome.NO_SPACE: 0,
        }[outcome]
        release = Release(
            outcome=outcome,
            run=self._job.run,
            time=time.time(),
            final=left <= 0 and outcome is not Outcome.NO_SPACE,
            error=self._error_note(error),
            code=code_of(self._fn) if self._fn is not None else None,
        )
        logger.info("%s: %s\n%s", self._job.name, outcome.value, release.error.traceback)
        if self._job.override_output is not None:
            volume_of(self._output).remove(parent(self._output))
        try:
            self._tenure.end(release)
        except LostClaimError:
            return CLAIMED_EXIT
        except OSError as problem:
            if not is_no_space(problem):
                raise
            return NO_SPACE_EXIT
        codes = {Outcome.PREEMPTED: RESUME_EXIT, Outcome.NO_SPACE: NO_SPACE_EXIT}
        return codes.get(outcome, FAILED_EXIT)

    def _error_note(self, error: BaseException) -> ErrorNote:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        lines = traceback.format_exception(type(error), error, frames)
        return ErrorNote(
            type=type(error).__name__,
            message=self._redactor.text(str(error)),
            traceback=self._redactor.text("".join(lines)),
            is_users=isinstance(error, UserError),
        )

    def _note(self, kind: str, data: Mapping[str, Any]) -> None:
        clean: Any = self._redactor.value(dict(data))
        self._folder.record_event(kind, {"claim": self._tenure.number, **clean})

    def _publish_progress(self, progress: Progress) -> None:
        """Shows progress at most a few times a second; what was told last is shown when the function ends."""
        self._untold = progress
        if time.monotonic() - self._last_told >= _PROGRESS_SECONDS or progress.done >= progress.total > 0:
            self._tell_progress()

    def _tell_progress(self) -> None:
        progress, self._untold = self._untold, None
        if progress is None:
            return
        self._last_told = time.monotonic()
        try:
            unit, note = self._redactor.text(progress.unit), self._redactor.text(progress.note)
            self._folder.write_progress(msgspec.structs.replace(progress, unit=unit, note=note))
        except OSError as error:  # what people see of a step must not end it
            logger.warning("progress of %s not shown: %s", self._job.name, error)


def _without_secrets(defaults: str, redactor: Redactor) -> str:
    """The defaults that the result rests on, as they may be stored."""
    given: dict[str, str] = json.loads(defaults)
    clean = {name: redactor.text(text) for name, text in given.items()}
    return defaults if clean == given else json.dumps(clean)


def _outcome_of(error: BaseException) -> Outcome:
    if is_no_space(error):
        return Outcome.NO_SPACE
    if isinstance(error, SystemExit) and error.code == RESUME_EXIT:
        return Outcome.PREEMPTED
    return Outcome.FAILED


def code_of(fn: Callable[..., Any]) -> str | None:
    """The hash of the file that a function was written in, to tell later whether it has changed since."""
    file = source_file(fn)
    if file is None or not Path(file).is_file():
        return None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()
