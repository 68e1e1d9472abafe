"""Signing in by OpenID Connect, on a host whose settings name a provider: one of ours on loopback."""

import itertools
import json
import re
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from tests.support.browser import EVERY_GRADE, GRAVE, WIDTHS, Visitor, chromium
from tests.support.browser import browser as browser_of_a_person
from tests.support.hosts import PLAIN, Host
from tests.support.oidc_provider import CLIENT, SECRET, OidcProvider

START = "/admin/single-sign-on/"
BACK = "/admin/single-sign-on/callback/"


@pytest.fixture(scope="module")
def provider():
    running = OidcProvider()
    yield running
    running.close()


@pytest.fixture(scope="module")
def house(provider, tmp_path_factory):
    running = Host(
        tmp_path_factory.mktemp("signon"),
        cold=True,
        NANOHOST_EXTRA_APPS="",
        OIDC_ISSUER=provider.issuer,
        OIDC_NAME="The House",
        OIDC_CLIENT_ID=CLIENT,
        OIDC_CLIENT_SECRET=SECRET,
        OIDC_ROLES="ou=bosses=admin, watchers=viewer, people=chat",
        OIDC_PRIVATE_CIDRS="127.0.0.0/8",
    )
    running.start()
    yield running
    running.kill()


@pytest.fixture(autouse=True)
def truthful(provider):
    provider.reset()
    yield
    provider.reset()


@pytest.fixture
def browser(house):
    with httpx2.Client(base_url=house.address, timeout=60, verify=PLAIN) as client:
        yield client


def begin(browser, **query):
    """Where the provider asks whoever wants to sign in."""
    answer = browser.get(START, params=query)
    assert answer.status_code == 302, answer.text
    return answer.headers["Location"]


def sign_in(browser, provider, *, subject, groups=("people",), **person):
    """Go there, agree, and come back."""
    query = provider.agree(begin(browser), sub=subject, groups=groups, **person)
    return browser.get(f"{BACK}?{query}")


def user_of(house, subject):
    rows = house.sql(
        "SELECT auth_user.* FROM auth_user JOIN socialaccount_socialaccount s ON s.user_id = auth_user.id"
        " WHERE s.uid = ?",
        subject,
    )
    return rows[0] if rows else None


def roles_of(house, user):
    rows = house.sql(
        "SELECT name FROM auth_group JOIN auth_user_groups g ON g.group_id = auth_group.id WHERE g.user_id = ?",
        user["id"],
    )
    return {row["name"] for row in rows}


def last_entries(house, number=1):
    return house.sql(f"SELECT * FROM accounts_auditentry ORDER BY id DESC LIMIT {number}")


def is_in(browser):
    return browser.get("/admin/").status_code == 200


def test_somebody_in_a_group_comes_in_with_its_role(house, provider, browser):
    answer = sign_in(
        browser, provider, subject="a-1", groups=["watchers"], preferred_username="anna", email="anna@example.org"
    )
    assert (answer.status_code, answer.headers["Location"]) == (302, "/admin/")
    assert is_in(browser)
    user = user_of(house, "a-1")
    assert (user["username"], user["email"], bool(user["is_staff"]), bool(user["is_superuser"])) == (
        *("anna", "anna@example.org"),
        *(True, False),
    )
    assert user["password"].startswith("!"), "nobody signs in by a password"
    assert roles_of(house, user) == {"viewer"}
    entry = last_entries(house)[0]
    assert (entry["action"], entry["actor"], entry["object_id"]) == ("signed_in", "user anna", str(user["id"]))
    actions = {(each["action"], each["actor"]) for each in last_entries(house, 4)}
    assert {("user.made", "OpenID Connect"), ("user.given", "OpenID Connect")} <= actions


def test_who_leaves_a_group_loses_its_role_at_the_next_sign_in(house, provider, browser):
    sign_in(browser, provider, subject="l-1", groups=["ou=bosses", "watchers"], preferred_username="lea")
    first = user_of(house, "l-1")
    assert roles_of(house, first) == {"admin", "viewer"}
    sign_in(browser, provider, subject="l-1", groups="watchers", preferred_username="another name")
    user = user_of(house, "l-1")
    assert (user["id"], user["username"]) == (first["id"], "lea")
    assert roles_of(house, user) == {"viewer"}
    with httpx2.Client(base_url=house.address, timeout=60, verify=PLAIN) as later:
        answer = sign_in(later, provider, subject="l-1", groups=["strangers"])
        assert answer.status_code == 403
        assert "none of your groups there has a role" in answer.text
        assert not is_in(later)
    user = user_of(house, "l-1")
    assert (roles_of(house, user), bool(user["is_staff"])) == (set(), False)
    entry = last_entries(house)[0]
    assert (entry["action"], entry["reason"]) == ("sign_in_failed", "no group with a role")


def test_who_has_the_chat_alone_gets_no_page_of_the_console(house, provider, browser):
    answer = sign_in(browser, provider, subject="c-1", preferred_username="carl")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/chat/")
    assert browser.get("/chat/").status_code == 200
    assert not is_in(browser)


