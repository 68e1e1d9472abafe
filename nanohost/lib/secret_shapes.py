"""What secrets look like: words that tell by their beginning, other shapes, and the names that secrets stand under.

Tables, in groups. ``redaction.py`` takes out what they find. A shape is searched only in a text that its mark stands
in, and an expression that fails has looked at a bounded part of the text, or at a part that it does not look at again.
"""

import re
from collections.abc import Iterable
from functools import cache

# --- pieces of expressions ---------------------------------------------------------------------------------------

# Where a word begins: also behind a line feed that JSON writes as \n, and behind %22 in a URL.
_BEHIND_WHAT = (
    r"(?<![A-Za-z0-9])",
    r"(?<=\\[abfnrtv0])",
    r"(?<=\\u[0-9A-Fa-f]{4})",
    r"(?<=\\x[0-9A-Fa-f]{2})",
    r"(?<=%[0-9A-Fa-f]{2})",
)
_BEGINS = f"(?:{'|'.join(_BEHIND_WHAT)})"

# A quote, as texts, JSON in JSON, HTML, URLs and JSON for HTML write it. Not the first: at a place of its own below.
_ESCAPED_QUOTE = r"""(?: \\{1,3}["'] | &(?:quot|apos|\#3[49]|\#x2[27]); | %2[27] | \\{1,3}(?:u00|x)2[27] )"""
_QUOTE = rf"""(?: ["'] | {_ESCAPED_QUOTE} )"""


def _unlike_a_name(others: str = "_-") -> str:
    """What follows is made of letters, digits and the others, and is no name that somebody thought of: it has a digit,
    or mixed case, or is long without a break."""
    return (
        rf"(?= [A-Za-z{others}]*+ [0-9] | [A-Za-z0-9{others}]*? [a-z][A-Z] | [A-Za-z{others}]*? [A-Za-z]{{20}} )"
    ).replace(" ", "")


# --- words that tell by their beginning what they are ------------------------------------------------------------

JWT = "eyJ"
_PART = "[A-Za-z0-9_-]"
_BASE64 = "[A-Za-z0-9_+/-]{16,}+={0,2}+"


def _but_no_name(word: str) -> str:
    """What begins so may be a name, ``npm_lifecycle_script``. It is passed over as a whole: there is none in it."""
    return f"(?:{_unlike_a_name()}{word}|(?P<none>{word}))"


