"""Secrets and addresses do not come back out."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.faults import demonstrate
from catalog.match import Matcher
from catalog.match.redact import _SECRETS, REDACTED, SHOWN, may_hold_secrets, redact
from catalog.store import load_catalog

MIXED = "AbCdEfGh1jKlMnOpQrStUvWx"  # characters as of a token; joined here to what makes it one
BEGIN, END = (f"-----{word} PRIVATE {'KEY'}-----" for word in ("BEGIN", "END"))

SECRETS = [
    "hf_AbCdEfGhIjKlMnOpQrStUv",
    "sk-proj-abcdefghijklmnopqrst",
    "_".join(("ghp", "abcdefghijklmnopqrstuvwxyz0123456789")),  # no scanner takes it for a leak
    "github_pat_11ABCDEFG0abcdefghijkl",
    "AKIAIOSFODNN7EXAMPLE",
    *("_".join((issuer, MIXED)) for issuer in ("npm", "gsk", "r8", "dckr_pat", "sk_live")),
    ".".join(("ya29", MIXED)),
    "MII" + "EvQ" + MIXED * 2,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijk",
    "someone.else+tag@mail.example.org",
    "192.168.17.4",
    "2001:db8:0:0:8a2e:370:7334:1",
    "fe80::1ff:fe23:4567:890a",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_taken_out_wherever_it_stands(secret: str) -> None:
    for text in (secret, f"a {secret} b", f"'{secret}'", f"key={secret},"):
        assert secret not in redact(text)
        assert REDACTED in redact(text)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("password=hunter22 x", "password=[redacted] x"),
        ("password=ab,cd; x", "password=[redacted]; x"),
        ('password="a b c"', 'password="[redacted]"'),
        ("secret_key='abcd efgh'", "secret_key='[redacted]'"),
        (r"{\"password\": \"a b\", \"n\": 1}", r"{\"password\": \"[redacted]\", \"n\": 1}"),
        (r'{"password": "a\"b c", "n": 1}', '{"password": "[redacted]", "n": 1}'),
        ("('password', 'a b')", "('password', '[redacted]')"),
        ("serve --password x --port 1", "serve --password [redacted] --port 1"),
        ("serve --hf-token 'a b'", "serve --hf-token '[redacted]'"),
        ("curl -u me:pw http://h", "curl -u [redacted] http://h"),
        ("token: 123456789012", "token: [redacted]"),
        ("api_key=12345678901234", "api_key=[redacted]"),
        ("MYSQL_PASS=x", "MYSQL_PASS=[redacted]"),
        ("pwd=hunter2", "pwd=[redacted]"),
        ("AccountKey=ab+/c==;Endpoint=core", "AccountKey=[redacted];Endpoint=core"),
        ("redis://:pw@h/0", "redis://[redacted]@h/0"),
        ("postgres://u:p/w@h/db", "postgres://[redacted]@h/db"),
        ("https://tok@github.com/a", "https://[redacted]@github.com/a"),
        ("GET /blob?a=1&sig=ab%2Fc%3D&x=2", "GET /blob?a=1&sig=[redacted]&x=2"),
        ("Cookie: session=abc; other=d\nnext", "Cookie: [redacted]\nnext"),
        ("{'Cookie': 'session=1; b=2', 'n': 1}", "{'Cookie': '[redacted]', 'n': 1}"),
        (f"{BEGIN}\n{MIXED}\n{MIXED}=\n{END}\nnext", "[redacted]\nnext"),
        (f"{BEGIN}\n{MIXED}\nRuntimeError: next", "[redacted]\nRuntimeError: next"),
        (f"{BEGIN}\\n{MIXED}\\n{END}\\n'", "[redacted]\\n'"),
        (f"read\n{MIXED * 2}{MIXED[:16]}\nnext", "read\n[redacted]\nnext"),
        ('{"api_key": "abcd-efgh"}', '{"api_key": "[redacted]"}'),
        ("HF_TOKEN: abcdefgh", "HF_TOKEN: [redacted]"),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer [redacted]"),
        ("Authorization: Basic dXNlcjpwYXNz next", "Authorization: Basic [redacted] next"),
        (
            'Authorization: Digest username="M", realm="r s", response="66" next',
            "Authorization: Digest [redacted] next",
        ),
        (
            "Proxy-Authorization: AWS4-HMAC-SHA256 Credential=K/2/us, SignedHeaders=h, Signature=fe",
            "Proxy-Authorization: AWS4-HMAC-SHA256 [redacted]",
        ),
        ("Authorization: abcdef", "Authorization: [redacted]"),
        ("Authorization: Unheard abcdef", "Authorization: [redacted]"),
        ("{'Authorization': 'Token ab cd', 'n': 1}", "{'Authorization': 'Token [redacted]', 'n': 1}"),
        ("Basic dXNlcjpwYXNz next", "Basic [redacted] next"),
        ("https://user:pass1@host/x", "https://[redacted]@host/x"),
        ("AWS_SECRET_ACCESS_KEY=abcdefgh", "AWS_SECRET_ACCESS_KEY=[redacted]"),
    ],
)
def test_a_named_secret_leaves_its_name(text: str, redacted: str) -> None:
    assert redact(text) == redacted
    assert redact(redacted) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "num_tokens=1024, max_token: 4096",
        "torch==2.13.0, shape (1, 2, 3, 4), 3.7.1",
        "c10::cuda::get, std::vector<int>, 09:14:03",
        "kv_scales must be fp32, got torch.bfloat16",
        "blocks.0.attn@2 key: (16, 14)",
        "scale_ue8m0=True, token=None, password=None, pad_token='<pad>', eos_token: </s>",
        "token: torch.bfloat16, token: (16, 14), token: 17",
        "sglang 0.5.23, cudnn==9.1.0.70, driver v12.4.5.8, version 1.2.3.4, libcudnn.so.9.1.0.70",
        "/opt/sglang/csrc/gemm/per_token_group_quant.cuh:488, PWD=/opt/sglang/build",
        "/errors/3018da578aab5d5a, 0132848349585cfe6aae51c4941cbae872505f8a, sha256:" + "0a" * 32,
        "hf_quant_config.json, npm_config_registry_of_ours, asia-northeast1-docker",
        "a basic requirement of the bearer, 2026-12-02 09:14:03:123",
        "Tensor<4, 256>[strides=<256, 1>, dtype=float8_e4m3fn, device=cuda:0]",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_what_the_catalog_prints_stays() -> None:
    """Every message, its pattern's text and the examples' renderings."""
    found = [curated.record.error_message for curated in load_catalog().records]
    found += [
        shown.violation.text
        for curated in load_catalog().records
        for case in curated.fault.cases
        if (shown := demonstrate(case)) is not None
    ]
    assert [text for text in found if redact(text) != text[:SHOWN]] == []


@given(st.lists(st.sampled_from([*SECRETS, "password=", "token: ", "Authorization: ", "'", '"', ", ", "\n"])))
def test_what_is_redacted_is_redacted_for_good(pieces: list[str]) -> None:
    once = redact(" ".join(pieces))
    assert redact(once) == once


def test_a_secret_across_the_cut_is_known_as_one() -> None:
    for secret in SECRETS:
        shown = redact("x" * (SHOWN - 9) + " " + secret)
        assert secret[:6] not in shown


def test_long_texts_are_cut_and_cost_little() -> None:
    started = time.perf_counter()
    units = ["a", "a.", "a@", "1.", "::", "token=", "eyJ.", "://a:", "password=,", "?a-key=", "--a", "A1a/"]
    units += ["cookie:", '\\"', "basic a", "-u a:", "secret='\\", "authorization: basic ", f"{BEGIN}", MIXED]
    for unit in units:
        assert len(redact(unit * 1_000_000)) <= SHOWN
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("secret", SECRETS)
def test_a_report_holds_no_secret(matcher: Matcher, secret: str) -> None:
    text = (
        f"{secret}\nValueError: Unsupported Quanto weight type for '{secret}': 'qint4'\n"
        f"OSError: cannot log in as {secret}\n"
        f"ValueError: Invalid _quantization_metadatum in {secret} for {secret}\n"
    )
    report = matcher.match(text)
    assert report.has_match
    assert len(report.unmatched) == 2
    assert secret not in repr(report)
    assert secret not in repr(matcher.match(f"Quanto layer {secret} is mising tensors of {secret}"))


NAMES = ("password", "secretKey", "credentials", "api_key", "account-key", "signature", "token", "pwd", "é")
SIGNS = (
    "=",
    " : ",
    "\u00a0=\u00a0",
    '\\": \\"',
    "', '",
    " => ",
    "\n=",
    "--",
    "--my-",
    " ",
    "\t",
    ",",
    ".",
    ":",
    "::",
)
VALUES = (
    "hunter2hunter2",
    "q9x8",
    "10",
    "fe80",
    "192",
    "1",
    "ip-10-0-0-7",
    "mail@example.org",
    "https://u:p@h",
)


@given(st.lists(st.sampled_from([*NAMES, *SIGNS, *VALUES, *SECRETS]), max_size=12))
def test_what_no_sign_suspects_no_pattern_changes(pieces: list[str]) -> None:
    text = "".join(pieces)
    if not may_hold_secrets(text):
        for _, patterns in _SECRETS:
            for pattern in patterns:
                assert re.search(pattern, text) is None, pattern