def test_strangers_get_no_user_at_all(house, provider, browser):
    assert sign_in(browser, provider, subject="s-1", groups=[], preferred_username="stranger").status_code == 403
    assert user_of(house, "s-1") is None
    assert house.sql("SELECT id FROM auth_user WHERE username = 'stranger'") == []


def test_nobody_becomes_somebody_else_by_a_name_or_an_address(house, provider, browser):
    house.sql("UPDATE auth_user SET email = 'boss@example.org' WHERE username = 'admin'")
    boss = {"preferred_username": "admin", "email": "boss@example.org", "email_verified": True}
    sign_in(browser, provider, subject="b-1", groups=["watchers"], **boss)
    user = user_of(house, "b-1")
    assert (user["username"], bool(user["is_superuser"])) == ("admin-2", False)
    with httpx2.Client(base_url=house.address, timeout=60, verify=PLAIN) as other:
        sign_in(other, provider, subject="b-2", groups=["watchers"], **boss)
    assert user_of(house, "b-2")["id"] != user["id"]


def test_an_account_of_another_issuer_is_another_account(house, provider, browser):
    sign_in(browser, provider, subject="i-1", preferred_username="ida")
    before = user_of(house, "i-1")
    house.sql("UPDATE socialaccount_socialaccount SET provider = 'https://elsewhere.example' WHERE uid = 'i-1'")
    sign_in(browser, provider, subject="i-1", preferred_username="ida")
    assert house.sql("SELECT provider FROM socialaccount_socialaccount WHERE uid = 'i-1' ORDER BY id DESC LIMIT 1") == [
        {"provider": provider.issuer}
    ]
    rows = house.sql("SELECT user_id FROM socialaccount_socialaccount WHERE uid = 'i-1' ORDER BY id")
    assert [row["user_id"] == before["id"] for row in rows] == [True, False]


def test_who_is_deactivated_stays_out(house, provider, browser):
    sign_in(browser, provider, subject="d-1", preferred_username="dora")
    house.sql("UPDATE auth_user SET is_active = ? WHERE username = 'dora'", False)
    with httpx2.Client(base_url=house.address, timeout=60, verify=PLAIN) as later:
        assert sign_in(later, provider, subject="d-1").status_code == 403
        assert later.get("/chat/").status_code == 302


def test_groups_are_taken_from_the_user_info_where_the_token_has_none(house, provider, browser):
    provider.user_info = {"sub": "u-1", "groups": ["watchers"]}
    assert sign_in(browser, provider, subject="u-1", groups=None, preferred_username="uli").status_code == 302
    assert roles_of(house, user_of(house, "u-1")) == {"viewer"}
    provider.user_info = {"sub": "another", "groups": ["ou=bosses"]}
    assert sign_in(browser, provider, subject="u-1", groups=None).status_code == 403
    assert roles_of(house, user_of(house, "u-1")) == {"viewer"}


@pytest.mark.parametrize(
    "lie",
    [
        {"nonce": "of another sign-in"},
        {"nonce": None},
        {"aud": "another-client"},
        {"aud": [CLIENT, "another-client"], "azp": "another-client"},
        {"iss": "https://elsewhere.example"},
        {"exp": 1},
        {"exp": None},
        {"iat": 4_000_000_000},  # of a day in 2096
        {"sub": None},
        {"sub": ""},
        {"sub": "x" * 192},
        {"sub": 7},
    ],
    ids=str,
)
def test_an_id_token_that_says_what_it_must_not_lets_nobody_in(house, provider, browser, lie):
    provider.lies = lie
    answer = sign_in(browser, provider, subject="liar", groups=["ou=bosses"], preferred_username="liar")
    assert answer.status_code == 403
    assert not is_in(browser)
    assert house.sql("SELECT id FROM auth_user WHERE username = 'liar'") == []
    assert last_entries(house)[0]["action"] == "sign_in_failed"


@pytest.mark.parametrize("forgery", ["another key", "the client's secret", "none"])
def test_an_id_token_that_the_provider_has_not_signed_lets_nobody_in(house, provider, browser, forgery):
    if forgery == "another key":
        provider.signed_by = provider.another_key
    elif forgery == "the client's secret":
        provider.signed_by, provider.algorithm = SECRET, "HS256"
    else:
        provider.signed_by, provider.algorithm = None, "none"
    assert sign_in(browser, provider, subject="forger", groups=["ou=bosses"]).status_code == 403
    assert user_of(house, "forger") is None


def test_a_way_back_is_good_once_and_for_who_has_begun(house, provider, browser):
    query = provider.agree(begin(browser), sub="o-1", groups=["watchers"])
    with httpx2.Client(base_url=house.address, timeout=60, verify=PLAIN) as other:
        assert other.get(f"{BACK}?{query}").status_code == 403, "a browser that has not begun"
    assert browser.get(f"{BACK}?{query}").status_code == 302
    assert browser.get(f"{BACK}?{query}").status_code == 403
    for nonsense in ("", "?error=access_denied", "?state=x", "?code=x", "?code=x&state=%00"):
        assert browser.get(f"{BACK}{nonsense}").status_code == 403, nonsense