# The beginning, and what follows then.
WORDS = {
    # This host's keys.
    "nh_": r"[A-Za-z0-9]{4,}+_[A-Za-z0-9_-]{8,}+",
    # Models' providers.
    "sk-": _but_no_name(f"{_PART}{{8,}}+"),
    **dict.fromkeys(
        ("gsk_", "csk-", "xai-", "nvapi-", "pplx-", "r8_", "hf_", "tgp_v1_"), _but_no_name(f"{_PART}{{16,}}+")
    ),
    "AIza": r"[A-Za-z0-9_-]{30,}+",
    # Code hosts, packages, images.
    **dict.fromkeys(("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"[A-Za-z0-9]{20,}+"),
    "github_pat_": r"[A-Za-z0-9_]{20,}+",
    **dict.fromkeys(("glpat-", "npm_", "pypi-", "dckr_pat_"), _but_no_name(f"{_PART}{{16,}}+")),
    # Clouds and vaults.
    **dict.fromkeys(("AKIA", "ASIA"), r"[A-Z0-9]{16}"),
    **dict.fromkeys(("dop_v1_", "ya29.", "GOCSPX-", "hvs.", "hvb."), _but_no_name(f"{_PART}{{16,}}+")),
    # Payment, trade, post, work, chat.
    **dict.fromkeys(("sk_", "rk_", "pk_", "shpat_", "lin_api_"), _but_no_name(f"{_PART}{{16,}}+")),
    # Of webhooks: base64 with all its characters.
    "whsec_": f"(?:{_unlike_a_name('_+/-')}{_BASE64}|(?P<none>{_BASE64}))",
    "SG.": r"[A-Za-z0-9_-]{16,64}+\.[A-Za-z0-9_-]{16,}+",
    "ATATT3": r"[A-Za-z0-9_=-]{16,}+",
    "xox": r"[a-z]-[A-Za-z0-9-]{10,}+",
    "xapp-": r"[A-Za-z0-9-]{10,}+",
    # Keys and tokens of no maker's. What begins like a token and is none is passed over as a whole: of all the words
    # in it that begin so, none would be one. A part may be empty: a key that was agreed upon, what else was signed.
    "AGE-SECRET-KEY-": r"1[A-Z0-9]{20,}+",
    JWT: (
        rf"(?:{_PART}{{8,}}+\.(?:{_PART}{{8,}}+\.{_PART}*+|\.{_PART}{{8,}}+)(?:\.{_PART}{{8,}}+){{0,3}}+"
        rf"|(?P<none>{_PART}*+))"
    ),
}


@cache
def word(begin: str) -> "re.Pattern[str]":
    """Begins with the word, not with what it stands behind: that is how texts are searched fast."""
    begins = re.escape(begin)
    behind = "|".join(f"(?<={what}{begins})" for what in _BEHIND_WHAT)
    return re.compile(f"{begins}(?:{behind}){WORDS[begin]}")


# --- fields ------------------------------------------------------------------------------------------------------

_HEADERS = "(?: (?:set-)?cookie | (?:proxy-)?authorization )"
_FIELDS = r"""(?:
        x-api-key | x-auth-token | x-goog-api-key | api[-_]?key | client[-_]?secret | secret[-_]?(?:access[-_]?)?key
      | (?:access|refresh|id|auth|session|api|private|security|vault)[-_]?token | private[-_]?key
      | password | passwd | passphrase | (?P<pwd>pwd)
    )"""

# Tokens that say where a list goes on, or that are counted: no secrets.
_NOT_SECRET = "".join(
    f"(?<!{word})(?<!{word}[-_])"
    for word in (
        *("page", "next", "prev", "previous", "continuation", "sync", "pagination", "resume", "cursor", "delta"),
        *("max", "min", "per", "eos", "bos", "pad", "unk", "sep", "cls", "mask", "stop", "start", "end", "first"),
    )
)
# Fields that may carry a secret: what they hold has the last word. Also as the last part of a name, githubToken.
# A ``sessionId`` is often none: of sessions, only cookies as frameworks call them.
_MAYBE_TOKEN = rf"""(?:
        {_NOT_SECRET} (?:[cx]srf)? token
      | (?: (?:shared[-_]?)?access | account | encryption | master | subscription | functions ) [-_]?key
      | (?-i: sessionid | JSESSIONID | PHPSESSID | ASP\.NET_SessionId )
    )"""
_MAYBE_SECRET = r"""(?: secret | (?<=[-_])pass | pass(?= \\{0,3}["'] | =) | (?-i:(?<=[a-z0-9])Pass) )"""  # noqa: S105
_IN_CAMELS = (
    "(?-i: (?<=[a-z0-9]) (?=Token|Secret|Pass|ApiKey|AccessKey|AccountKey|EncryptionKey|MasterKey|SubscriptionKey) )"
)
# GITHUB_TOKEN=, DB_PASS=: in an environment, whatever follows.
_OF_ENVIRONMENT = rf"(?-i: (?<=_) (?: (?i:{_NOT_SECRET}) TOKEN | SECRET | PASS ) ) (?==)"

# --- what they hold ----------------------------------------------------------------------------------------------

_VALUE_ENDS = r"""(?= \.? (?: [\s"',;|&<>}\])\\(\[] | %2 | $ ) )"""
# What says that there is no value, what a value is, or where one is put in.
_NO_VALUE = rf"""(?:
        (?: true|false|null|none|nil|undefined|required|optional|missing|invalid|unset|string|str|bytes|int|bool )
        {_VALUE_ENDS}
      | \$ (?: [({{] | (?: (?-i:[A-Z][A-Z0-9_]{{0,60}}+) | [a-z_]{{1,60}}+ ) (?=[/:@] | {_VALUE_ENDS}) )
      | < [a-z][^<>"'\r\n]{{0,60}} >
      | \{{{{1,2}} [^{{}}"'\r\n]{{0,60}} \}}
      | % (?: [sdr](?![a-z0-9]) | [({{] | (?-i:[A-Z_]{{2,40}}%) )
      | \*\* | \.\.\. | … | \[[a-z\ ]{{1,20}}\]
    )"""
# What code has there, which stands in no quotes: a list or an object, what a function returns, a field of that name.
_CODE = rf"""(?:
        [{{(\[]
      | (?:[a-z_][a-z0-9_]{{0,40}}+\.){{0,4}}+ [a-z_]{{2,40}}+ [(\[]
      | (?:[a-z_][a-z0-9_]{{0,40}}+\.){{1,4}}+ [a-z0-9_]{{0,30}} (?:pass(?:word)?|passwd|pwd|token|secret|key|cookie)s?
        {_VALUE_ENDS}
    )"""
# A folder, which PWD holds in every environment.
_FOLDER = r"(?: [/~] | [a-z]:[\\/] )"

# What looks like a token: with a digit and no number; or long.
_LIKELY = r"""
    (?! [$<{%*\[] ) (?! [-+.0-9]{1,16}+ (?![^\s"',;&<>}\])\\]) )
    (?: (?=[^\s"',;&<>}\])\\]{6}) [^\s"',;&<>}\])\\0-9]{0,64}+ [0-9] | [A-Za-z0-9_~+/=%-]{14} )
"""
# The same for a secret, of which anything in quotes will do.
_LIKELY_QUOTED = r"""(?! [$<{%*\[] ) [^"'\r\n]{4}"""

# What opens a text of many lines in YAML.
_LINES = r"[|>][-+]?[\ \t]{0,3}(?:\r?\n|(?:\\r)?\\n)[\ \t]{1,40}"
_OPENS = rf"(?: {_QUOTE} | {_LINES} )"

# --- a field and what it holds -----------------------------------------------------------------------------------

# Between a name and its value: in headers, JSON, Python, URLs, shells, YAML, PHP, Ruby, Go. What stands in YAML on the
# next line is no value if it has a name.
_IS = rf"""(?:
        {_QUOTE}? \s{{0,3}} (?: =(?:>|&gt;)(?=\s{{0,3}}{_QUOTE}) | := | [:=] | %3[ad] )
        (?! [\ \t]{{0,3}} \r?\n \s{{0,40}}+ [a-z0-9_$-]{{1,40}}+ :(?:\s|$) )
        (?:\s|%20){{0,3}}+
        (?P<list> [\[(]\s{{0,3}} (?=b?{_QUOTE} (?(header) | [^\s"']++ ["'])) )?+
        (?: [bfru]{{1,2}}(?={_QUOTE}) )?+
      | > (?= [^<>]++ <\\?/ [^<>\s]{{0,40}}? (?P=field) > )
    )"""

# A header or a field that carries a secret, whatever it looks like.
NAMED = re.compile(
    rf"""(?xi)
    (?: (?P<listed>(?<=[(\[]["']) | (?<=[(\[]b["']) | (?<=[(\[]\\["'])) | {_BEGINS} | (?=passw) | {_IN_CAMELS} )
    (?P<name>
        (?P<field>
            (?P<header>{_HEADERS}) | {_FIELDS}
          | (?P<variable>{_OF_ENVIRONMENT}) | (?P<token>{_MAYBE_TOKEN}) | (?P<secret>{_MAYBE_SECRET})
        )
        (?: {_IS} | (?(listed) (?P<pair>\\?["'],\ ?b?(?=\\?["'])) | (?!)) )
    )
    (?! {_OPENS}?+ {_NO_VALUE} | {_CODE} )
    (?(pwd) (?! {_QUOTE}?+ {_FOLDER}) )
    (?(token) (?= {_OPENS}?+ {_LIKELY}) )
    (?(secret) (?= {_QUOTE} {_LIKELY_QUOTED} | {_OPENS}?+ {_LIKELY}) )
    (?(variable) (?= ["']? [^\s"']{{4}}) )
    """
    r"""
    (?:
        (?P<quote>ESCAPED) (?:(?!(?P=quote))[^\r\n])++   # in quotes that are escaped, to the next such quote
      | " (?=[^"\\\r\n]|\\.) [^"\\\r\n]*+ (?:\\.[^"\\\r\n]*+)*+   # in quotes
      | ' (?=[^'\\\r\n]|\\.) [^'\\\r\n]*+ (?:\\.[^'\\\r\n]*+)*+
      | (?P<lines>[|>][-+]?[\ \t]{0,3}(?P<indent>(?:\r?\n|(?P<escaped>(?:\\r)?\\n))[\ \t]{1,40}+))
            LINE (?:(?P=indent)LINE)*+
      | (?P<scheme>(?:bearer|basic|digest|token)[\ \t]{1,3})?+ (?! NO_VALUE )
        (?(header)
            (?:[a-z][a-z0-9-]{2,30}:?[\ \t]{1,3})?+   # another scheme
            (?=[^\s"']\S{3}) PART (?: (?: ; | ,(?=\ ?[^\s"',;=]{1,64}=) ) \ ?PART )*+
          | [^\s"',;&<>}\])\\]{4,}+ (?: ;\ ?[^\s"';<>}\])\\]++ )*+
        )
    )
    (?(list) (?: QUOTE ,\s{0,3} b? QUOTE [^"'\\\r\n]*+ )*+ )   # the others in its list
    (?(pair) (?=\\?["']\s?[)\]]))   # of two things in a list, no more
    """.replace("PART", r"""[^\s"',;<>}\])\\]++ (?:(?<==)(?:"[^"\r\n]*+" | '[^'\r\n]*+'))?+""")
    .replace("ESCAPED", _ESCAPED_QUOTE)
    .replace("QUOTE", _QUOTE)
    .replace("LINE", r"""(?(escaped) (?:(?!\\[nr])[^\r\n"])++ | [^\r\n]++ )""")
    .replace("NO_VALUE", _NO_VALUE)
)


def _joined(*words: str) -> tuple[str, ...]:
    return tuple(f"{word}{joint}" for word in words for joint in ("", "-", "_"))


_BEFORE_TOKEN = ("access", "refresh", "id", "auth", "session", "api", "private", "security", "vault", "csrf", "xsrf")
_BEFORE_KEY = ("api", "private", "access", "account", "encryption", "master", "subscription", "functions")
# What each match of it has in it, in small letters, and what its name may have before that.
NAMED_AT: dict[str, tuple[str, ...]] = {
    "cookie": ("", "set-"),
    "authorization": ("", "proxy-"),
    "token": ("", *_joined(*_BEFORE_TOKEN), "x-auth-"),
    "secret": ("", *_joined("client")),
    "key": (
        *_joined(*_BEFORE_KEY),
        "x-api-",
        "x-goog-api-",
        *_joined("sharedaccess", "shared-access", "shared_access"),
    ),
    "pass": ("",),
    "pwd": ("",),
    "sessionid": ("", "j", "asp.net_"),
    "phpsessid": ("",),
}
# What follows on each of these words in a match: the rest of the name, and what parts it from its value.
GOES_ON = re.compile(rf"""(?x) [a-z_-]{{0,20}}+ (?: > | {_QUOTE}?+ (?: \s{{0,3}}+(?:[:=]|%3[ad]) | , ) )""")
# What stands before a name and its value in a list of pairs. Of two things in another list, none is the other's name.
OF_PAIRS = re.compile(r"""(?:\[|[\])],)\s{0,20}[\[(]b?\\?["']\Z""")

# The end of a name decides.
LONGEST_NAME = 64
NAME = re.compile(rf"(?xi) (?: .*[^a-z0-9] | .*{_IN_CAMELS} )? (?:{_HEADERS} | {_FIELDS}) | .*passw(?:or)?d")
MAYBE_NAME = re.compile(
    rf"(?xi) .*? (?: {_BEGINS} | {_IN_CAMELS} ) (?: (?P<token>{_MAYBE_TOKEN}) | secret | pass )", re.DOTALL
)
NO_VALUE = re.compile(rf"(?xi) {_NO_VALUE}")
FOLDER = re.compile(rf"(?xi) {_FOLDER}")
TOKEN = re.compile(rf"(?xi) (?!{_NO_VALUE}) {_LIKELY}")
SECRET = re.compile(rf"(?xi) (?!{_NO_VALUE}) {_LIKELY_QUOTED}")

# --- other shapes ------------------------------------------------------------------------------------------------

_KEY_BLOCK = r"[A-Z0-9\ ]{0,40}PRIVATE\ KEY(?:\ BLOCK)?-----"
_SLASH = r"(?:\\?/|%2[Ff])"
_BLANK = r"(?:\s|\\[nrt]){1,40}+"
_THING = r"(?:(?!\\[nrt])\S){1,255}+"


def _credentials(slashes: str) -> str:
    """Between a URL's scheme and its host: all, if there is a password, which may have a slash in it but be no port;
    or a token alone."""
    return rf"""(?P<kept>{slashes}) (?= [^/\s:@"'<>]*+ [:@] ) (?:
        [^/\s:@"'<>]*+ : [^/\s"'<>]+ (?=@)
      | [^/\s:@?\#"'<>\[]*+ : (?![0-9]{{1,5}}\\?/) [^/\s"'<>@{{$\\]
        [^/\s"'<>@]*+ (?: /(?!\\?/) [^/\s"'<>@]*+ )++ (?=@)
      | {_unlike_a_name()} [A-Za-z0-9_-]{{16,}}+ (?=@)
    )"""


def _signature(name: str, joint: str, behind: Iterable[str]) -> str:
    """The signature of a URL that lets in whoever has it, as clouds make them."""
    word = "".join(f"[{letter.upper()}{letter}]" for letter in name)
    begins = "|".join(f"(?<={what}{word})" for what in behind)
    return rf"(?P<kept>{word}(?:{begins})(?i:{joint})) (?=[A-Za-z%+/=_-]{{0,99}}+[0-9]) [A-Za-z0-9%+/=_-]{{16,}}+"


_IN_A_QUERY = (r"[?&;-]", r"\\u0026", "%26", "%3[Ff]")

# What has another beginning than a word: by what stands in each of its matches, in small letters where they do not
# matter. ``kept``: what of it is no secret.
OTHERS = {
    # Keys in blocks.
    "-----begin ": rf"(?P<kept>)-----BEGIN\ {_KEY_BLOCK} [^-]*+ (?:-(?!----END\ )[^-]*+)*+ (?:-----END\ {_KEY_BLOCK})?",
    "private-lines:": r"(?P<kept>[Pp](?i:rivate-lines:)\ ?+) (?: [A-Za-z0-9+/=\s\\](?!rivate-MAC) )++",
    # Credentials without their header.
    "bearer": (
        rf"(?P<kept>[Bb](?i:earer)(?:\s|%20)) \s{{0,3}}+ (?=\S{{8}}) {_unlike_a_name('._~+/=-')}"
        r"[A-Za-z0-9._~+/=-]{8,}+"
    ),
    "basic": (
        rf"(?P<kept>[Bb](?i:asic)(?:\ |%20)) (?=\S{{8}}) {_unlike_a_name('+/')}"
        r"[A-Za-z0-9+/]{8,}+ ={0,2}+ (?![A-Za-z0-9+/=\ -])"
    ),
    # URLs.
    "://": _credentials("://"),
    ":\\/\\/": _credentials(r":\\/\\/"),
    **{f"sig{joint}": _signature("sig", joint, _BEHIND_WHAT) for joint in ("=", "%3d")},
    **{f"signature{joint}": _signature("signature", joint, _IN_A_QUERY) for joint in ("=", "%3d")},
    "hooks.slack.com": (
        rf"(?P<kept>hooks\.slack\.com{_SLASH}(?:services|workflows|triggers){_SLASH}) [A-Za-z0-9%\\/_-]{{16,}}+"
    ),
    "webhooks": rf"(?P<kept>webhooks{_SLASH}[0-9]{{5,25}}{_SLASH}) [A-Za-z0-9_-]{{16,}}+",
    ":aa": r"(?P<kept>:(?<=[0-9]{6}:)) AA[A-Za-z0-9_-]{30,}+",
    # Command lines, also as lists.
    "--": rf"""(?P<kept>
            --(?i: (?:[a-z0-9]{{1,20}}-){{0,3}}? (?: {_FIELDS} | token | secret | pass ) )
            (?: [\ \t]{{1,3}} {_QUOTE}? | \\?["'],\s{{0,3}} \\?["'] )
        )
        (?! - | (?i:{_NO_VALUE}) | [-+.0-9]{{1,16}}+ (?![^\s"',;]) )
        (?= [^\s"']{{6}} ) (?: (?=[^\s"']{{0,64}}? (?:[0-9] | [a-z][A-Z])) | (?=[A-Za-z]{{20}}) )
        [^\s"'\\]++""",
    "machine": rf"""(?P<kept>
            machine{_BLANK} {_THING} {_BLANK} (?: (?:login|account){_BLANK} {_THING} {_BLANK} ){{0,2}} password{_BLANK}
        ) {_THING}""",
}


@cache
def other(mark: str) -> "re.Pattern[str]":
    return re.compile(f"(?x){OTHERS[mark]}")
