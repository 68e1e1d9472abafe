"""Which addresses an outbound request may reach: pure data in, a reason out.

An allow list at heart: an address is public, or it is refused. Python's ``is_global`` alone will not do: it takes
multicast, IPv4 hidden in IPv6 and a cloud's public-looking services for public, and its answers differ by version. So
there is a table, from IANA's registries of special-purpose addresses (RFC 6890 and its successors), and ``is_global``
is asked as well.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# What clouds answer with credentials or with the machine's own configuration. No setting opens these.
_METADATA = {
    "169.254.0.0/16": "link-local, where clouds keep metadata",
    "fe80::/10": "link-local",
    "100.100.100.200/32": "metadata of Alibaba Cloud",
    "168.63.129.16/32": "the machine's own services on Azure",  # public by every registry
    "192.0.0.192/32": "metadata of Oracle Cloud",
    "fd00:ec2::/32": "metadata of AWS",
    "fd20:ce::254/128": "metadata of Google Cloud",
    "fd00:c1::a9fe:a9fe/128": "metadata of Oracle Cloud",
    "fd00:100::100:200/128": "metadata of Alibaba Cloud",
    "fd00:42::42/128": "metadata of Scaleway",
    "fd00:a9fe:a9fe::/48": "metadata of Akamai",
}

# What the settings may open, to reach an intranet.
_PRIVATE = {
    "10.0.0.0/8": "private use",
    "172.16.0.0/12": "private use",
    "192.168.0.0/16": "private use",
    "100.64.0.0/10": "shared by a provider's customers",
    "127.0.0.0/8": "loopback",
    "198.18.0.0/15": "benchmarking",
    "::1/128": "loopback",
    "fc00::/7": "unique local",
}

_SPECIAL = {
    "0.0.0.0/8": "this network",
    "192.0.0.0/24": "protocol assignments",
    "192.0.2.0/24": "documentation",
    "192.31.196.0/24": "AS112",
    "192.52.193.0/24": "automatic multicast tunnelling",
    "192.88.99.0/24": "6to4 relays",
    "192.175.48.0/24": "AS112",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
    "::/96": "IPv4-compatible",
    "::ffff:0:0:0/96": "IPv4-translated",
    "64:ff9b:1::/48": "NAT64 of local use",
    "100::/64": "discard-only",
    "100:0:0:1::/64": "dummy",
    "2001::/23": "protocol assignments, Teredo",
    "2001:db8::/32": "documentation",
    "2002::/16": "6to4",
    "2620:4f:8000::/48": "AS112",
    "3fff::/20": "documentation",
    "5f00::/16": "segment routing",
    "fec0::/10": "site-local",
    "ff00::/8": "multicast",
}


def _networks(names: dict[str, str]) -> list[tuple[Network, str]]:
    return [(ip_network(network), f"{network}, {meaning}") for network, meaning in names.items()]


_NEVER = _networks(_METADATA)
_NOT_PUBLIC = _networks(_PRIVATE | _SPECIAL)
_OPENABLE = [network for network, _ in _networks(_PRIVATE)]

# All of IPv6 that is public is in here, but for what a network's own NAT64 makes of public IPv4.
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What may be reached: ports, and which networks besides the public ones."""

    ports: frozenset[int] = frozenset({80, 443})
    private: tuple[Network, ...] = ()


PUBLIC = Policy()


def policy_of(*, private_cidrs: Iterable[str], ports: Iterable[str]) -> Policy:
    """A policy of the settings' words; raises ValueError as :func:`networks` and :func:`port_numbers` do."""
    return Policy(ports=port_numbers(ports), private=networks(private_cidrs))


def networks(cidrs: Iterable[str]) -> tuple[Network, ...]:
    """Networks that may be opened, from their names such as ``10.20.0.0/16``.

    Raises ValueError, with a sentence, for what is no network, is not private, or is never opened.
    """
    found = []
    for cidr in cidrs:
        try:
            network = ip_network(cidr)
        except ValueError as error:
            raise ValueError(f"{cidr!r} is no network: {error}") from None
        for never, meaning in _NEVER:
            if _within(network, never):
                raise ValueError(f"{cidr!r} is never opened: it is in {meaning}")
        if not any(_within(network, private) for private in _OPENABLE):
            known = ", ".join(str(private) for private in _OPENABLE)
            raise ValueError(f"{cidr!r} is not in a private network; those are {known}")
        found.append(network)
    return tuple(found)


def port_numbers(words: Iterable[str]) -> frozenset[int]:
    """Ports from their numbers; raises ValueError, with a sentence, for what is none, and for none at all."""
    found = set()
    for word in words:
        if not (word.isascii() and word.isdigit() and 0 < int(word) < 65536):
            raise ValueError(f"{word!r} is no port; a port is a number from 1 to 65535")
        found.add(int(word))
    if not found:
        raise ValueError("it names no port")
    return frozenset(found)


def denial_reason(address: Address, *, private: Sequence[Network] = ()) -> str | None:
    """Why nothing may connect to this address, as the end of a sentence; None if it may.

    ``private``: networks that may be reached though they are not public. They open an address itself, also where it is
    written as IPv4-mapped IPv6, but none that is hidden in another: who opens an intranet opens no translator to it.
    """
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        return denial_reason(address.ipv4_mapped, private=private)
    for network, meaning in _NEVER:
        if address in network:
            return f"is never reached ({meaning})"
    if any(address in network for network in private):
        return _of_metadata(address)
    for network, meaning in _NOT_PUBLIC:
        if address in network:
            return f"is not public ({meaning})"
    if isinstance(address, IPv6Address):
        if address not in _GLOBAL_UNICAST and address not in _NAT64:
            return "is not public (outside 2000::/3)"
        hidden = _hidden(address)
        if hidden and (why := denial_reason(hidden)):
            return f"carries {hidden}, which {why}"
    if not address.is_global or address.is_multicast:
        return "is not public"
    return None


def _of_metadata(address: Address) -> str | None:
    """Why an address of an opened network may not be reached all the same: where a gateway of that network may look for
    an IPv4 address (NAT64 with a prefix of its own, ISATAP), there is one that nothing opens."""
    if isinstance(address, IPv4Address):
        return None
    # RFC 6052, section 2.2: after a prefix of 32 to 96 bits. The ninth byte is none of the four, and ought to be zero.
    number = address.packed[:8] + address.packed[9:]
    places = [number[start : start + 4] for start in (4, 5, 6, 7, 8, 11)]
    for hidden in map(IPv4Address, places):
        for network, meaning in _NEVER:
            if hidden in network:
                return f"carries {hidden}, which is never reached ({meaning})"
    return None


def _hidden(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address a gateway would send it on to: by NAT64 (RFC 6052), or by ISATAP (RFC 5214) in any network."""
    number = int(address)
    is_isatap = number >> 32 & 0xFCFF_FFFF == 0x5EFE  # the two bits left out tell of uniqueness and groups
    return IPv4Address(number & 0xFFFF_FFFF) if is_isatap or address in _NAT64 else None


def _within(network: Network, outer: Network) -> bool:
    return network.version == outer.version and outer[0] <= network[0] and network[-1] <= outer[-1]  # type: ignore[operator] # of one version
