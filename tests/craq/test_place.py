"""Where a drive stands in a chain, as tables."""

import pytest

from esker.craq.place import Place, place_of
from esker.wire.types import Chain, Replica, TargetState

S, Y, W, L, O = TargetState  # noqa: E741


def chain(*replicas: tuple[str, TargetState], min_replicas: int = 1) -> Chain:
    return Chain(1, 1, tuple(Replica(drive, state, f"{drive}-life") for drive, state in replicas), min_replicas)


@pytest.mark.parametrize(
    ("replicas", "drive", "place"),
    [
        ([("a", S), ("b", S), ("c", S)], "a", Place(S, True, None, "b", False, True)),
        ([("a", S), ("b", S), ("c", S)], "b", Place(S, False, "a", "c", False, True)),
        ([("a", S), ("b", S), ("c", S)], "c", Place(S, False, "b", None, False, True)),
        ([("a", S), ("b", S), ("c", Y)], "a", Place(S, True, None, "b", False, True)),
        ([("a", S), ("b", S), ("c", Y)], "b", Place(S, False, "a", "c", True, True)),
        ([("a", S), ("b", S), ("c", Y)], "c", Place(Y, False, "b", None, False, True)),
        ([("a", S), ("b", Y), ("c", W)], "a", Place(S, True, None, "b", True, True)),
        ([("a", S), ("b", W), ("c", O)], "a", Place(S, True, None, None, False, True)),
        ([("a", S), ("b", W), ("c", O)], "b", Place(W, False, None, None, False, True)),
        ([("a", S), ("b", W), ("c", O)], "c", Place(O, False, None, None, False, True)),
        ([("a", L), ("b", L)], "a", Place(L, False, None, None, False, False)),
        ([("a", S)], "z", Place(O, False, None, None, False, True)),
    ],
)
def test_places(replicas: list[tuple[str, TargetState]], drive: str, place: Place) -> None:
    assert place_of(chain(*replicas), drive, f"{drive}-life") == place


@pytest.mark.parametrize("state", [S, Y])
def test_another_life_has_no_place(state: TargetState) -> None:
    assert place_of(chain(("a", S), ("b", state)), "b", "later") == Place(O, False, None, None, False, True)
    assert place_of(chain(("a", S), ("b", state)), "b", "") == Place(O, False, None, None, False, True)


@pytest.mark.parametrize(("min_replicas", "enough"), [(1, True), (2, True), (3, False)])
def test_enough_is_of_those_that_serve(min_replicas: int, enough: bool) -> None:
    line = chain(("a", S), ("b", S), ("c", Y), min_replicas=min_replicas)
    assert place_of(line, "a", "a-life").enough is enough
