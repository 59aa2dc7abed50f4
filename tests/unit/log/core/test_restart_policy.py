from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.core.restart_policy import RestartPolicy, Restarts

POLICY = RestartPolicy(pause_base_s=0.1, pause_max_s=1.0, settled_s=20.0, short_lives_max=6)


def test_a_worker_that_served_for_long_is_started_again_at_once_however_often() -> None:
    restarts = Restarts(POLICY)
    assert [restarts.ended(20.0) for _ in range(50)] == [0.0] * 50
    assert restarts.count == 50


def test_one_that_ends_soon_is_started_again_after_pauses_that_double_and_in_the_end_not_at_all() -> None:
    restarts = Restarts(POLICY)
    assert [restarts.ended(0.5) for _ in range(7)] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0, None]


def test_a_long_life_is_a_new_beginning() -> None:
    restarts = Restarts(POLICY)
    for _ in range(6):
        assert restarts.ended(0.5) is not None
    assert restarts.ended(25.0) == 0.0
    assert [restarts.ended(0.5) for _ in range(7)] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0, None]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 40), max_size=40))
def test_it_gives_up_after_so_many_short_lives_in_a_row_and_never_otherwise(lives: list[float]) -> None:
    restarts = Restarts(POLICY)
    for number, lived_s in enumerate(lives):
        short = (
            all(each < POLICY.settled_s for each in lives[max(0, number - POLICY.short_lives_max) : number + 1]) and number >= POLICY.short_lives_max
        )
        pause = restarts.ended(lived_s)
        assert (pause is None) == short
        if pause is None:
            return
        assert 0.0 <= pause <= POLICY.pause_max_s
