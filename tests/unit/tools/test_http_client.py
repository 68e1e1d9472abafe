"""The client for outbound requests: which addresses it takes for public, how it reads URLs, and where it gets to."""

import gzip
import json
import random
import subprocess
import sys
import time
import zlib
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import quote

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import ip_addresses

from tests.support.hosts import ROOT
from tests.support.network.inside import PORTS, UNREACHABLE
from tests.support.network.lab import Lab, answer, need_a_lab, redirect, way_in
from tests.support.network.special import BLOCKS, IPV4, IPV6, hiding, spellings
from tools.outbound import urls
from tools.outbound.addresses import PUBLIC, denial_reason, networks, policy_of, port_numbers
from tools.outbound.bodies import decoded, text_of
from tools.outbound.client import NotFetched, fetch
from tools.outbound.urls import Refusal

pytestmark = pytest.mark.shapeless(reason="outbound requests touch no row")

PUBLIC_IPV4, PUBLIC_IPV6 = "93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"


# --- addresses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", [*IPV4, *IPV6])
def test_a_special_address_is_refused(address):
    assert denial_reason(ip_address(address))


@pytest.mark.parametrize("address", IPV4)
def test_a_special_address_is_refused_wherever_it_is_hidden(address):
    assert [way for way, hidden in hiding(IPv4Address(address)).items() if not denial_reason(hidden)] == []


OUTERMOST_PUBLIC = ["8.8.8.8", "1.1.1.1", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "223.255.255.1"]
PUBLIC_OF_IPV6 = ["2606:4700::1111", "2a00:1450:4001:81b::200e", "2001:200::1", "2001:4860:4860::8888", "2400::1"]


@pytest.mark.parametrize("address", [*OUTERMOST_PUBLIC, *PUBLIC_OF_IPV6])
def test_a_public_address_is_taken(address):
    assert denial_reason(ip_address(address)) is None


def test_a_public_address_is_taken_through_a_gateway_of_today_and_through_no_other():
    taken = [way for way, hidden in hiding(IPv4Address("8.8.8.8")).items() if not denial_reason(hidden)]
    assert taken == ["mapped", "NAT64", "ISATAP", "ISATAP, unique"]


def test_the_reason_names_what_is_hidden():
    why = denial_reason(ip_address("64:ff9b::169.254.169.254"))
    assert why == (
        "carries 169.254.169.254, which is never reached (169.254.0.0/16, link-local, where clouds keep metadata)"
    )


@given(st.sampled_from(BLOCKS).flatmap(lambda block: ip_addresses(network=block)))
def test_all_of_a_special_block_is_refused(address):
    assert denial_reason(address)


@given(ip_addresses())
def test_what_is_taken_is_global_to_python_too(address):
    if denial_reason(address) is None:
        assert address.is_global
        assert not address.is_multicast


@given(ip_addresses(v=4))
def test_hidden_or_not_an_address_is_judged_alike(address):
    """Where a gateway is of today; what is sent to other gateways is refused whatever it hides."""
    for way, hidden in hiding(address).items():
        if denial_reason(address) or way in ("compatible", "translated", "6to4", "NAT64 of local use", "Teredo"):
            assert denial_reason(hidden), way
        elif way in ("mapped", "NAT64"):
            assert denial_reason(hidden) is None, way


def test_an_intranet_that_was_opened_is_reached_and_no_other():
    opened = networks(["10.20.0.0/16", "fd12:3456::/32"])
    for address in ("10.20.0.1", "::ffff:10.20.0.1", "fd12:3456::1"):
        assert denial_reason(ip_address(address), private=opened) is None
    for address in ("10.21.0.1", "127.0.0.1", "fd12:3457::1", "64:ff9b::10.20.0.1", "2002:0a14:1::"):
        assert denial_reason(ip_address(address), private=opened), address


METADATA = [
    *("169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192", "168.63.129.16", "::ffff:169.254.169.254"),
    *("169.254.170.23", "169.254.0.23", "169.254.1.1", "::ffff:168.63.129.16"),
    *("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42", "fe80::a9fe:a9fe", "fd00:a9fe:a9fe::1"),
    *("fd00:c1::a9fe:a9fe", "fd00:100::100:200"),
]
# As a gateway within an intranet would have it: a NAT64 with a prefix of the intranet's own, and ISATAP.
METADATA_IN_AN_INTRANET = [
    *("fd12:64::169.254.169.254", "fd12:64::100.100.100.200", "fd12:64::192.0.0.192", "fd12:64::168.63.129.16"),
    *("fd12::5efe:169.254.169.254", "fd12::200:5efe:169.254.170.2"),
    # By RFC 6052 after 32, 40, 48, 56 and 64 bits, where the ninth byte is passed over.
    *("fd12:64:a9fe:a9fe::", "fd12:64:a9:fea9:fe::", "fd12:64:0:a9fe:a9:fe00::", "fd12:64:0:a9:fe:a9fe::"),
    *("fd12:64::a9:fea9:fe00:0", "fd12:64:6464:64c8::", "fd12:64::c0:0:c000:0", "fd12:64:0:a8:3f:8110::1"),
    "fd12:64::ffa9:fea9:fe00:1",  # with what is to be zero by it, and that not every gateway looks at
]
# The same bytes where no gateway looks for them, and what is not metadata where it does.
OF_AN_INTRANET = ("fd12:64::a9fe:a9fe:0:0", "fd12:64:a14:1::", "fd12:64::a14:1")


@pytest.mark.parametrize("address", [*METADATA, *METADATA_IN_AN_INTRANET])
def test_metadata_stays_refused_whatever_is_opened(address):
    opened = networks(["10.0.0.0/8", "100.64.0.0/10", "198.18.0.0/15", "fc00::/7", "127.0.0.0/8"])
    assert "is never reached" in denial_reason(ip_address(address), private=opened)
    for hidden in hiding(IPv4Address(address)).values() if ":" not in address else ():
        assert denial_reason(hidden, private=opened), hidden


