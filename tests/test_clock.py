"""The stopwatch tells waiting from working, adds up and begins anew."""

import time

import pytest

from minirl.clock import Clock


def work(seconds: float) -> None:
    begun = time.process_time()
    while time.process_time() - begun < seconds:
        pass


def test_waiting_is_wall_time_and_working_is_both() -> None:
    clock = Clock()
    with clock("wait"):
        time.sleep(0.2)
    with clock("work"):
        work(0.1)
    seconds = clock.seconds()
    assert list(seconds) == ["time/wait", "time/wait_cpu", "time/work", "time/work_cpu"]
    assert seconds["time/wait"] >= 0.2
    assert seconds["time/wait_cpu"] < 0.1
    assert 0.1 <= seconds["time/work_cpu"] <= seconds["time/work"] + 0.02


def test_a_phase_met_twice_adds_up_and_reading_begins_anew() -> None:
    clock = Clock()
    for _ in range(2):
        with clock("work"):
            work(0.05)
    assert clock.seconds()["time/work_cpu"] >= 0.1
    assert clock.seconds() == {}


def test_a_phase_that_raises_is_counted() -> None:
    clock = Clock()
    with pytest.raises(KeyError), clock("work"):
        work(0.05)
        raise KeyError
    assert clock.seconds()["time/work_cpu"] >= 0.05