def test_people_are_sent_to_the_page_that_they_wanted_and_nowhere_else(house, provider, browser):
    query = provider.agree(begin(browser, next="/admin/queue/"), sub="n-1", groups=["watchers"])
    assert browser.get(f"{BACK}?{query}").headers["Location"] == "/admin/queue/"
    for address in ("https://elsewhere.example/", "//elsewhere.example/", "javascript:alert(1)"):
        query = provider.agree(begin(browser, next=address), sub="n-1", groups=["watchers"])
        assert browser.get(f"{BACK}?{query}").headers["Location"] == "/admin/"


def test_what_a_stranger_adds_to_the_address_is_not_passed_on(provider, browser):
    asked = parse_qs(urlsplit(begin(browser, process="connect", scope="all", auth_params="prompt=none&nonce=x")).query)
    assert set(asked["scope"][0].split()) == {"openid", "profile", "email"}
    assert "prompt" not in asked
    assert len(asked["nonce"][0]) > 20


@pytest.mark.parametrize(
    "changed",
    [
        {"issuer": "https://elsewhere.example"},
        {"jwks_uri": None},
        {"token_endpoint": "http://10.11.12.13/token"},
        {"jwks_uri": "http://169.254.169.254/keys"},
        {"token_endpoint": "http://127.0.0.1:22/token"},
    ],
    ids=str,
)
def test_the_provider_leads_to_no_other_place(house, provider, browser, changed):
    """By its configuration, as it is when people come back."""
    query = provider.agree(begin(browser), sub="p-1", groups=["watchers"])
    provider.configured = changed
    assert browser.get(f"{BACK}?{query}").status_code == 403
    assert last_entries(house)[0]["action"] == "sign_in_failed"
    assert user_of(house, "p-1") is None


def test_both_sign_in_pages_lead_there_and_keep_their_policy(house, provider, browser):
    console = browser.get("/admin/login/?next=/admin/queue/%3Fstate%3Dall")
    assert "Sign in with The House" in console.text
    assert f'href="{START}?next=%2Fadmin%2Fqueue%2F%3Fstate%3Dall"' in console.text
    chat = browser.get("/chat/sign-in/")
    assert f'href="{START}?next=%2Fchat%2F"' in chat.text
    refused = browser.get(BACK)
    for page in (console, chat, refused):
        assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    assert not re.search(r"<script(?![^>]*src=)[^>]*>\s*\S", refused.text)
    assert browser.post(START).status_code in (403, 405)


@pytest.mark.skipif(not chromium(), reason="there is no browser: install Debian's chromium, or set CHROMIUM")
@pytest.mark.embedded(reason="its pages are those of the other shape")
def test_everybody_can_use_the_pages_of_signing_in_wide_and_on_a_phone(house):
    """Light and dark: the chat's without any fault of axe's; the console's, and a refusal, without a grave one."""
    pages = {"/chat/sign-in/": EVERY_GRADE, "/admin/login/": GRAVE, BACK: GRAVE}
    with browser_of_a_person() as started:
        visitor = Visitor(started, house.address)
        for (address, grades), scheme, width in itertools.product(pages.items(), ("light", "dark"), WIDTHS):
            visitor.resize(width)
            visitor.page.emulate_media(color_scheme=scheme)
            visitor.page.goto(address)
            found = (visitor.faults(grades), visitor.is_too_wide(), visitor.strangers)
            assert found == ([], False, []), (address, scheme, width)
        visitor.context.close()


def test_no_page_of_allauth_is_there(house, provider, browser):
    sign_in(browser, provider, subject="w-1", groups=["ou=bosses"], preferred_username="wanda")
    for address in (
        *("/accounts/", "/accounts/login/", "/accounts/signup/", "/accounts/email/", "/accounts/3rdparty/"),
        *("/admin/account/emailaddress/", "/admin/socialaccount/socialapp/", "/admin/socialaccount/socialaccount/"),
        f"{START}openid_connect/login/",
    ):
        assert browser.get(address).status_code == 404, address


def test_nothing_of_what_a_provider_says_is_kept_but_what_is_needed(house, provider, browser):
    sign_in(browser, provider, subject="k-1", preferred_username="kim", picture="https://x.example/kim", phone="555")
    stored = house.everything_stored()
    assert "an access token" not in stored
    assert "x.example/kim" not in stored
    (row,) = house.sql("SELECT extra_data FROM socialaccount_socialaccount WHERE uid = 'k-1'")
    kept = row["extra_data"] if isinstance(row["extra_data"], dict) else json.loads(row["extra_data"])
    assert kept == {"preferred_username": "kim", "groups": ["people"]}
    assert SECRET not in house.log_text()