@pytest.mark.parametrize("address", OF_AN_INTRANET)
def test_what_a_gateway_does_not_take_for_metadata_is_reached(address):
    assert denial_reason(ip_address(address), private=networks(["fc00::/7"])) is None


@pytest.mark.parametrize(
    ("cidr", "says"),
    [
        ("10.0.0.0/33", "is no network"),
        ("10.0.0.1/8", "has host bits set"),
        ("intranet", "is no network"),
        ("10.0.0.0-10.0.0.9", "is no network"),
        ("0.0.0.0/0", "is not in a private network"),
        ("8.8.8.0/24", "is not in a private network"),
        ("172.0.0.0/8", "is not in a private network"),
        ("::/0", "is not in a private network"),
        ("224.0.0.0/4", "is not in a private network"),
        ("169.254.169.254/32", "is never opened"),
        ("fe80::/64", "is never opened"),
        ("100.100.100.200", "is never opened"),
        ("fd00:ec2::/64", "is never opened"),
        ("fd00:c1::a9fe:a9fe", "is never opened"),
        ("fd00:100::100:200", "is never opened"),
    ],
)
def test_what_cannot_be_opened_is_said(cidr, says):
    with pytest.raises(ValueError, match=says):
        networks([cidr])


@pytest.mark.parametrize("words", [[], ["0"], ["65536"], ["http"], ["80-90"], ["８０"], ["-1"], ["80", ""]])
def test_what_is_no_port_is_said(words):
    with pytest.raises(ValueError, match="no port"):
        port_numbers(words)


def test_a_policy_is_made_of_the_settings_words():
    made = policy_of(private_cidrs=["10.0.0.0/8"], ports=["443", "8443"])
    assert (made.ports, [str(network) for network in made.private]) == ({443, 8443}, ["10.0.0.0/8"])


# --- URLs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("", "scheme"),
        ("example.org", "scheme"),
        ("//example.org/", "scheme"),
        ("ftp://example.org/", "scheme"),
        ("file:///etc/passwd", "scheme"),
        ("gopher://example.org:70/_x", "scheme"),
        ("javascript:alert(1)", "scheme"),
        ("httpx://example.org/", "scheme"),
        ("http+unix://%2Fvar%2Frun%2Fdocker.sock/", "scheme"),
        ("http:/example.org/", "url"),
        ("http:example.org", "url"),
        ("http:///example.org/", "url"),
        ("http://", "url"),
        ("http://?x", "url"),
        ("http://example.org\\@127.0.0.1/", "url"),
        ("http:\\\\example.org\\", "url"),
        ("http://example.org/\r\nHost: x", "url"),
        ("http://exa\tmple.org/", "url"),
        ("http://example.org/\x00", "url"),
        ("http://example.org/\x7f", "url"),
        ("http://example.org/\udcff", "url"),
        ("\x01http://example.org/", "url"),
        ("http://example.org/" + "a" * 8192, "url"),
        ("http://example.org/" + "ü" * 4000, "url"),
        ("http://user@example.org/", "userinfo"),
        ("http://user:pass@example.org/", "userinfo"),
        ("http://@example.org/", "userinfo"),
        ("http://example.org:80@127.0.0.1/", "userinfo"),
        ("http://exa mple.org/", "host"),
        ("http://exam%70le.org/", "host"),
        ("http://127.0.0.1%2f.example.org/", "host"),
        ("http://example..org/", "host"),
        ("http://.example.org/", "host"),
        ("http://example.org../", "host"),
        ("http://./", "host"),
        ("http://" + "a" * 64 + ".org/", "host"),
        ("http://" + "a." * 127 + "aa/", "host"),
        ("http://exa<mple.org/", "host"),
        ("http://exa,mple.org/", "host"),
        ("http://ex\u200bample..org/", "host"),
        ("http://\u2488.example/", "host"),
        ("http://example.org／x@127.0.0.1/", "userinfo"),
        ("http://127.0.0.1／.example.org/", "host"),
        ("http://user＠127.0.0.1/", "host"),
        ("http://127.0.0.1：80/", "host"),
        ("http://😀／.example/", "host"),
        ("http://😀_.example/", "host"),
        ("http://a\u200d😀.example/", "host"),
        ("http://\u0301😀.example/", "host"),
        ("http://-😀.example/", "host"),
        ("http://א😀1a.example/", "host"),
        ("http://1∕😀.example/", "host"),
        ("http://" + "😀" * 70 + ".example/", "host"),
        ("http://127.0.0.1％2f/", "host"),
        ("http://［::1］/", "host"),
        ("http://[::1/", "host"),
        ("http://::1/", "host"),
        ("http://[::1%25lo]/", "host"),
        ("http://[fe80::1%lo]/", "host"),
        ("http://[v1.x]/", "host"),
        ("http://[127.0.0.1]/", "host"),
        ("http://[::1]x/", "host"),
        ("http://1/", "host"),
        ("http://example.1/", "host"),
        ("http://1.2.3.4.5/", "host"),
        ("http://1.2.3.256/", "host"),
        ("http://0x/", "host"),
        ("http://example.org:0/", "port"),
        ("http://example.org:65536/", "port"),
        ("http://example.org:080x/", "port"),
        ("http://example.org:-80/", "port"),
        ("http://example.org:８０/", "port"),
        ("http://example.org:80:80/", "port"),
    ],
)
def test_a_url_that_could_mean_two_things_is_refused(url, rule):
    with pytest.raises(Refusal) as refused:
        urls.parse(url)
    assert refused.value.rule == f"http:{rule}"


@pytest.mark.parametrize("spelled", spellings(IPv4Address("127.0.0.1")) + spellings(IPv4Address("169.254.169.254")))
def test_a_spelling_of_a_special_address_is_refused_or_is_that_address(spelled):
    with pytest.raises(NotFetched) as refused:
        fetch(f"http://{spelled}/", policy=PUBLIC)
    assert refused.value.rule in ("http:host", "http:address")


