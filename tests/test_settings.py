"""The settings: what the environment says, or one line about what makes no sense."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from tests.source import READ_ELSEWHERE, SETTINGS, read_settings, readers

NONSENSE = {
    "integer": ["abc", "-1", "1.5", "1e3"],
    "seconds": ["abc", "nan", "inf", "0", "-1"],
    "boolean": ["maybe", "2"],
    "choice": ["nonsense"],
    "address": ["nonsense", "http://", "ftp://host/", "//host"],
    "path": ["~nobody-of-that-name/var"],
    "time_zone": ["Mars/Base", "Europe", "../etc/passwd"],
    "string": ["\udcff"],  # how a byte that is not UTF-8 arrives
    "secret": ["two words", "über", "\udcff"],
    "words": ["\udcff"],
}


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """An environment in which nothing is set; ``environment(PORT="1")`` sets something."""
    for name in {reader.name for reader in readers()} | set(READ_ELSEWHERE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DATA_DIR", str(tmp_path))

    def put(**values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize(
    ("name", "value"), [(reader.name, value) for reader in readers() for value in NONSENSE[reader.kind]]
)
def test_nonsense_is_refused_in_one_line_that_names_the_setting(environment, name, value):
    environment(**{name: value})
    with pytest.raises(ImproperlyConfigured) as refusal:
        read_settings()
    assert str(refusal.value).startswith(name)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", [reader.name for reader in readers() if reader.name != "DATA_DIR"])
def test_blank_is_unset(environment, name):
    unset = read_settings()
    environment(**{name: "  "})
    if name in unset and name != "SECRET_KEY":
        assert read_settings()[name] == unset[name]


@pytest.mark.parametrize(
    ("values", "provider"),
    [
        ({}, "mock"),
        ({"OPENAI_API_KEY": "sk-abcdefgh"}, "openai"),
        ({"LLM_BASE_URL": "http://127.0.0.1:1/v1"}, "openai"),
        ({"OPENAI_API_KEY": "sk-abcdefgh", "LLM_PROVIDER": "mock"}, "mock"),
    ],
)
def test_the_provider_follows_from_a_key_or_an_address(environment, values, provider):
    environment(**values)
    assert read_settings()["LLM_PROVIDER"] == provider


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"LLM_PROVIDER": "openai"}, "OPENAI_API_KEY"),
        ({"LLM_MODELS": "a, b"}, "LLM_MODEL_DEFAULT"),
        ({"PERMISSIONS_GRANTED": "NET_HTTP, SHELL"}, "SHELL is not one of"),
        ({"PERMISSIONS_GRANTED": "net_http"}, "net_http is not one of"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(environment, values, named):
    environment(**values)
    with pytest.raises(ImproperlyConfigured, match=named):
        read_settings()


def test_lists_are_separated_by_commas(environment):
    environment(TOOLS_ALLOWED=" time , ,fetch,")
    assert read_settings()["TOOLS_ALLOWED"] == ["time", "fetch"]


def test_the_host_it_listens_on_may_be_asked_for(environment):
    environment(HOST="fd00::1")
    assert "[fd00::1]" in read_settings()["ALLOWED_HOSTS"]


def test_the_secret_key_is_the_one_kept(environment, tmp_path):
    kept = tmp_path / "secret_key"
    kept.write_text("kept for good\n")
    assert read_settings()["SECRET_KEY"] == "kept for good"
    kept.write_text("")  # a start that was killed in between
    assert len(read_settings()["SECRET_KEY"]) > 40
    environment(SECRET_KEY="from the environment")
    assert read_settings()["SECRET_KEY"] == "from the environment"


def test_settings_are_read_by_those_readers_alone():
    """A setting read past ``env`` would stand in no table, and nonsense in it would end in a traceback."""
    source = SETTINGS.read_text()
    assert "os.environ" not in source
    assert "getenv" not in source
