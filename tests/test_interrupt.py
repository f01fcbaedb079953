"""Ctrl-C waits for the end of a step, a second one does not, and the old handler comes back."""

from __future__ import annotations

import signal
import threading

import pytest

from jaxpar._interrupt import between_steps


@pytest.fixture(autouse=True)
def python_handles_sigint():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def steps(n: int, interrupts: dict[int, int], completed: list[int]) -> None:
    """Takes n steps, with so many interrupts in the middle of step i."""
    with between_steps() as check:
        for i in range(n):
            for _ in range(interrupts.get(i, 0)):
                signal.raise_signal(signal.SIGINT)
            completed.append(i)
            check()


@pytest.mark.parametrize(("interrupts", "completed"), [({2: 1}, [0, 1, 2]), ({2: 2}, [0, 1])])
def test_the_first_waits_for_the_step_and_the_second_does_not(interrupts, completed):
    done: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        steps(5, interrupts, done)
    assert done == completed


def test_an_interrupt_after_the_last_check_is_not_lost():
    with pytest.raises(KeyboardInterrupt), between_steps():
        signal.raise_signal(signal.SIGINT)


def test_no_interrupt():
    with between_steps() as check:
        check()


def test_an_error_in_a_step_is_the_one_that_is_seen():
    def step() -> None:
        with between_steps():
            signal.raise_signal(signal.SIGINT)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        step()


def test_outside_the_main_thread_nothing_changes():
    seen = []

    def work() -> None:
        with between_steps() as check:
            check()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_who_ignores_sigint_is_left_alone():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with between_steps() as check:
        signal.raise_signal(signal.SIGINT)
        check()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_loop_inside_of_a_loop_ends_too():
    done: list[int] = []
    with pytest.raises(KeyboardInterrupt), between_steps():
        steps(5, {2: 1}, done)
    assert done == [0, 1, 2]


def test_a_comparison_inside_of_another_loop_ends_both():
    done: list[int] = []

    def compare() -> None:
        with between_steps() as check:
            signal.raise_signal(signal.SIGINT)
            done.append(0)
            check()
            done.append(1)

    with pytest.raises(KeyboardInterrupt), between_steps():
        compare()
    assert done == [0]