@pytest.mark.parametrize(
    ("url", "means"),
    [
        ("http://example.org", "http://example.org/"),
        ("  HTTP://EXAMPLE.org:80/A?b#c ", "http://example.org/A?b"),
        ("https://example.org:443/", "https://example.org/"),
        ("https://example.org:80/", "https://example.org:80/"),
        ("http://example.org:/", "http://example.org/"),
        ("http://example.org./x", "http://example.org/x"),
        ("http://example.org?q=1/2", "http://example.org/?q=1/2"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://faß.example/", "http://xn--fa-hia.example/"),
        ("http://ＥＸＡＭＰＬＥ．org/", "http://example.org/"),
        ("http://例え.テスト/", "http://xn--r8jz45g.xn--zckzah/"),
        ("http://xn--bcher-kva.example/", "http://xn--bcher-kva.example/"),
        ("http://a_b.example/", "http://a_b.example/"),
        ("http://😀.example/", "http://xn--e28h.example/"),
        ("http://i❤️.Example/", "http://xn--i-7iq.example/"),
        ("http://👍🏽．bücher。example:80/", "http://xn--on8h5e.xn--bcher-kva.example/"),
        ("http://①②.😀.example/", "http://12.xn--e28h.example/"),
        ("http://example.org/ä ö?ü=ß", "http://example.org/%C3%A4%20%C3%B6?%C3%BC=%C3%9F"),
        ("http://example.org/a%20b%zz|[x]{y}", "http://example.org/a%20b%zz%7C[x]%7By%7D"),
        ("http://example.org/a/../b//c;d=1,2", "http://example.org/a/../b//c;d=1,2"),
        ("http://[2606:4700:0000::1111]:80/", "http://[2606:4700::1111]/"),
        ("http://[::ffff:8.8.8.8]/", "http://[::ffff:808:808]/"),
        ("http://8.8.8.8./", "http://8.8.8.8/"),
        ("http://１.1.1.1/", "http://1.1.1.1/"),
        ("http://example.org/?u=http://a@b/", "http://example.org/?u=http://a@b/"),
        ("http://127.0.0.1#@example.org/", "http://127.0.0.1/"),
    ],
)
def test_a_url_has_one_form(url, means):
    target = urls.parse(url)
    assert str(target) in (means, means.replace("[::ffff:808:808]", "[::ffff:8.8.8.8]"))  # as Python's version has it
    assert urls.parse(str(target)) == target


@given(st.text(max_size=60) | st.from_regex(r"https?://[^/]{0,20}[:@\[\]%.0-9a-fx]{0,10}(/.*)?", fullmatch=True))
def test_whatever_it_is_a_url_is_refused_or_has_one_form(text):
    try:
        target = urls.parse(text)
    except Refusal:
        return
    assert urls.parse(str(target)) == target
    assert target.path.isascii()
    assert target.path.isprintable()


def test_an_error_shows_no_password():
    for url in (
        "http://user:pass-word@example.org/x",
        "http://a:b@pass-word@h/",
        "http:\\\\x:pass-word@h/",
        "//u:pass-word@h",
    ):
        with pytest.raises(NotFetched) as refused:
            fetch(url, policy=PUBLIC)
        assert "pass-word" not in str(refused.value) + refused.value.url


@pytest.mark.parametrize("character", ["\\", "/", "a", "@", ":", " ", "ü"])
def test_a_long_url_is_refused_in_little_time(character):
    began = time.process_time()
    for begins in ("", "http://"):
        with pytest.raises(NotFetched):
            fetch(begins + character * 60_000, policy=PUBLIC)
    assert time.process_time() - began < 1


def test_a_refusal_names_its_rule_the_hop_and_what_is_wrong():
    with pytest.raises(NotFetched) as refused:
        fetch("http://[::ffff:10.0.0.1]/admin", policy=PUBLIC)
    assert (refused.value.rule, refused.value.hop) == ("http:address", 0)
    assert str(refused.value).startswith("http:address: http://[::ffff:")
    assert str(refused.value).endswith("is not public (10.0.0.0/8, private use), so it is not fetched.")


# --- headers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "x"},
        {"hOST": "x"},
        {"Connection": "keep-alive"},
        {"Content-Length": "5"},
        {"Transfer-Encoding": "chunked"},
        {"TE": "trailers"},
        {"Trailer": "x"},
        {"Upgrade": "h2c"},
        {"Keep-Alive": "x"},
        {"Expect": "100-continue"},
        {"Accept-Encoding": "zstd"},
        {"Proxy-Authorization": "Basic x"},
        {"Proxy-Anything": "x"},
        {"X": "a\r\nHost: b"},
        {"X": "a\nb"},
        {"X": "a\x00b"},
        {"X": "ü"},
        {"X Y": "a"},
        {"X:": "a"},
        {"": "a"},
        {"Ü": "a"},
        {"X": "a", "x": "b"},
        {"X": "a" * 8193},
        {f"X-{number}": "a" for number in range(33)},
    ],
)
def test_a_header_that_is_not_the_callers_or_cannot_be_sent_is_refused(headers):
    with pytest.raises(NotFetched) as refused:
        fetch("http://8.8.8.8/", headers=headers, policy=PUBLIC)
    assert refused.value.rule == "http:header"


# --- bodies ------------------------------------------------------------------------------------------------------


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


PACKERS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "Deflate": raw_deflate,
    "br": brotli.compress,
    "identity": bytes,
    "": bytes,
    "gzip, gzip": lambda body: gzip.compress(gzip.compress(body)),
    "deflate, identity, gzip": lambda body: gzip.compress(zlib.compress(body)),
}


def unpack(packed: bytes, coding: str, *, step: int = 7, most: int = 1 << 20) -> bytes:
    chunks = (packed[at : at + step] for at in range(0, len(packed), step))
    return b"".join(decoded(chunks, coding, most=most))


