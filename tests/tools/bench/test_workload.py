"""Which block comes next."""

from itertools import islice

import pytest

from esker.tools.bench.workload import Mode, Workload, default_batch, mixed_order, read_order, write_order


def workload(mode: Mode, blocks: int = 10) -> Workload:
    return Workload(mode=mode, block_bytes=4096, blocks=blocks, iodepth=4, batch=3, runtime_s=1, seed=1)


def test_reading_goes_round_and_round() -> None:
    assert list(islice(read_order(workload(Mode.READ, 3), 0), 7)) == [0, 1, 2, 0, 1, 2, 0]


def test_random_reading_covers_the_data_set_in_a_new_order_each_round() -> None:
    found = list(islice(read_order(workload(Mode.RANDREAD, 100), 0), 200))
    assert sorted(found[:100]) == sorted(found[100:]) == list(range(100))
    assert found[:100] != found[100:] != list(range(100))


def test_turns_have_orders_of_their_own_that_can_be_repeated() -> None:
    first, again, other = (list(islice(read_order(workload(Mode.RANDREAD, 50), turn), 50)) for turn in (1, 1, 2))
    assert first == again != other


def test_every_place_is_written_once() -> None:
    assert list(write_order(workload(Mode.WRITE), 0)) == list(range(10))
    shuffled = list(write_order(workload(Mode.RANDWRITE, 50), 0))
    assert shuffled != sorted(shuffled) == list(range(50))


def test_mixed_work_is_half_and_half() -> None:
    assert 400 < sum(islice(mixed_order(workload(Mode.RANDRW), 0), 1000)) < 600


@pytest.mark.parametrize(("iodepth", "batch"), [(1, 1), (2, 1), (3, 1), (16, 8), (128, 64), (1024, 64)])
def test_default_batches_leave_two_calls_in_flight(iodepth: int, batch: int) -> None:
    assert default_batch(iodepth) == batch


def test_calls_cover_the_depth() -> None:
    assert workload(Mode.READ).calls == 2
