"""The circuit breaker of providers: when one is left alone, for how long, and who asks it first."""

import pytest

from agent.errors import LlmAuthError, LlmBadResponse, LlmContextTooLong, LlmRateLimited, LlmTimeout, LlmUnavailable
from agent.llm.breaker import FAILURES, MAX_TIMES, Breaker, Change, ProviderRests, counts

pytestmark = pytest.mark.shapeless(reason="it is pure")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock) -> Breaker:
    return Breaker(clock)


def fail(breaker: Breaker, *works: object) -> None:
    for work in works:
        breaker.failed("groq", LlmTimeout(), work=work, rest=30)


def waits(breaker: Breaker, provider: str = "groq") -> float | None:
    try:
        breaker.check(provider)
    except ProviderRests as error:
        return error.retry_after
    return None


FOR_ALL = ("a", "b", "c", "a", "b")


def test_one_that_fails_for_several_is_left_alone_and_no_other_is(breaker):
    fail(breaker, *FOR_ALL)
    assert (waits(breaker), waits(breaker, "openai")) == (30, None)
    assert breaker.take_changes() == [Change(provider="groq", seconds=30, code="llm_timeout")]
    assert breaker.take_changes() == []


def test_one_that_fails_for_a_single_turn_is_not(breaker):
    fail(breaker, *["a"] * 20, *["b"] * 20)
    assert waits(breaker) is None


def test_fewer_failures_are_not_enough(breaker):
    fail(breaker, *FOR_ALL[: FAILURES - 1])
    assert waits(breaker) is None


def test_an_answer_in_between_begins_the_count_anew(breaker):
    fail(breaker, *FOR_ALL[:-1])
    breaker.answered("groq")
    fail(breaker, *FOR_ALL[:-1])
    assert waits(breaker) is None


def test_after_a_while_one_may_ask_and_the_others_look_again_soon(breaker, clock):
    fail(breaker, *FOR_ALL)
    clock.now += 31
    assert [waits(breaker) for _ in range(3)] == [None, 2, 2]
    clock.now += 31  # the one that asked has told nothing: it died
    assert waits(breaker) is None


def test_if_that_one_gets_an_answer_all_may(breaker, clock):
    fail(breaker, *FOR_ALL)
    clock.now += 31
    breaker.check("groq")
    breaker.take_changes()
    breaker.answered("groq")
    assert [waits(breaker) for _ in range(3)] == [None] * 3
    assert breaker.take_changes() == [Change(provider="groq", seconds=0)]


def test_if_not_it_is_left_alone_for_twice_as_long_up_to_a_bound(breaker, clock):
    fail(breaker, *FOR_ALL)
    seen = []
    for _ in range(5):
        clock.now += 1000
        breaker.check("groq")
        fail(breaker, "d")
        seen.append(waits(breaker))
    assert seen == [60, 120, 120, 120, 120] == [60, *[30 * MAX_TIMES] * 4]


def test_those_who_were_under_way_do_not_count_again(breaker):
    fail(breaker, *FOR_ALL, "d", "e", "f")
    assert waits(breaker) == 30


def test_zero_leaves_none_alone(breaker):
    for work in FOR_ALL * 3:
        breaker.failed("groq", LlmTimeout(), work=work, rest=0)
    assert waits(breaker) is None


def test_what_others_have_found_counts_until_they_find_it_back(breaker, clock):
    breaker.learn({"groq": 20}, read_at=clock.now)
    clock.now += 5
    assert (waits(breaker), breaker.rests("groq")) == (15, True)
    breaker.learn({}, read_at=clock.now)
    assert (waits(breaker), breaker.rests("groq")) == (None, False)


def test_what_others_have_found_is_over_when_it_answers_whoever_asks(breaker, clock):
    breaker.learn({"groq": 20}, read_at=clock.now)
    breaker.learn({"groq": -1}, read_at=clock.now)  # somebody wants it asked, or its time is over
    assert waits(breaker) is None
    breaker.answered("openai")
    assert breaker.take_changes() == []
    breaker.answered("groq")
    breaker.answered("groq")
    assert breaker.take_changes() == [Change(provider="groq", seconds=0)]


@pytest.mark.parametrize("outages", [{}, {"groq": -1}])
def test_what_was_read_before_others_could_know_says_nothing(breaker, clock, outages):
    fail(breaker, *FOR_ALL)
    breaker.learn(outages, read_at=clock.now)
    assert waits(breaker) == 30
    read_at, clock.now = clock.now, clock.now + 1
    breaker.told(breaker.take_changes())
    breaker.learn(outages, read_at=read_at)
    assert waits(breaker) == 29
    breaker.learn(outages, read_at=clock.now)
    assert waits(breaker) is None


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (LlmTimeout(), True),
        (LlmUnavailable(), True),
        (LlmBadResponse(), True),
        (LlmRateLimited(), False),
        (LlmAuthError(), False),
        (LlmContextTooLong(), False),
        (ProviderRests(), False),
    ],
)
def test_what_counts_as_a_failure(error, is_one):
    assert counts(error) == is_one