@pytest.mark.parametrize("coding", PACKERS)
@pytest.mark.parametrize("body", [b"x", b"hello " * 30_000, random.Random(1).randbytes(100_000)], ids=len)
@pytest.mark.parametrize("step", [1, 4096, 1 << 20])
def test_a_coded_body_is_what_it_was(coding, body, step):
    assert unpack(PACKERS[coding](body), coding, step=step) == body


@given(st.binary(max_size=5000), st.sampled_from(sorted(PACKERS)), st.integers(1, 6000))
def test_a_coded_body_is_what_it_was_however_it_arrives(body, coding, step):
    assert unpack(PACKERS[coding](body), coding, step=step) == body


def test_members_of_a_gzip_are_one_body_and_rubbish_behind_it_is_dropped():
    packed = gzip.compress(b"one ") + gzip.compress(b"two")
    for step in (1, 3, 1000):
        assert unpack(packed + b"\0\0\0", "gzip", step=step) == b"one two"
        assert unpack(zlib.compress(b"one") + b"rubbish", "deflate", step=step) == b"one"


def test_no_body_needs_no_decoding():
    assert all(unpack(b"", coding) == b"" for coding in ("gzip", "deflate", "br"))


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
@pytest.mark.parametrize(
    "damage", [lambda packed: b"<html>" + packed, lambda packed: packed[:-9]], ids=["other", "short"]
)
def test_a_body_that_is_not_what_it_says_is_refused(coding, damage):
    with pytest.raises(Refusal, match=coding) as refused:
        unpack(damage(PACKERS[coding](random.Random(1).randbytes(1000))), coding)
    assert refused.value.rule == "http:encoding"


@pytest.mark.parametrize(
    "coding", ["zstd", "compress", "gzip, gzip, gzip", "br, br", "gzip, br", "br, deflate", "gzip;q=1", "aes128gcm"]
)
def test_a_coding_that_is_unknown_or_one_too_many_is_refused(coding):
    with pytest.raises(Refusal) as refused:
        unpack(b"x", coding)
    assert refused.value.rule == "http:encoding"


def test_a_coding_within_a_coding_is_bounded_too():
    empty_blocks = b"\0\0\0\xff\xff" * 1_000_000  # deflate that says nothing, at any length
    with pytest.raises(Refusal) as refused:
        unpack(gzip.compress(empty_blocks), "deflate, gzip", step=4096, most=1000)
    assert refused.value.rule == "http:size"


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "gzip, gzip", "deflate, gzip"])
def test_no_step_of_decoding_makes_much(coding):
    packed = bytes(50_000_000)
    for each in coding.split(", "):
        packed = PACKERS[each](packed) if each != "br" else brotli.compress(packed, quality=1)
    pieces = decoded([packed], coding, most=1 << 20)
    assert max(len(next(pieces)) for _ in range(10)) <= 128 * 1024


UMLAUTS = "Grüße, 日本語"


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        ("Grüße".encode(), "text/plain", "Grüße"),
        ("Grüße".encode(), "text/plain; charset=utf-8", "Grüße"),
        ("Grüße".encode("latin-1"), 'text/plain; charset="ISO-8859-1"', "Grüße"),
        ("“Grüße” €".encode("cp1252"), "text/html;charset=iso-8859-1", "“Grüße” €"),
        ("Grüße".encode("utf-16"), "text/plain", "Grüße"),
        ("Grüße".encode("utf-16-le"), "text/plain; charset=utf-16le", "Grüße"),
        ("Grüße".encode("utf-16-be"), "text/plain; charset=UTF-16BE", "Grüße"),
        ("Grüße".encode("utf-8-sig"), "text/plain; charset=iso-8859-1", "Grüße"),
        ("Привет".encode("koi8-r"), "text/plain; charset=KOI8-R", "Привет"),
        ("Привет".encode("cp1251"), "text/plain; charset=windows-1251", "Привет"),
        ("日本語".encode("shift_jis"), "text/plain; charset=Shift_JIS", "日本語"),
        ("日本語".encode("euc-jp"), "text/plain; charset=x-euc-jp", "日本語"),
        ("日本語".encode("iso-2022-jp"), "text/plain; charset=iso-2022-jp", "日本語"),
        ("中文".encode("gb18030"), "text/plain; charset=gb2312", "中文"),
        ("中文".encode("big5"), "text/plain; charset=big5", "中文"),
        ("한국어".encode("euc-kr"), "text/plain; charset=euc-kr", "한국어"),
        ('<meta charset="koi8-r">Привет'.encode("koi8-r"), "text/html", '<meta charset="koi8-r">Привет'),
        (
            b"<meta http-equiv=Content-Type content='text/html; charset=windows-1252'>\x80",
            "text/html",
            "<meta http-equiv=Content-Type content='text/html; charset=windows-1252'>€",
        ),
        ("<meta charset=utf-16>ü".encode(), "text/html", "<meta charset=utf-16>ü"),
        (
            b"<?xml version='1.0' encoding='iso-8859-1'?>\xfc",
            "text/xml",
            "<?xml version='1.0' encoding='iso-8859-1'?>ü",
        ),
        (b"\xfc", "text/html", "�"),
        (b"\xfc+AGE-", "text/plain; charset=utf-7", "�+AGE-"),
        (b"xn--bcher-kva", "text/plain; charset=punycode", "xn--bcher-kva"),
        (b"\\x41", "text/plain; charset=unicode_escape", "\\x41"),
        (b"41", "text/plain; charset=hex", "41"),
        (b"uryyb", "text/plain; charset=rot13", "uryyb"),
        (b"a", "text/plain; charset=../../x", "a"),
        (b"a", "text/plain; charset=antigravity", "a"),
        (b'{"a": 1}', "application/json", '{"a": 1}'),
        (b"{}", "application/problem+json", "{}"),
        (b"a,b", "application/x-nobody-knows", "a,b"),
        (b"plain", "", "plain"),
        ("Grüß".encode()[:-1], "", "Grü"),
        (b"", "image/png", ""),
        (b"\x89PNG\r\n\x1a\n\x00", "image/png", None),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3", "application/pdf", None),
        (b"GIF89a\x01\x00", "text/html", None),
        (b"\xfd\xfc\xfb", "application/octet-stream", None),
    ],
)
def test_a_body_is_read_in_its_charset_or_is_no_text(body, content_type, text):
    assert text_of(body, content_type) == text


