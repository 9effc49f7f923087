"""Secrets and addresses are taken out of whatever is echoed from a pasted text.

Erring towards taking out too much: a record is found before anything is redacted. What must stay is what
tells of the fault: types, shapes, counts, paths, versions, digests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final

import re2

SHOWN: Final = 2000
"""Most characters of a message or value that are echoed."""
MARGIN: Final = 2048
"""Characters behind those that are read, so that a secret across the cut is still known as one."""

REDACTED: Final = "[redacted]"

# --- secrets by their name: `name = value`, `"name": "value"`, `--name value`, `("name", "value")`

_KEYS: Final = (
    r"(?:api|access|private|secret|account|shared|auth|signing|encryption|subscription|master|storage|deploy)"
    r"(?:[_-]?access)?[_-]?key"
)
_WORDS: Final = (
    rf"pass(?:word|wd|phrase)\w{{0,16}}|secret\w{{0,20}}|credentials?|{_KEYS}|shared[_-]?access[_-]?signature"
)
_SIGN: Final = r"(?:\\?[\"'])?\s{0,4}(?:={1,2}>?|:=?)\s{0,4}+|\\?[\"']\s{0,4},\s{0,4}+(?=b?\\?[\"'])"
_QUOTE: Final = r"b?(?P<quote>\\?[\"'])"
_CHARACTER: Final = r"(?:(?!(?P=quote))(?:\\.|[^\n\\]))"
_PART: Final = r"[^\s\"',;&)\]}]"
# A comma or bracket belongs to the value when more of it follows, and not the next `name=`.
_MORE: Final = rf"(?:[,;)\]}}]{{1,8}}(?![\w.-]{{1,64}}[=:]){_PART}{{1,512}}){{0,32}}"
_UNQUOTED: Final = rf"(?!b?\\?[\"']){_PART}{{1,2048}}{_MORE}"
_NO_VALUE: Final = r"(?!\[redacted|(?:none|null|true|false)\b)"
# A count of tokens, a special token and its size are no tokens.
_NO_TOKEN: Final = (
    r"(?!\[redacted|[(\[{<]|(?:none|null|true|false)\b|-?\d{1,9}(?:\.\d{1,9})?(?![\w.+/-])"
    r"|(?:torch\.)?(?:bfloat16|float\d{1,2}(?:_\w{1,12})?|u?int\d{1,2}|bool)\b)"
)
_NO_FOLDER: Final = r"(?!\[redacted|~?/[\w.-]{1,255}/|[a-z]:\\)"


def _named(name: str, unless: str) -> Iterator[str]:
    """Patterns of a value behind its name; `keep` is what stays."""
    flag = rf"(?<![\w-])--[\w-]{{0,40}}?(?:{name})[ \t]{{1,4}}+(?!-)"
    for before in (rf"(?:{name})(?:{_SIGN})", flag):
        yield rf"(?P<keep>{before}{_QUOTE}){unless}{_CHARACTER}{{1,2048}}"
        yield rf"(?P<keep>{before}){unless}{_UNQUOTED}"


def _behind(name: str) -> str:
    """What a text with such a secret has in lower case: the name before a sign, or as a command's option."""
    # Wider than the patterns: what RE2 takes for blanks and letters is ASCII alone.
    named = rf"(?:{name})[\w\x{{80}}-\x{{10ffff}}]{{0,24}}\W{{0,12}}[=:,]"
    return rf"{named}|--[^ ]{{0,60}}(?:{name})[^=:,]{{0,24}}[ \t]"


# --- secrets by their looks

