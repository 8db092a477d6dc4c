"""The loader: the stream's batches on devices, each process with its own rows, errors where they are seen."""

import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from token_caches import CacheWriter, MakeCache, numbered_documents, write_cache

from ponente.batches.config import MixtureConfig
from ponente.batches.loader import Loader, local_rows
from ponente.batches.rows import RowPolicy
from ponente.batches.schedule import BatchSchedule, BatchStage
from ponente.batches.shape import BatchShape
from ponente.batches.stream import BatchStream
from ponente.batches.training import RowSource, training_data
from ponente.config.errors import RefusedError
from ponente.store.token_cache.cache import TokenCache

SHAPE = BatchShape(length=8, max_documents=4)


def stream_of(cache: TokenCache, config: MixtureConfig | None = None, batch: int | list[BatchStage] = 8) -> BatchStream:
    sources = {"web": RowSource(cache=cache, policy=RowPolicy())}
    return training_data(config or MixtureConfig(), sources, BatchSchedule.of(batch), SHAPE, 0).stream


@pytest.fixture
def stream(make_cache: MakeCache) -> BatchStream:
    return stream_of(make_cache([5, 30, 2, 17, 40] * 6))


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_device_batches_are_those_of_the_stream_from_any_step_on(stream: BatchStream, devices: int) -> None:
    mesh = Mesh(np.array(jax.devices()[:devices]), "data")
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    with Loader(stream, sharding, start=1_000_000, stop=1_000_007) as batches:
        seen = list(batches)
    assert [step for step, _ in seen] == list(range(1_000_000, 1_000_007))
    for step, batch in seen:
        for found, expected in zip(batch, stream.batch(step), strict=True):
            assert found.sharding.is_equivalent_to(sharding, found.ndim)
            assert np.array_equal(found, expected)


def test_batch_sizes_may_change_on_the_way(make_cache: MakeCache) -> None:
    stream = stream_of(make_cache([50, 60]), batch=[BatchStage(start=0, value=2), BatchStage(start=2, value=4)])
    with Loader(stream, SingleDeviceSharding(jax.devices()[0]), stop=4) as batches:
        assert [batch.tokens_BS.shape for _, batch in batches] == [(2, 8), (2, 8), (4, 8), (4, 8)]


def test_a_stream_that_ends_ends_the_loader(make_cache: MakeCache) -> None:
    stream = stream_of(make_cache([50, 60]), MixtureConfig(stop_strategy="all_exhausted"))
    with Loader(stream, SingleDeviceSharding(jax.devices()[0])) as batches:
        assert [step for step, _ in batches] == [0, 1]


def test_an_error_while_reading_ahead_is_raised_where_the_batch_is_asked_for(tmp_path: Path) -> None:
    cache = write_cache(tmp_path / "c", numbered_documents([40] * 12))
    stream = stream_of(cache, MixtureConfig(shuffle=False), batch=4)
    damaged = next((Path(cache.path) / "segments" / "000001-0000" / "input_ids" / "c").iterdir())
    damaged.write_bytes(b"\x00" * damaged.stat().st_size)
    with Loader(stream, SingleDeviceSharding(jax.devices()[0])) as batches:
        steps = []
        with pytest.raises(ValueError, match="damaged"):
            for step, _ in batches:
                steps.append(step)
    assert steps == list(range(8))  # 280 tokens, 35 rows, are whole; row 32 to 35 is the first batch that is not


def test_a_loader_that_is_closed_early_leaves_no_thread(stream: BatchStream) -> None:
    before = threading.active_count()
    with Loader(stream, SingleDeviceSharding(jax.devices()[0])) as batches:
        next(iter(batches))
    assert not [thread for thread in threading.enumerate() if thread.name == "ponente-loader"]
    assert threading.active_count() <= before


def test_a_process_holds_the_rows_of_its_devices() -> None:
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
    assert local_rows(NamedSharding(mesh, PartitionSpec("data")), 6).tolist() == list(range(6))


def growing(tmp_path: Path, on_wait: Callable[[], None] | None = None) -> BatchStream:
    """A stream of which the first step can be read and the second waits."""
    writer = CacheWriter(tmp_path / "growing")
    writer.add(numbered_documents([40]))
    source = RowSource(cache=writer.open(), policy=RowPolicy(), on_wait=on_wait)
    return training_data(MixtureConfig(shuffle=4), {"web": source}, BatchSchedule.of(4), SHAPE, 0).stream


