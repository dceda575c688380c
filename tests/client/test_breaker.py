"""How long a worker that let requests run out is left alone."""

from esker.client.breaker import REST_MAX_S, REST_MIN_S, Breaker


def test_a_sign_of_life_is_enough_the_first_time() -> None:
    breaker = Breaker()
    breaker.trip(100.0)
    assert breaker.trips == 1
    assert breaker.rests_s(100.0) == 0


def test_each_further_time_it_rests_twice_as_long_up_to_a_bound() -> None:
    breaker = Breaker()
    rests = []
    now_s = 100.0
    for _ in range(12):
        breaker.trip(now_s)
        rests.append(breaker.rests_s(now_s))
        now_s += rests[-1]
        assert breaker.rests_s(now_s) == 0
    assert rests[:4] == [0, REST_MIN_S, 2 * REST_MIN_S, 4 * REST_MIN_S]
    assert rests[-1] == REST_MAX_S


def test_an_answer_closes_it() -> None:
    breaker = Breaker()
    for _ in range(5):
        breaker.trip(100.0)
    breaker.close()
    assert breaker.trips == 0
    assert breaker.rests_s(100.0) == 0
    breaker.trip(100.0)
    assert breaker.rests_s(100.0) == 0


def test_a_very_long_outage_is_no_overflow() -> None:
    breaker = Breaker()
    for _ in range(5000):
        breaker.trip(0.0)
    assert breaker.rests_s(0.0) == REST_MAX_S