_SCHEMES: Final = (
    r"basic|bearer|digest|negotiate|ntlm|token|api-?key|key|aws4-hmac-sha256|dpop|gnap|hawk|hoba|jwt|mutual|oauth"
    r"|vapid|bot|ssws|splunk|scram-sha-\d{1,3}|shared(?:key(?:lite)?|accesssignature)"
)
_QUERIED: Final = r"sig|signature|key|code|auth|token|secret|password|credential|session"
_PARAMETER: Final = r"(?:[\w-]{1,40}=\\?\"[^\"\n]{0,1024}\"|[^\s\"',]{1,2048})"
_PARAMETERS: Final = rf"{_PARAMETER}(?:,\s{{0,4}}{_PARAMETER}){{0,32}}"
_SECOND: Final = rf"(?:[ \t]{{1,4}}{_PARAMETERS})?"
_HEADER: Final = rf"authorization(?:{_SIGN})"
_SCHEME: Final = rf"(?:(?:{_SCHEMES})\s{{1,4}}+)"
_ISSUED: Final = (
    r"(?:hf|gsk|r8|npm|sk_live|sk_test|rk_live|whsec|shpat|lin_api)_[A-Za-z0-9]{16,256}"
    r"|(?:gh[pousr]|github_pat|dckr_pat|dop_v1|sk_live|sk_test)_[\w-]{12,256}"
    r"|(?:sk-|glpat-|xox[abeprs]-|xapp-|nvapi-|pypi-|xai-|tvly-|pplx-)[\w-]{12,256}"
    r"|A[KS]IA[A-Z0-9]{12,64}|AIza[\w-]{12,256}|(?:ya29|hvs|SG)\.[\w.-]{12,2048}"
)
_ISSUER: Final = (
    r"(?:hf|gsk|r8|npm|live|test|whsec|shpat|api|gh[pousr]|pat|v1)_|(?:sk|glpat|xox[abeprs]|xapp|nvapi|pypi|xai)-"
    r"|(?:tvly|pplx)-|a[ks]ia|aiza|(?:ya29|hvs|sg)\."
)
"""How one of those begins, in lower case."""
_DER: Final = r"[A-Za-z0-9+/]"
_PEM_LINE: Final = (
    rf"(?:\s|\\[nr]){{1,8}}(?:(?:Proc-Type|DEK-Info|Comment|Version):[^\n\\]{{0,200}}"
    rf"|{_DER}{{16,4096}}={{0,2}}|{_DER}{{1,76}}={{1,2}})"
)
_PEM_REST: Final = r"[\w\s\\+/=:,.-]{0,4096}?-----END [A-Z0-9 ]{1,64}-----"
# Four numbers behind a comparison or a "v" are a version.
_NO_VERSION: Final = r"(?<![=<>~!]=)(?<![vV])(?<![vV]ersion )"
_OCTET: Final = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"

