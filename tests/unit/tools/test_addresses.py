"""The edges of what may be reached: pure values. That the client keeps to them is seen in test_http_client.py."""

from ipaddress import ip_address, ip_network

import pytest

from tools.outbound.addresses import PUBLIC, denial_reason, networks, policy_of, port_numbers

pytestmark = pytest.mark.shapeless(reason="pure functions")


@pytest.mark.parametrize("cidr", ["10.0.0.0/8", "172.16.0.0/12", "172.31.255.255/32", "fc00::/7", "::1/128"])
def test_a_private_network_can_be_opened_whole_or_in_part(cidr):
    assert [str(network) for network in networks([cidr])] == [cidr]


@pytest.mark.parametrize(
    "cidr",
    [
        "10.0.0.0/7",  # goes on behind its end
        "172.0.0.0/11",  # begins before it, and ends with it
        "0.0.0.0/0",
        "8.8.8.8/32",
        "2000::/3",
        "::/0",
    ],
)
def test_what_reaches_beyond_a_private_network_is_not_opened(cidr):
    with pytest.raises(ValueError, match="is not in a private network"):
        networks([cidr])


@pytest.mark.parametrize("cidr", ["169.254.169.254/32", "fd00:ec2::254/128", "100.100.100.200/32"])
def test_metadata_is_not_opened_by_name(cidr):
    with pytest.raises(ValueError, match="is never opened"):
        networks([cidr])


def test_ports_are_numbers_from_1_to_65535():
    assert port_numbers(["1", "65535"]) == {1, 65535}
    for word in ("0", "65536", "65537", "99999", "-1", "+80", "８０", "http", ""):
        with pytest.raises(ValueError, match="is no port"):
            port_numbers([word])
    with pytest.raises(ValueError, match="names no port"):
        port_numbers([])


def test_what_nobody_has_set_is_the_webs_ports_and_public_addresses_alone():
    assert PUBLIC.ports == {80, 443}
    assert PUBLIC.private == ()
    policy = policy_of(private_cidrs=["10.1.0.0/16"], ports=["8080"])
    assert (policy.ports, [str(network) for network in policy.private]) == ({8080}, ["10.1.0.0/16"])


@pytest.mark.parametrize("middle", ["0:5efe", "100:5efe", "200:5efe", "300:5efe"])
def test_a_private_address_inside_of_isatap_is_named(middle):
    assert "carries 10.0.0.1, which is not public" in str(
        denial_reason(ip_address(f"2a00:1450:4001:81b:{middle}:a00:1"))
    )


@pytest.mark.parametrize("middle", ["0:5eff", "0:ffff", "0:5efd", "400:5efe", "1:5efe"])
def test_what_only_looks_like_isatap_is_a_public_address_like_others(middle):
    assert denial_reason(ip_address(f"2a00:1450:4001:81b:{middle}:a00:1")) is None


@pytest.mark.parametrize("bits", [32, 40, 48, 56, 64, 96])
@pytest.mark.parametrize("hidden", ["169.254.169.254", "100.100.100.200"])
def test_where_a_gateway_of_an_opened_network_may_look_there_is_no_metadata(bits, hidden):
    opened = ip_network("fd00::/8")
    prefix = bytes.fromhex("fd12345678fa9b0102030405")[: bits // 8]
    plain = (
        prefix + ip_address(hidden).packed if bits == 96 else (prefix + ip_address(hidden).packed).ljust(15, b"\x01")
    )
    address = ip_address(plain if bits == 96 else plain[:8] + b"\0" + plain[8:])
    assert f"carries {hidden}, which is never reached" in str(denial_reason(address, private=[opened]))
