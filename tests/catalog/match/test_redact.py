"""Secrets and addresses do not come back out."""

from __future__ import annotations

import time

import pytest

from catalog.match import Matcher
from catalog.match.redact import REDACTED, SHOWN, redact

SECRETS = [
    "hf_AbCdEfGhIjKlMnOpQrStUv",
    "sk-proj-abcdefghijklmnopqrst",
    "_".join(("ghp", "abcdefghijklmnopqrstuvwxyz0123456789")),  # no scanner takes it for a leak
    "github_pat_11ABCDEFG0abcdefghijkl",
    "AKIAIOSFODNN7EXAMPLE",
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
        ('{"api_key": "abcd-efgh"}', '{"api_key": "[redacted]"}'),
        ("HF_TOKEN: abcdefgh", "HF_TOKEN: [redacted]"),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer [redacted]"),
        ("https://user:pass1@host/x", "https://[redacted]@host/x"),
        ("AWS_SECRET_ACCESS_KEY=abcdefgh", "AWS_SECRET_ACCESS_KEY=[redacted]"),
    ],
)
def test_a_named_secret_leaves_its_name(text: str, redacted: str) -> None:
    assert redact(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "num_tokens=1024, max_token: 4096",
        "torch==2.13.0, shape (1, 2, 3, 4), 3.7.1",
        "c10::cuda::get, std::vector<int>, 09:14:03",
        "kv_scales must be fp32, got torch.bfloat16",
        "blocks.0.attn@2 key: (16, 14)",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_long_texts_are_cut_and_cost_little() -> None:
    started = time.perf_counter()
    for unit in ("a", "a.", "a@", "1.", "::", "token=", "eyJ.", "://a:"):
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
