"""Settings: environment variables with the prefix `FAULTBOOK_`, read once when the service starts.

`python -m app.settings` prints the table of docs/settings.md.
"""

from __future__ import annotations

import difflib
import ipaddress
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from platformdirs import user_data_path
from pydantic import ByteSize, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.access.keys import BadKeys, Keyring, index, parse
from app.access.rates import Rate

PREFIX = "FAULTBOOK_"
_MEBIBYTE = 1024 * 1024

log = logging.getLogger("faultbook.settings")


class SettingsError(Exception):
    """A variable holds a value that the service cannot use; the message names every such variable."""


class Settings(BaseSettings):
    """What an operator can choose. Byte sizes are plain numbers or `16MiB`; times are in seconds."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, validate_default=False
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    public_url: str = Field(
        "",
        description="Address that users see, such as `https://faults.example.org`; empty: relative links.",
    )
    root_path: str = Field(
        "", description="Path prefix under which a reverse proxy serves Faultbook, such as `/faultbook`."
    )
    data: Path = Field(
        default_factory=lambda: user_data_path("faultbook", appauthor=False),
        description="Folder for snapshots and results.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the worker runs operations; `auto` takes the GPU where there is one."
    )
    workers: int = Field(
        1,
        ge=0,
        le=64,
        description="Worker processes, each with a GPU to itself where there are any, so no more than "
        "those that are visible; 0 leaves level `run` out.",
    )
    run_timeout: float = Field(
        60.0, gt=0, le=3600, allow_inf_nan=False, description="Seconds one run may take before it is killed."
    )
    max_tensor_bytes: ByteSize = Field(
        ByteSize(1024 * _MEBIBYTE),
        gt=0,
        description="All tensors of one call together, at level `run`; a larger call gets 413.",
    )
    max_body_bytes: ByteSize = Field(
        ByteSize(16 * _MEBIBYTE), gt=0, description="Longest request body; a longer one gets 413."
    )
    gpu_memory_reserve: ByteSize = Field(
        ByteSize(1024 * _MEBIBYTE),
        ge=0,
        description="Memory of a GPU that runs leave free for others; with less free, none is started.",
    )
    allow_faulting_runs: bool = Field(
        False, description="Also run calls whose checks say that they read or write outside their tensors."
    )
    open: bool = Field(
        False, description="Allow level `run` when listening beyond loopback, where anybody could use it."
    )

    api_keys: str = Field(
        "",
        repr=False,
        description="Digests of API keys, as `faultbook keys` prints them; with any, requests need a key.",
    )
    api_keys_file: str = Field(
        "", description="File of such lines, read again when it changes; empty: none but those above."
    )
    anonymous: Literal["none", "read"] = Field(
        "none", description="What a request without a key may do where there are keys."
    )
    rate_limit: str = Field(
        "",
        description="Requests one key, or one address without a key, may make, such as `600/minute`; "
        "empty: any number.",
    )
    max_header_bytes: ByteSize = Field(
        ByteSize(32 * 1024), gt=0, description="All header fields of one request; more get 431."
    )
    forwarded_allow_ips: str = Field(
        "127.0.0.1,::1",
        description="Addresses and networks of reverse proxies whose `X-Forwarded-For` and "
        "`X-Forwarded-Proto` count; `*` trusts all.",
    )
    log_format: Literal["auto", "json", "text"] = Field(
        "auto", description="Form of the log; `auto` writes text to a terminal and JSON lines elsewhere."
    )

    broker_url: str = Field(
        "",
        description="Redis that hosts with GPUs share, such as `redis://redis:6379/0`; empty: the service's "
        "own processes run what is asked.",
    )
    retention: float = Field(
        7 * 86400.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds for which diagnoses that ran stay readable by their ids and answer equal calls.",
    )
    max_store_bytes: ByteSize = Field(
        ByteSize(512 * _MEBIBYTE),
        ge=64 * _MEBIBYTE,
        description="Jobs and diagnoses that are kept, all together, in the data folder or in Redis; beyond, "
        "the oldest answers go before their retention ends.",
    )
    upstream_python: str = Field(
        "",
        description="Interpreter that can import sglang: calls are put to upstream's own functions too, in a "
        "process of it; empty: not.",
    )
    upstream_modules: str = Field(
        "sglang,safetensors",
        description="Prefixes of the modules whose functions may be called there, between commas.",
    )
    upstream_timeout: float = Field(
        180.0,
        gt=0,
        le=3600,
        allow_inf_nan=False,
        description="Seconds upstream may take for one call; a kernel's first use compiles it for a minute.",
    )

    overlay: str = Field("", description="Folder of team notes: Markdown files about records; empty: none.")

    # Read by catalog.commit, which works without these settings too; here it is named, explained and checked.
    commit: str = Field(
        "",
        pattern="^([0-9a-f]{40})?$",
        description="Commit this installation was built from, which records of our own checks name; "
        "empty: the checkout's.",
    )

    @field_validator("public_url")
    @classmethod
    def _public_url(cls, value: str) -> str:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        if any(mark in value for mark in "?# \t\r\n\"'<>\\"):
            raise ValueError("must be an address without query, fragment, quotes or blanks")
        return value.rstrip("/")

    @field_validator("broker_url")
    @classmethod
    def _broker_url(cls, value: str) -> str:
        if value and not value.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must start with redis://, rediss:// or unix://")
        return value

    @field_validator("root_path")
    @classmethod
    def _root_path(cls, value: str) -> str:
        path = value.rstrip("/")
        if path and not path.startswith("/"):
            raise ValueError("must start with /")
        if path.startswith("//") or any(mark in path for mark in "?# \t\r\n\"'<>\\"):
            raise ValueError("must be a plain path such as /faultbook")
        return path

    @field_validator("rate_limit")
    @classmethod
    def _rate_limit(cls, value: str) -> str:
        Rate.parse(value)
        return value

    @field_validator("api_keys")
    @classmethod
    def _api_keys(cls, value: str) -> str:
        index(parse(value))
        return value

    @property
    def rate(self) -> Rate | None:
        """RATE_LIMIT as a number of requests in a period."""
        return Rate.parse(self.rate_limit)

    @property
    def has_keys(self) -> bool:
        """Whether requests need keys; a file that holds none yet lets nobody in."""
        return bool(self.api_keys.strip() or self.api_keys_file)

    def keyring(self) -> Keyring:
        """The keys; SettingsError where their file cannot be read or is wrong."""
        file = Path(self.api_keys_file).expanduser() if self.api_keys_file else None
        try:
            return Keyring(self.api_keys, file)
        except BadKeys as error:
            raise SettingsError(f"{variable('api_keys_file')}: {error}") from None
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise SettingsError(f"{variable('api_keys_file')}: {reason}") from None

    @property
    def notes(self) -> Path | None:
        """The folder of team notes."""
        return Path(self.overlay).expanduser() if self.overlay else None

    @property
    def base_url(self) -> str:
        """Where the service's `/` is for its users: PUBLIC_URL with ROOT_PATH once, else ROOT_PATH alone."""
        if self.public_url.endswith(self.root_path):
            return self.public_url or self.root_path
        return self.public_url + self.root_path


