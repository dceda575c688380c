"""The order of a predecessor's messages, with a bounded memory."""

from esker.craq.hops import HopOrder

A, B, C = b"a", b"b", b"c"


def test_of_one_chunk_only_higher_numbers_are_taken() -> None:
    order = HopOrder()
    assert [order.take(A, hop) for hop in (1, 1, 5, 4, 5, 6)] == [True, False, True, False, False, True]


def test_chunks_may_overtake_each_other() -> None:
    order = HopOrder()
    assert [order.take(chunk, hop) for chunk, hop in ((A, 9), (B, 3), (C, 5))] == [True, True, True]


def test_a_chunk_that_was_forgotten_takes_only_what_is_surely_new() -> None:
    order = HopOrder(chunks_kept=2)
    for chunk, hop in ((A, 4), (B, 2), (C, 6)):
        assert order.take(chunk, hop)
    assert not order.take(A, 4)  # forgotten: nothing up to 4 is taken of anybody unknown
    assert not order.take(b"d", 3)
    assert order.take(A, 7)


def test_asking_does_not_make_known() -> None:
    order = HopOrder(chunks_kept=1)
    order.take(A, 3)
    order.take(A, 2)
    assert order.take(A, 4)