def test_a_charset_is_looked_up_without_an_import():
    code = "import sys; from tools.outbound.bodies import text_of; text_of(b'x', 'text/plain; charset=idna')"
    code += "; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "encodings.idna" not in ran.stdout.split()


def test_the_client_needs_no_django():
    code = "import sys, tools.outbound.client; assert not any(name.split('.')[0] == 'django' for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# --- where requests get to: in the lab ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab_of_this_file(tmp_path_factory):
    need_a_lab()
    lab = Lab(tmp_path_factory.mktemp("lab"))
    lab.name("public.test", a=[PUBLIC_IPV4], aaaa=[PUBLIC_IPV6])
    lab.name("other.test", a=["93.184.216.35"])
    lab.fetch("https://public.test/")  # certificates are read once, and cost memory
    yield lab
    lab.close()


@pytest.fixture
def lab(lab_of_this_file):
    """The lab, with its counters at zero."""
    lab_of_this_file.connections()
    lab_of_this_file.requests()
    return lab_of_this_file


@pytest.mark.parametrize(("ci", "ends"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_where_there_is_no_lab_ci_fails_and_others_are_told(monkeypatch, ci, ends):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PATH", "")  # there is no unshare on it, and no ip
    monkeypatch.setattr("tests.support.network.lab.way_in", way_in.__wrapped__)  # it remembers what it found
    with pytest.raises(ends, match="NOT TESTED: where outbound requests get to"):
        need_a_lab()


# Each of them, in each form in which it could be given or hidden.
FORBIDDEN = [ip_address(each) for each in (*IPV4, *IPV6)]
FORBIDDEN += [
    hidden
    for each in ("10.0.0.1", "127.0.0.1", "169.254.169.254", "192.168.0.1")
    for way, hidden in hiding(IPv4Address(each)).items()
]
# What no TCP connection can be made to at all.
NO_TCP = ("0.", "224.", "239.", "24", "25", "::", "fe8", "feb", "ff")


def host_of(address: IPv4Address | IPv6Address) -> str:
    return f"[{address}]" if address.version == 6 else str(address)


def test_the_lab_would_have_seen_it(lab):
    """A plain client gets to all of them, but for those that no client can connect to."""
    unreached = [str(each) for each in FORBIDDEN if not lab.connect(str(each))]
    assert [each for each in unreached if not each.startswith(NO_TCP)] == []
    assert len(lab.connections()) == len(FORBIDDEN) - len(unreached) > 80
    assert lab.connect("127.0.0.1", 6379)
    assert lab.connections() == ["127.0.0.1 6379"]


def refused_without_a_connection(lab: Lab, asked: list[str], *, allowed: tuple[str, ...] = ()) -> None:
    """Each URL is refused for where it leads, and nothing was connected to but what is allowed."""
    rules = {url: lab.fetch(url).get("rule") for url in asked}
    assert set(lab.connections()) <= set(allowed)
    assert {url: rule for url, rule in rules.items() if rule not in ("http:address", "http:host")} == {}


def test_a_forbidden_address_is_not_reached_by_itself(lab):
    refused_without_a_connection(lab, [f"http://{host_of(each)}/" for each in FORBIDDEN])


def test_a_forbidden_address_is_not_reached_by_any_spelling(lab):
    hosts = [host for each in FORBIDDEN if each.version == 4 for host in spellings(each)]
    hosts += [f"[{each.exploded}]" for each in FORBIDDEN if each.version == 6]
    refused_without_a_connection(lab, [f"http://{host}/" for host in hosts])


def test_a_forbidden_address_is_not_reached_by_a_redirect(lab):
    pages = [
        lab.page(f"http://public.test/to/{number}", redirect(f"http://{host_of(each)}/latest/meta-data/"))
        for number, each in enumerate(FORBIDDEN)
    ]
    refused_without_a_connection(lab, pages, allowed=(f"{PUBLIC_IPV4} 80", f"{PUBLIC_IPV6} 80"))
    assert lab.fetch(pages[0])["hop"] == 1


def test_a_forbidden_address_is_not_reached_by_a_name(lab):
    for number, each in enumerate(FORBIDDEN):
        record = {"a" if each.version == 4 else "aaaa": [str(each)]}
        lab.name(f"n{number}.test", **record)
        lab.name(f"c{number}.test", cname=f"n{number}.test")
    refused_without_a_connection(lab, [f"http://n{number}.test/" for number in range(len(FORBIDDEN))])
    refused_without_a_connection(lab, [f"http://c{number}.test/" for number in range(len(FORBIDDEN))])


@pytest.mark.parametrize("order", ["before", "after", "between"])
def test_a_forbidden_address_is_not_reached_nor_another_where_a_name_has_both(lab, order):
    for number, each in enumerate(FORBIDDEN):
        public = [PUBLIC_IPV4, "93.184.216.35"] if each.version == 4 else [PUBLIC_IPV6, "2606:2800::35"]
        public.insert({"before": 0, "after": 2, "between": 1}[order], str(each))
        lab.name(f"m{number}.test", **{"a" if each.version == 4 else "aaaa": public})
    refused_without_a_connection(lab, [f"http://m{number}.test/" for number in range(len(FORBIDDEN))])


def test_a_name_that_is_public_in_ipv4_alone_is_refused(lab):
    lab.name("halved.test", a=[PUBLIC_IPV4], aaaa=["fd00::1"])
    refused_without_a_connection(lab, ["http://halved.test/"])


def test_a_name_that_changes_its_address_gains_nothing(lab):
    """It is resolved once: what it means a moment later counts for the next request, which checks it anew."""
    asked = []
    for number, each in enumerate(FORBIDDEN):
        kind, first = ("a", PUBLIC_IPV4) if each.version == 4 else ("aaaa", PUBLIC_IPV6)
        lab.name(f"r{number}.test", **{kind: [[first], [str(each)]]})
        asked.append(f"{'https' if number % 8 == 0 else 'http'}://r{number}.test/")
    assert {lab.fetch(url).get("status") for url in asked} == {200}
    assert {each.split(" ")[0] for each in lab.connections()} == {PUBLIC_IPV4, PUBLIC_IPV6}
    refused_without_a_connection(lab, asked)


def test_a_name_that_changes_its_address_between_hops_is_refused(lab):
    lab.name("turns.test", a=[[PUBLIC_IPV4], ["10.0.0.1"]])
    lab.page("http://turns.test/", redirect("/again"))
    told = lab.fetch("http://turns.test/")
    assert (told["rule"], told["hop"], told["url"]) == ("http:address", 1, "http://turns.test/again")
    assert lab.connections() == [f"{PUBLIC_IPV4} 80"]


@pytest.mark.parametrize("port", [port for port in PORTS if port not in (80, 443)])
def test_no_other_port_is_reached(lab, port):
    lab.page("http://public.test/elsewhere", redirect(f"http://public.test:{port}/"))
    assert lab.fetch(f"http://public.test:{port}/")["rule"] == "http:port"
    assert (lab.fetch("http://public.test/elsewhere")["rule"]) == "http:port"
    assert [each for each in lab.connections() if not each.endswith(" 80")] == []


def test_an_intranet_is_reached_where_the_settings_open_it(lab):
    lab.name("wiki.test", a=["10.20.0.5"])
    lab.page("http://wiki.test:8080/", answer("the wiki"))
    opened = {"private": ["10.20.0.0/16"], "ports": ["80", "8080"]}
    assert lab.fetch("http://wiki.test:8080/", **opened)["body"] == "the wiki"
    assert lab.connections() == ["10.20.0.5 8080"]
    for url in ("http://10.21.0.5/", "http://169.254.169.254/", "http://[64:ff9b::10.20.0.5]/"):
        assert lab.fetch(url, **opened)["rule"] == "http:address"
    assert lab.connections() == []


def test_proxies_of_the_environment_are_not_used(lab):
    """The lab's client runs with HTTP_PROXY, HTTPS_PROXY and ALL_PROXY set to its canary."""
    assert lab.fetch("http://public.test/")["status"] == 200
    assert lab.fetch("https://public.test/")["status"] == 200
    assert [each for each in lab.connections() if each.endswith(" 3128")] == []


# --- redirects ---------------------------------------------------------------------------------------------------


def chain(lab: Lab, length: int) -> str:
    """The first of so many redirects, each to the next, the last to a page."""
    for number in range(length):
        lab.page(
            f"http://public.test/{length}/{number}",
            redirect(f"{number + 1}", status=(301, 302, 303, 307, 308)[number % 5]),
        )
    lab.page(f"http://public.test/{length}/{length}", answer("the end"))
    return f"http://public.test/{length}/0"


def test_five_redirects_are_followed_and_a_sixth_is_not(lab):
    told = lab.fetch(chain(lab, 5))
    assert (told["body"], told["url"]) == ("the end", "http://public.test/5/5")
    told = lab.fetch(chain(lab, 6))
    assert (told["rule"], told["hop"]) == ("http:redirects", 6)
    assert not any(head.startswith("GET /6/6 ") for head in lab.requests())


@pytest.mark.parametrize(
    ("location", "rule"),
    [
        ("file:///etc/passwd", "http:scheme"),
        ("ftp://public.test/", "http:scheme"),
        ("http://user:pass-word@public.test/", "http:userinfo"),
        ("//127.0.0.1/", "http:address"),
        ("//127.1/", "http:host"),
        ("http://public.test\\@127.0.0.1/", "http:url"),
        ("http:///127.0.0.1/", "http:url"),
        ("http://[::1", "http:host"),
        ("//[::1/", "http:url"),
        ("//public.test:22/", "http:port"),
        ("http://nowhere.test/", "http:name"),
    ],
)
def test_a_redirect_is_held_to_every_rule(lab, location, rule):
    url = lab.page("http://public.test/away", redirect(location))
    told = lab.fetch(url)
    assert (told["rule"], told["hop"]) == (rule, 1)
    assert "pass-word" not in told["message"]
    assert len(lab.connections()) == 1


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/x y?ü", "/x%20y?%C3%BC"),
        ("?q", "/a/b?q"),
        ("../c", "/c"),
        ("//public.test/d#e", "/d"),
        ("HTTP://PUBLIC.test/f", "/f"),
    ],
)
def test_a_redirect_may_be_relative_and_written_as_people_write(lab, location, path):
    lab.page(f"http://public.test{path}", answer("there"))
    told = lab.fetch(lab.page("http://public.test/a/b", redirect(location)))
    assert (told["body"], told["url"]) == ("there", f"http://public.test{path}")