# What the text must hold in lower case for the patterns to be tried, and the patterns, the widest first.
# Bounded repetitions and look-arounds over disjoint characters: linear on any text.
_SECRETS: Final[tuple[tuple[str, list[str]], ...]] = (
    (
        "-----begin",
        [
            rf"-----BEGIN [A-Z0-9 ]{{1,64}}-----(?:{_PEM_REST}|(?:{_PEM_LINE}){{0,128}})",
        ],
    ),
    (
        "authorization",
        [
            rf"(?i)(?P<keep>{_HEADER}{_QUOTE}{_SCHEME}?+)(?!\[redacted){_CHARACTER}{{1,2048}}",
            rf"(?i)(?P<keep>{_HEADER}{_SCHEME})(?!\[redacted|\\?[\"']){_PARAMETERS}",
            rf"(?i)(?P<keep>{_HEADER})(?!\[redacted|{_SCHEME}\[redacted){_PARAMETERS}{_SECOND}",
        ],
    ),
    (
        "cookie",
        [
            rf"(?i)(?P<keep>cookies?(?:{_SIGN}){_QUOTE})(?!\[redacted){_CHARACTER}{{1,2048}}",
            r"(?i)(?P<keep>cookie\s{0,4}[:=]\s{0,4}+)(?!\[redacted)[^\n\"']{1,4096}",
        ],
    ),
    (
        "://",
        [
            r"(?<=://)(?:[^\s/@]{1,256}|[^\s/@:]{0,128}:[^\s\"'<>]{1,512})(?=@)",
            r"(?i)(?<=hooks\.slack\.com/services/)[\w/]{8,256}",
        ],
    ),
    (
        "[?&]",
        [
            rf"(?i)(?P<keep>[?&](?:[\w.%-]{{0,40}}[-_.])?(?:{_QUERIED})=)(?!\[redacted)[^\s&#\"'<>]{{1,2048}}",
        ],
    ),
    (
        _behind("pass(?:word|wd|phrase)|secret|credentials?|key|signature"),
        ["(?i)" + pattern for pattern in _named(_WORDS, _NO_VALUE)],
    ),
    (_behind("token"), ["(?i)" + pattern for pattern in _named("token", _NO_TOKEN)]),
    (_behind("pwd"), ["(?i)" + pattern for pattern in _named("pwd", _NO_FOLDER)]),
    (
        "_pass=",
        [
            rf"(?P<keep>_PASS=)(?!\[redacted){_UNQUOTED}",
            rf"(?P<keep>_PASS={_QUOTE})(?!\[redacted){_CHARACTER}{{1,2048}}",
        ],
    ),
    ("-u |-user ", [r"(?<![\w-])(?P<keep>-u |--user )[^\s:\"']{1,128}:[^\s\"']{1,256}"]),
    (
        "bearer |basic ",
        [
            r"(?P<keep>\b(?i:bearer) {1,4})[\w.~+/-]{6,2048}={0,2}",
            # Its value is base64; a basic requirement is not.
            r"(?P<keep>\b(?i:basic) {1,4})(?=[A-Za-z/]{0,2048}(?:[\d=+]|(?<=\w)[A-Z]))[\w+/-]{6,}={0,2}",
        ],
    ),
    (
        _ISSUER,
        [rf"(?<![A-Za-z0-9])(?:{_ISSUED})"],
    ),
    ("eyj", [r"(?<![\w-])eyJ[\w-]{8,4096}(?:(?:\.[\w-]{0,4096}){1,4}|\Z)"]),
    (
        "mi[igh]|mc4caq|b3blbnnza",
        [rf"(?<![\w+/])(?:MI[IGH]|MC4CAQ|b3BlbnNzaC1rZXk){_DER}{{40,4096}}={{0,2}}"],
    ),
    # The lines inside a PEM block, which may be pasted or read without its first; a digest has one case.
    (
        "[a-z0-9+/]{64}",
        [
            rf"(?m)^(?=[^a-z\n]{{0,76}}[a-z])(?=[^A-Z\n]{{0,76}}[A-Z])(?=[^\d\n]{{0,76}}\d)(?!/){_DER}{{64,76}}$",
        ],
    ),
    ("@", [r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"]),
    (
        r"\d\.\d{1,3}\.\d{1,3}\.\d",
        [
            rf"{_NO_VERSION}(?<![\d.])(?:{_OCTET}\.){{3}}{_OCTET}(?![\d.]{{0,8}}\d)",
        ],
    ),
    (r"ip-\d", [r"(?<![\w-])ip(?:-\d{1,3}){4}(?![\w-])"]),
    (
        "[0-9a-f]:[0-9a-f]{1,4}:[0-9a-f]{1,4}:[0-9a-f]",
        [r"(?i)(?<![\w:.])(?:[0-9a-f]{1,4}:){5,7}[0-9a-f]{1,4}(?![\w:])"],
    ),
    ("::", [r"(?i)(?<![\w:.])(?:[0-9a-f]{1,4}:){1,6}(?::[0-9a-f]{1,4}){1,6}(?![\w:])"]),
)


def _together(signs: Iterable[str]) -> Any:
    """One automaton that tells which of the signs are in a text: most messages have none or one."""
    together = re2.Set.SearchSet()
    for sign in signs:
        together.Add(sign)
    together.Compile()
    return together


_SUSPECT: Final = _together(sign for sign, _ in _SECRETS)
_ANY: Final = re2.compile("|".join(sign for sign, _ in _SECRETS).encode())
_HARMLESS: Final = re.compile(r"-?\d{1,12}|[A-Za-z_]{1,8}|torch\.\w{1,16}|[(\[][\d, ]{0,60}[)\]]")
"""Values that no secret looks like: counts, words, element types, shapes."""


@cache
def _patterns(number: int) -> tuple[re.Pattern[str], ...]:
    """Those behind one sign; most texts need none, and compiling all would take a tenth of a start."""
    return tuple(re.compile(pattern) for pattern in _SECRETS[number][1])


def _without(found: re.Match[str]) -> str:
    return f"{found.groupdict().get('keep') or ''}{REDACTED}"


def may_hold_secrets(text: str) -> bool:
    """Whether something in a text looks as if it had to be taken out; where not, no part of it has to be."""
    return _ANY.search(text.lower().encode("utf-8", "replace")) is not None


def redact(text: str) -> str:
    """The text, cut to SHOWN characters, without secrets, e-mail addresses and IP addresses."""
    if len(text) < 64 and _HARMLESS.fullmatch(text):
        return text
    cut = text[: SHOWN + MARGIN]
    if not may_hold_secrets(cut):
        return cut[:SHOWN]
    # Without an answer the automaton had no room for one: then everything is looked for.
    lower = cut.lower().encode("utf-8", "replace")
    for number in sorted(_SUSPECT.Match(lower) or range(len(_SECRETS))):
        for pattern in _patterns(number):
            cut = pattern.sub(_without, cut)
    return cut[:SHOWN]
