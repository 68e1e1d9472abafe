"""Addresses nobody may be led to, written down from the registries and from clouds' documents: not from our table."""

from ipaddress import IPv4Address, IPv6Address, ip_network

# The first and the last of each block of the IANA IPv4 Special-Purpose Address Registry, of multicast and of what is
# reserved; and what clouds keep at public-looking addresses.
IPV4 = [
    *("0.0.0.0", "0.0.0.1", "0.255.255.255"),
    *("10.0.0.0", "10.0.0.1", "10.255.255.255"),
    *("100.64.0.1", "100.127.255.254", "100.100.100.200"),
    *("127.0.0.1", "127.0.0.2", "127.1.2.3", "127.255.255.254"),
    *("169.254.0.1", "169.254.169.254", "169.254.170.2", "169.254.255.254"),
    *("172.16.0.1", "172.31.255.254"),
    *("192.0.0.1", "192.0.0.8", "192.0.0.170", "192.0.0.192"),
    *("192.0.2.1", "192.88.99.1", "192.168.0.1", "192.168.255.254"),
    *("198.18.0.1", "198.19.255.254", "198.51.100.1", "203.0.113.1"),
    *("224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.254", "255.255.255.255"),
    "168.63.129.16",
]

# The same of IPv6.
IPV6 = [
    *("::", "::1", "::2"),
    *("64:ff9b:1::1", "64:ff9b:1:ffff::8.8.8.8"),
    *("100::1", "100:0:0:1::1"),
    *("2001::1", "2001:2::1", "2001:10::1", "2001:1ff::1"),
    *("2001:db8::1", "2002::1", "3fff::1", "3fff:fff::1", "5f00::1"),
    *("fc00::1", "fd00::1", "fd00:ec2::254", "fd20:ce::254", "fdff:ffff::1"),
    *("fe80::1", "fe80::a9fe:a9fe", "febf::1", "fec0::1", "ff02::1", "ff0e::1"),
    *("4000::1", "8000::1", "e000::1"),  # not assigned
]


def hiding(address: IPv4Address) -> dict[str, IPv6Address]:
    """IPv6 addresses that lead to an IPv4 address by some gateway, by the gateway's name."""
    number = int(address)
    return {
        "mapped": IPv6Address(0xFFFF << 32 | number),
        "compatible": IPv6Address(number),
        "translated": IPv6Address(0xFFFF << 48 | number),
        "6to4": IPv6Address(0x2002 << 112 | number << 80 | 1),
        "NAT64": IPv6Address(0x64FF9B << 96 | number),
        "NAT64 of local use": IPv6Address(0x64FF9B0001 << 80 | number),
        "Teredo": IPv6Address(0x20010000 << 96 | 0x08080808 << 64 | number ^ 0xFFFFFFFF),
        "Teredo's server": IPv6Address(0x20010000 << 96 | number << 64 | 0xF7F7F7F7),
        "ISATAP": IPv6Address(0x2606_2800_0220_0001 << 64 | 0x5EFE << 32 | number),
        "ISATAP, unique": IPv6Address(0x2606_2800_0220_0001 << 64 | 0x0200_5EFE << 32 | number),
    }


def spellings(address: IPv4Address) -> list[str]:
    """Hosts that some parser takes for an IPv4 address."""
    first, second, third, fourth = address.packed
    low = int(address) & 0xFFFFFF
    wide = str(address).translate({ord(str(digit)): 0xFF10 + digit for digit in range(10)})
    return [
        str(address),
        f"{address}.",
        str(int(address)),
        hex(int(address)),
        f"{first}.{low}",
        f"{first}.{second}.{third << 8 | fourth}",
        f"0{first:o}.0{second:o}.0{third:o}.0{fourth:o}",
        f"{first:#x}.{second:#x}.{third:#x}.{fourth:#x}",
        f"{first:03}.{second:03}.{third:03}.{fourth:03}",
        wide,
        str(address).replace(".", "。"),
        str(address).replace(".", "%2e"),
    ]


# Every block of the registries that is not for the public, for properties.
BLOCKS = [
    ip_network(block)
    for block in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
        *("192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
        *("224.0.0.0/4", "240.0.0.0/4"),
        *("::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16"),
        *("3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"),
    )
]