def test_a_redirect_without_a_place_and_other_statuses_are_results(lab):
    for status in (302, 304, 300, 404, 500, 503):
        url = lab.page(f"http://public.test/{status}", answer("as it is", status=status))
        assert lab.fetch(url)["status"] == status


def test_a_redirect_of_another_method_is_its_answer(lab):
    url = lab.page("http://public.test/hook", redirect("/elsewhere"))
    assert lab.fetch(url, method="POST", body="{}", headers={"Content-Type": "application/json"})["status"] == 302
    (head,) = lab.requests()
    assert head.startswith("POST /hook HTTP/1.1")
    assert "Content-Length: 2" in head


CREDENTIALS = {"Authorization": "Bearer x", "Cookie": "a=b", "X-Api-Key": "k", "Private-Token": "t"}


@pytest.mark.parametrize(
    "elsewhere",
    [
        "http://other.test/",
        "https://public.test/",
        "http://public.test:8080/",
        "http://sub.public.test/",
        "//other.test/",
    ],
)
def test_credentials_do_not_go_to_another_origin_nor_come_back(lab, elsewhere):
    lab.name("sub.public.test", a=[PUBLIC_IPV4])
    lab.page("http://public.test/first", redirect(f"{elsewhere}second"))
    lab.page(f"{'http:' if elsewhere[0] == '/' else ''}{elsewhere}second", redirect("http://public.test/third"))
    harmless = {"Accept-Language": "de", "User-Agent": "me"}
    told = lab.fetch("http://public.test/first", headers=CREDENTIALS | harmless, ports=["80", "443", "8080"])
    assert told["url"] == "http://public.test/third"
    first, *others = lab.requests()
    assert len(others) == 2
    assert all(f"{name}: {value}" in first for name, value in CREDENTIALS.items())
    assert not any(name in head for head in others for name in CREDENTIALS)
    assert all("Accept-Language: de" in head and "User-Agent: me" in head for head in others)