def load(**overrides: object) -> Settings:
    """Settings from the environment; `overrides` (the command line's options) win over it.

    Raises SettingsError that names each bad variable, and logs a warning for each unknown one.
    """
    for warning in unknown_variables(os.environ):
        log.warning(warning)
    try:
        return Settings(**overrides)  # type: ignore[arg-type]
    except ValidationError as error:
        lines = (
            f"{PREFIX}{str(fault['loc'][0]).upper()}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)
        )
        raise SettingsError("; ".join(lines)) from None


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """One sentence for each variable with our prefix that no setting reads, with the nearest name."""
    known = [name.upper() for name in Settings.model_fields]
    sentences = []
    for variable_name in sorted(environment):
        name = variable_name.upper().removeprefix(PREFIX)
        if not variable_name.upper().startswith(PREFIX) or name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {PREFIX}{near[0]}?" if near else ""
        sentences.append(f"{variable_name} is not a setting of this version and has no effect{hint}")
    return sentences


def variable(name: str) -> str:
    """The environment variable of a field."""
    return PREFIX + name.upper()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on `host`; an unknown name counts as reachable."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def run_allowed(settings: Settings) -> bool:
    """Whether level `run` may be offered: on loopback, to holders of keys, or to all where OPEN is set."""
    return settings.open or settings.has_keys or is_loopback(settings.host)


def reference() -> str:
    """docs/settings.md, made from the model."""
    rows = [
        "| variable | type | default | what it does |",
        "| --- | --- | --- | --- |",
        *(
            f"| `{variable(name)}` | {_kind(field)} | {_default(field)} | {field.description} |"
            for name, field in Settings.model_fields.items()
        ),
    ]
    return f"""\
# Settings

Environment variables, read once at start. `faultbook serve --host --port` override theirs. An empty
variable counts as unset; an unknown one with our prefix is warned about, a bad value stops the start with a
message that names it. Written by `python -m app.settings`; a test keeps it current.

{chr(10).join(rows)}

Listening beyond loopback with neither keys nor `{variable("open")}` switches level `run` off: checks and
look-ups stay available to everybody, running kernels does not. `{variable("public_url")}` may hold the
prefix of `{variable("root_path")}` or leave it out.

Jobs and answers take no more than `{variable("max_store_bytes")}` together. For what comes the oldest
answers go, first those of the same key where it has more than a fourth of all, then anybody's; a job that
has not ended never goes. What open jobs ask takes half of all at most, and an eighth for one key: beyond, a
job is refused with 503. The file in the data folder uses freed pages again, and gives what is left of them
back to the disk within ten minutes; with Redis, its `maxmemory` has to be half as much again.

A key's seconds are those for which its runs had a worker, however they ended, and those for which upstream's
interpreter was at its calls, loading and compiling included. A host that vanished is paid for until it was
last seen, at most two seconds before it went; one that was told to leave gives its run back and costs
nothing. One replica has four runs of a key under way for each worker, its own or the cluster's: beyond, a
request is refused with 503, and a job waits.

`faultbook keys NAME --scope diagnose` makes a key, shows it once on standard error, and prints the entry
that `{variable("api_keys")}` or its file holds in its place: `NAME:SCOPES:sha256-DIGEST`, scopes joined by
`+`, and a fourth part where the key's runs have a limit of seconds a day. `read` looks up and reads,
`diagnose` also diagnoses and runs, `admin` also reads `/metrics` and everybody's results. Two entries of one
name are how a key is replaced. Without a key `/healthz`, `/readyz`, `/docs` and what is the same everywhere
stay open.
"""


def _kind(field: FieldInfo) -> str:
    kind = field.annotation
    if kind is ByteSize:
        return "bytes"
    if isinstance(kind, type):
        return {str: "text", Path: "folder", bool: "true or false", int: "integer", float: "seconds"}[kind]
    return " \\| ".join(f"`{choice}`" for choice in kind.__args__)  # type: ignore[union-attr]


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "`faultbook` in the user's data folder"
    if field.annotation is ByteSize:
        return f"`{field.default.human_readable()}`"
    return f"`{field.default}`" if field.default != "" else "empty"


if __name__ == "__main__":
    sys.stdout.write(reference())