def test_a_batch_that_is_there_is_not_held_back_by_one_that_is_waited_for(tmp_path: Path) -> None:
    with Loader(growing(tmp_path), SingleDeviceSharding(jax.devices()[0])) as batches:
        step, _ = next(iter(batches))
    assert step == 0  # and closing did not wait for the second


def test_the_error_of_a_build_comes_with_the_batch_that_misses_its_rows(tmp_path: Path) -> None:
    def failed() -> None:
        raise RuntimeError("the build failed")

    with Loader(growing(tmp_path, failed), SingleDeviceSharding(jax.devices()[0])) as batches:
        seen = iter(batches)
        assert next(seen)[0] == 0
        with pytest.raises(RuntimeError, match="the build failed"):
            next(seen)


def test_whoever_waits_for_a_batch_is_woken_when_the_loader_is_closed(tmp_path: Path) -> None:
    loader = Loader(growing(tmp_path), SingleDeviceSharding(jax.devices()[0]))
    taken: list[int] = []
    consumer = threading.Thread(target=lambda: taken.extend(step for step, _ in loader))
    consumer.start()
    while not taken:
        time.sleep(0.01)
    loader.close()
    consumer.join(timeout=10)
    assert not consumer.is_alive()
    assert taken == [0]


def test_a_batch_that_devices_cannot_divide_is_refused_at_once(stream: BatchStream) -> None:
    mesh = Mesh(np.array(jax.devices()[:3]), "data")
    with pytest.raises(
        RefusedError, match=r"found a batch size of 8 .*Set trainer.train_batch_size to a multiple of 3"
    ):
        Loader(stream, NamedSharding(mesh, PartitionSpec("data")))
    with pytest.raises(RefusedError, match="keeps 0 batches ready; needed 1 or more"):
        Loader(stream, SingleDeviceSharding(jax.devices()[0]), ahead=0)


PROCESS = """
    import sys, json
    import jax
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    number, port, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=number)
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from ponente.batches.config import MixtureConfig
    from ponente.batches.loader import Loader, local_rows
    from ponente.batches.rows import RowPolicy
    from ponente.batches.schedule import BatchSchedule
    from ponente.batches.shape import BatchShape
    from ponente.batches.training import RowSource, training_data
    from ponente.store.token_cache.cache import open_cache

    sources = {"web": RowSource(cache=open_cache(path), policy=RowPolicy())}
    shape = BatchShape(length=8, max_documents=4)
    stream = training_data(MixtureConfig(), sources, BatchSchedule.of(8), shape, 0).stream
    sharding = NamedSharding(Mesh(np.array(jax.devices()), "data"), PartitionSpec("data"))
    asked = []
    begin = stream.begin
    def recorded(step, rows=None, on_wait=None):
        asked.append(rows if rows is None else rows.tolist())
        return begin(step, rows)

    stream.begin = recorded
    with Loader(stream, sharding, start=5, stop=8) as batches:
        for step, batch in batches:
            whole = stream.batch(step)
            for found, expected in zip(batch, whole, strict=True):
                for shard in found.addressable_shards:
                    assert np.array_equal(shard.data, expected[shard.index]), (step, shard.index)
            total = jax.jit(lambda tokens: tokens.sum(), out_shardings=None)(batch.tokens_BS)
            assert int(total) == int(whole.tokens_BS.sum())
    print(json.dumps([rows for rows in asked if rows is not None][:1]))
"""


def test_two_processes_read_only_their_own_rows_of_the_same_batches(tmp_path: Path) -> None:
    cache = write_cache(tmp_path / "c", numbered_documents([5, 30, 2, 17, 40] * 6))
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    script = tmp_path / "process.py"
    script.write_text(textwrap.dedent(PROCESS))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(number), port, cache.path],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    ended = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ended
    assert [output.strip().splitlines()[-1] for output, _ in ended] == ["[[0, 1, 2, 3]]", "[[4, 5, 6, 7]]"]


def test_processes_agree_on_the_width_of_tables(stream: BatchStream) -> None:
    asked: list[tuple[int, int]] = []

    def widest(step: int, width: int) -> int:
        asked.append((step, width))
        return 4 * width

    sharding = SingleDeviceSharding(jax.devices()[0])
    with Loader(stream, sharding, stop=3, rows_together=lambda rows: rows, widest=widest) as batches:
        wide = [batch.document_starts_BM.shape[1] for _, batch in batches]
    with Loader(stream, sharding, stop=3, rows_together=lambda rows: rows) as batches:
        own = [batch.document_starts_BM.shape[1] for _, batch in batches]
    assert asked == list(enumerate(own))
    assert wide == [4 * width for width in own]