def test_credentials_stay_with_their_origin_and_its_cookies_are_not_kept(lab):
    lab.page("http://public.test/from", answer(status=302, location="http://PUBLIC.test:80/to", set_cookie="c=d"))
    lab.fetch("http://public.test/from", headers={"Authorization": "Bearer x"})
    heads = lab.requests()
    assert [head.split(" ")[1] for head in heads] == ["/from", "/to"]
    assert all("Authorization: Bearer x" in head and "c=d" not in head for head in heads)


# --- time and size -----------------------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


@pytest.mark.parametrize(
    "chunks",
    [
        [b""] * 100,
        [HEAD[:1], *(bytes([each]) for each in HEAD[1:])],
        [HEAD, *[b"X-Drip: 1\r\n"] * 100],
        [HEAD + b"Content-Length: 1000\r\n\r\n", *[b"."] * 100],
        [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[b"1\r\n.\r\n"] * 100],
        [HEAD + b"\r\n", *[b"."] * 100],
        [HEAD + b"Content-Encoding: gzip\r\n\r\n", *(bytes([each]) for each in gzip.compress(b"drip" * 99))],
    ],
    ids=["silence", "status line", "headers", "body", "chunks", "to the end", "gzip"],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_what_drips_is_ended_by_one_deadline(lab, chunks, scheme):
    """Every read brings something, well before any timeout of a read; after seconds, all of it is there."""
    url = lab.page(f"{scheme}://public.test/drips", *chunks, pause=0.05)
    assert lab.fetch(url, seconds=0.4)["rule"] == "http:time"


def test_the_deadline_is_of_all_hops_together(lab):
    for number in range(5):
        lab.page(f"http://public.test/slow/{number}", b"", redirect(f"/slow/{number + 1}"), pause=0.4)
    assert lab.fetch("http://public.test/slow/0", seconds=1.2)["rule"] == "http:time"


def test_a_name_server_that_is_silent_is_not_waited_for(lab):
    lab.name("silent.test", silent=True)
    assert lab.fetch("http://silent.test/", seconds=0.5)["rule"] == "http:time"
    assert lab.fetch("http://public.test/")["status"] == 200


def test_a_handshake_that_never_ends_is_ended(lab):
    """TLS spoken to a server that speaks none, and says nothing."""
    assert lab.fetch("https://public.test:8080/", seconds=0.5, ports=["8080"])["rule"] in ("http:time", "http:tls")


def with_coding(coding: str, packed: bytes) -> bytes:
    return answer(packed, content_encoding=coding, content_type="text/plain")


BOMB = 100 << 20


@cache
def zeros(coding: str) -> bytes:
    """A hundred megabytes of zeros in gzip, deflate or br."""
    packer = {
        "gzip": lambda: zlib.compressobj(1, wbits=31),
        "deflate": lambda: zlib.compressobj(1),
        "br": lambda: brotli.Compressor(quality=5, lgwin=24),
    }[coding]()
    add = getattr(packer, "process", None) or packer.compress
    end = getattr(packer, "finish", None) or packer.flush
    return b"".join([*(add(bytes(1 << 20)) for _ in range(BOMB >> 20)), end()])


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_a_bomb_costs_little_memory(lab, coding):
    url = lab.page(f"http://public.test/bomb/{coding}", with_coding(coding, zeros(coding)))
    told = lab.fetch(url)
    assert told["rule"] == "http:size"
    assert told["memory"] <= 20
    told = lab.fetch(url, cut=True)
    assert (len(told["body"]), told["cut"]) == (1 << 20, True)
    assert told["memory"] <= 20


@pytest.mark.parametrize("outer", ["gzip", "deflate"])
@pytest.mark.parametrize("inner", ["gzip", "deflate"])
def test_a_bomb_in_a_bomb_costs_little_memory(lab, outer, inner):
    packed = PACKERS[outer](zeros(inner))
    told = lab.fetch(lab.page("http://public.test/bombs", with_coding(f"{inner}, {outer}", packed)))
    assert told["rule"] == "http:size"
    assert told["memory"] <= 20


def test_a_coding_that_says_nothing_at_length_costs_little(lab):
    packed = gzip.compress(b"\0\0\0\xff\xff" * 20_000_000, 1)
    told = lab.fetch(lab.page("http://public.test/nothing", with_coding("deflate, gzip", packed)), seconds=3)
    assert told["rule"] == "http:size"
    assert told["memory"] <= 20


@pytest.mark.parametrize(
    "chunks",
    [
        [HEAD + b"\r\n", b"x" * 65536],
        [HEAD + b"Content-Length: 1000000000000\r\n\r\n", b"x" * 65536],
        [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n"],
    ],
    ids=["to the end", "length", "chunks"],
)
def test_a_body_without_end_is_cut_or_refused(lab, chunks):
    url = lab.page("http://public.test/endless", *chunks, endless=True)
    told = lab.fetch(url, most=300_000)
    assert (told["rule"], told["memory"] <= 20) == ("http:size", True)
    told = lab.fetch(url, most=300_000, cut=True)
    assert (len(told["body"]), told["cut"], told["memory"] <= 20) == (300_000, True, True)


@pytest.mark.parametrize(
    "chunks",
    [
        [HEAD, b"X-More: " + b"x" * 60_000 + b"\r\n"],
        [b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 1000],
        [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1;" + b"x" * 60_000],
    ],
    ids=["headers", "hints", "a chunk's extension"],
)
def test_a_head_without_end_is_refused(lab, chunks):
    told = lab.fetch(lab.page("http://public.test/heads", *chunks, endless=True), seconds=2)
    assert told["rule"] in ("http:protocol", "http:time")
    assert told["memory"] <= 20


@pytest.mark.parametrize(
    "raw",
    [
        b"not HTTP at all\r\n\r\n",
        b"",
        HEAD + b"Content-Length: 10\r\n\r\nshort",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
    ids=["other", "nothing", "short", "two lengths", "coded transfer", "another protocol"],
)
def test_an_answer_that_is_none_is_refused(lab, raw):
    told = lab.fetch(lab.page("http://public.test/broken", raw))
    assert (told["rule"], told["hop"]) == ("http:protocol", 0)


def test_a_certificate_of_another_name_is_refused(lab):
    lab.name("wrong-name.test", a=[PUBLIC_IPV4])
    told = lab.fetch("https://wrong-name.test/")
    assert told["rule"] == "http:tls"
    assert "Hostname mismatch" in told["message"]
    assert lab.requests() == []


# --- what people want --------------------------------------------------------------------------------------------


def a_benign_url(lab: Lab, dice: random.Random, number: int) -> tuple[str, str]:
    """A URL as people have them, and the text it leads to."""
    host = dice.choice(
        [
            "www{}.example",
            "bücher{}.example",
            "a-b{}.c--d.example",
            "例え{}.テスト",
            "x{}.Example.COM",
            "{}-y.co.example",
        ]
    )
    host = host.format(number)
    scheme = dice.choice(["http", "https"])
    addresses = {
        "a": [
            f"{dice.choice([23, 52, 93, 104, 151, 172, 185])}.{dice.randrange(64, 250)}.{dice.randrange(256)}.{n + 1}"
            for n in range(dice.randrange(1, 5))
        ],
        "aaaa": [f"2a00:{dice.randrange(1, 9999):x}::{n + 1}" for n in range(dice.randrange(3))],
    }
    path = dice.choice(
        ["/", "", "/a/b/c.html", "/ä/ö ü", "/%7Euser/", "/a;b=c,d", "/x//y/../z", "/(1)'*!$", "/日本/語"]
    )
    query = dice.choice(
        ["", "", "?q=1&r=2", "?q=ü+ö", "?u=http://x@y/z?", "?a[]=1|2", f"?long={'x' * dice.randrange(3000)}"]
    )
    url = f"{scheme}://{host}{path}{query}" + dice.choice(["", "", "#part", "#ü"])
    target = urls.parse(url)
    lab.name(target.host, **addresses)

    charset = dice.choice(["utf-8", "iso-8859-1", "utf-16", "shift_jis", "windows-1251"])
    words = {"shift_jis": "日本語 ", "windows-1251": "Привет ", "iso-8859-1": "Grüße "}.get(charset, UMLAUTS)
    text = words * dice.randrange(1, 3000)
    coding = dice.choice(["", "gzip", "deflate", "Deflate", "br"])
    packed = PACKERS[coding](text.encode(charset))
    head = f"HTTP/1.1 {dice.choice([200, 200, 200, 201, 203, 404, 410, 500])} Some Thing\r\nServer: x\r\n"
    head += f"Content-Type: {dice.choice(['text/html', 'text/plain', 'application/json'])}; charset={charset}\r\n"
    head += f"Content-Encoding: {coding}\r\n" if coding else ""
    framing = dice.choice(["length", "chunks", "to the end"])
    if framing == "chunks":
        size = max(1, len(packed) // dice.randrange(1, 9))
        parts = [packed[at : at + size] for at in range(0, len(packed), size)]
        body = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts] + [b"0\r\n\r\n"]
        head += "Transfer-Encoding: chunked\r\n"
    else:
        body = [packed]
        head += f"Content-Length: {len(packed)}\r\n" if framing == "length" else ""
    lab.page(str(target), f"{head}\r\n".encode(), *body)

    for hop in range(dice.choice([0, 0, 0, 1, 2, 5])):
        before = f"{dice.choice(['http', 'https'])}://r{number}-{hop}.example/from?{number}"
        lab.name(urls.parse(before).host, a=[f"185.1.{hop}.{number % 250 + 1}"])
        lab.page(
            before,
            redirect(
                quote(url, safe=":/?#[]@!$&'()*+,;=%|")
                if dice.random() < 0.5 and host.isascii()
                else str(urls.parse(url))
            ),
        )
        url = before
    return url, text


def test_what_people_want_is_served(lab):
    dice = random.Random(2026)
    wanted = [a_benign_url(lab, dice, number) for number in range(300)]
    failed = []
    for url, text in wanted:
        told = lab.fetch(url)
        body = told.get("body", "").encode("latin-1")
        if text_of(body, told.get("headers", {}).get("content-type", "")) != text:
            failed.append(json.dumps([url, told])[:500])
    assert len(failed) <= 3, failed


def test_an_address_that_cannot_be_reached_is_passed_over_for_the_next(lab):
    lab.name("some.test", a=[UNREACHABLE, "93.184.216.37"])
    assert lab.fetch("http://some.test/")["status"] == 200
    assert lab.connections() == ["93.184.216.37 80"]
    lab.name("none.test", a=[UNREACHABLE])
    assert lab.fetch("http://none.test/")["rule"] == "http:connect"


def test_name_and_host_are_the_urls_and_not_the_addresss(lab):
    lab.fetch("https://public.test/")
    (head,) = lab.requests()
    assert "Host: public.test\r\n" in head


def test_an_address_may_be_asked_for_over_tls(lab):
    assert lab.fetch(f"https://{PUBLIC_IPV4}/")["status"] == 200
    assert lab.fetch(f"https://[{PUBLIC_IPV6}]/")["status"] == 200
