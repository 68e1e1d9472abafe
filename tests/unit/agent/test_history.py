"""History, cleaned on a copy: whatever was stored, what is sent is a history that the chat format allows."""

import copy
import json

import pytest
from hypothesis import given, settings

from agent import history
from agent.fixed import Fixed
from agent.history import INTERRUPTED, clean
from tests.support.openai_server import Broken, check_messages
from tests.support.transcripts import (
    calls,
    result,
    says,
    transcripts,
    user,
    windows,
)

pytestmark = pytest.mark.shapeless(reason="pure functions")

ROOMY = 100


# --- each step ---------------------------------------------------------------------------------------------------


def test_a_sound_history_is_sent_as_it_is():
    sound = [user(), calls("1", "2"), result("2"), result("1"), says(), user("Again")]
    assert clean(sound, window=ROOMY) == sound


def test_what_comes_before_the_first_user_is_dropped():
    assert clean([result("0"), says(), calls("1"), user()], window=ROOMY) == [user()]


def test_it_is_the_same_for_what_comes_from_rows():
    """Where no text is the very object that stands in the code."""
    stored = [result("0"), user(), calls("1", "2", "2"), result("2"), says(""), user("Again"), says()]
    read = json.loads(json.dumps(stored))
    assert clean(read, window=ROOMY) == clean(stored, window=ROOMY)
    assert clean(json.loads(json.dumps([user(), result("0"), says()])), window=ROOMY) == [user(), says()]
    assert history.mend_calls(json.loads(json.dumps([says() | {"tool_calls": []}]))) == [says()]
    assert history.fit_window(read, window=3) == read[5:]
    assert keep(read, 3) == read[5:]
    assert history.drop_blank_assistants(read) == [*read[:4], *read[5:]]


def test_a_model_s_thoughts_go_back_to_it_in_their_own_turn():
    thinks = calls("1") | {"thoughts": ["Hm."]}
    for kind in (dict, Fixed):  # those of rows are made once
        messages = [kind(each) for each in (user(), thinks, result("1"), user(), thinks, result("1"))]
        sent = history.drop_old_thoughts(messages)
        assert sent == [user(), calls("1"), result("1"), user(), thinks, result("1")]
        assert history.drop_old_thoughts(json.loads(json.dumps(messages))) == sent
        assert (history.drop_old_thoughts(messages)[1] is sent[1]) == (kind is Fixed)
    assert history.drop_old_thoughts([thinks]) == [thinks]


@pytest.mark.parametrize("window", [2, 3])
def test_what_fits_the_window_is_left_as_it_is(window):
    """Also what no user began: that is for another step."""
    assert history.fit_window([says(), user()], window=window) == [says(), user()]


def test_the_last_turns_that_fit_a_budget_are_kept_whole():
    turns = [user("1"), says(), user("2"), calls("1"), result("1"), says(), user("3"), says()]
    kept = {budget: len(keep(turns, budget)) for budget in range(10)}
    assert kept == {0: 2, 1: 2, 2: 2, 3: 2, 4: 2, 5: 2, 6: 6, 7: 6, 8: 8, 9: 8}
    assert keep(turns, 6) == turns[2:]


def test_the_newest_turn_is_kept_whatever_it_costs_and_no_more_with_it():
    assert keep([user("1"), says(), user("2"), says()], 1) == [user("2"), says()]
    assert keep([user("1")], 0) == [user("1")]
    assert keep([says(), user("1")], 5) == [user("1")]


def test_without_a_user_no_budget_is_spent():
    assert keep([says(), says()], 5) == []
    assert keep([], 5) == []


def test_a_message_counts_for_what_it_costs():
    turns = [user("1"), says("long"), user("2"), says("x")]
    costs = {"long": 10, "x": 1, "1": 1, "2": 1}
    for budget, count in ((12, 2), (13, 4)):
        kept = history.keep_what_fits(turns, budget=budget, cost=lambda message: costs[message["content"]])
        assert len(kept) == count


def keep(messages, budget):
    return history.keep_what_fits(messages, budget=budget, cost=lambda message: 1)


def test_without_a_user_nothing_is_left():
    assert clean([says(), calls("1"), result("1")], window=ROOMY) == []
    assert clean([], window=ROOMY) == []


@pytest.mark.parametrize(
    "orphan",
    [
        [user(), result("1")],
        [user(), says(), result("1")],
        [user(), calls("1"), result("1"), result("1")],
        [user(), calls("1"), result("1"), says(), result("1")],
        [user(), calls("1"), result("1"), user(), result("1")],
    ],
)
def test_a_result_whose_call_is_not_in_view_is_dropped(orphan):
    assert clean(orphan, window=ROOMY) == orphan[:-1]


def test_a_missing_result_is_answered_behind_those_of_its_round():
    half = [user(), calls("1", "2", "3"), result("2"), user("Still there?")]
    interrupted = [result("1", INTERRUPTED), result("3", INTERRUPTED)]
    assert clean(half, window=ROOMY) == [*half[:3], *interrupted, half[3]]


def test_an_answer_that_is_missing_at_the_end_is_given_too():
    assert clean([user(), calls("1")], window=ROOMY) == [user(), calls("1"), result("1", INTERRUPTED)]


def test_blank_assistants_are_dropped():
    assert clean([user(), says(""), says(" \n"), says()], window=ROOMY) == [user(), says()]


def test_a_call_that_repeats_an_id_is_dropped():
    doubled = [user(), calls("1", "1"), result("1"), result("1"), says()]
    assert clean(doubled, window=ROOMY) == [user(), calls("1"), result("1"), says()]


@pytest.mark.parametrize(
    ("name", "sent"),
    [("my tool!", "my_tool_"), ("functions.time", "functions_time"), ("", "unnamed"), ("x" * 99, "x" * 64)],
)
def test_a_name_no_tool_can_have_is_sent_as_one_that_it_can(name, sent):
    messages = [user(), calls("1", name=name), result("1")]
    assert clean(messages, window=ROOMY) == [user(), calls("1", name=sent), result("1")]


@pytest.mark.parametrize("arguments", ["", "no JSON", "[1]", "7", "null", "[" * 100_000])
def test_arguments_that_are_no_object_are_sent_as_an_empty_one(arguments):
    messages = [user(), calls("1", arguments=arguments), result("1")]
    assert clean(messages, window=ROOMY) == [user(), calls("1"), result("1")]


def test_the_window_is_cut_at_a_user_only():
    messages = [user("1"), says(), user("2"), calls("a"), result("a"), says(), user("3")]
    assert clean(messages, window=7) == messages
    assert clean(messages, window=6) == messages[2:]
    assert clean(messages, window=5) == messages[2:]
    assert clean(messages, window=4) == messages[6:]


def test_the_newest_user_message_stays_however_long_its_turn():
    messages = [user("1"), says(), user("2"), calls("a"), result("a"), calls("b"), result("b")]
    assert clean(messages, window=2) == messages[2:]


# --- whatever is stored ------------------------------------------------------------------------------------------


@settings(max_examples=500)
@given(transcripts, windows)
def test_whatever_is_stored_what_is_sent_is_sound(stored, window):
    before = copy.deepcopy(stored)
    sent = clean(stored, window=window)
    assert stored == before, "the stored transcript was changed"
    if sent:
        check_messages(sent)
        assert sent[0]["role"] == "user"
    assert clean(sent, window=window) == sent, "cleaning what is clean changes it"


@settings(max_examples=500)
@given(transcripts, windows)
def test_the_newest_user_message_is_kept_and_the_window_respected(stored, window):
    sent = clean(stored, window=window)
    said = [message["content"] for message in stored if message["role"] == "user"]
    heard = [message["content"] for message in sent if message["role"] == "user"]
    assert heard == said[len(said) - len(heard) :], "cut anywhere but at the front"
    assert bool(heard) == bool(said)
    assert len(sent) <= window or len(heard) == 1, "longer than the window, and not one turn alone"


@given(transcripts)
def test_no_user_message_and_no_sound_result_is_lost_within_the_window(stored):
    sent = clean(stored, window=10_000)
    first = next((index for index, message in enumerate(stored) if message["role"] == "user"), len(stored))
    spoken = [message for message in stored[first:] if message["role"] == "user" or message["content"].strip()]
    kept = [message for message in sent if message["role"] == "user" or message["content"].strip()]
    said = [message["content"] for message in spoken if message["role"] != "tool"]
    assert [message["content"] for message in kept if message["role"] != "tool"] == said


@pytest.mark.parametrize(
    "broken",
    [
        [user(), result("1")],
        [user(), calls("1")],
        [user(), calls("1"), says(), result("1")],
        [user(), calls("1", "1"), result("1")],
        [user(), says(" ")],
        [user(), {"role": "robot", "content": "Hi."}],
    ],
)
def test_the_rules_these_tests_go_by_are_strict(broken):
    with pytest.raises(Broken):
        check_messages(broken)


def test_every_step_is_part_of_the_pipeline():
    """A step that is written and forgotten would do nothing."""
    names = set(clean.__code__.co_names) | set(clean.__code__.co_consts)
    steps = {name for name in vars(history) if name.startswith(("drop_", "answer_", "fit_", "mend_"))}
    assert steps <= names
