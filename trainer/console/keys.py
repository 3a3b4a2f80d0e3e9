"""Who may use the console: its keys, and the logins that are made of them.

There is always a key, also on loopback, because any web page can reach loopback. Keys come from variables, or from a
file that the first start makes, readable by its owner only. A login is a signed statement of who logged in and until
when, with a secret that follows from the keys: it survives a restart of the server, and ends with the keys. A key that
is rotated counts at once, as the file is looked at with every request.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from data_bridge.errors import ConfigurationError
from data_bridge.private_files import make_private, owner_hint
from data_bridge.redaction import register_secret

SESSION_SECONDS = 7 * 24 * 3600
CODE_SECONDS = 15 * 60
"""How long the link that is printed at the start can be used, once."""


class Permission(StrEnum):
    READ = "read"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request: a role, and a name for the audit log that tells keys apart without giving them away."""

    role: Permission
    name: str
    by_cookie: bool = False
    writes_for: tuple[str, str] | None = None
    """Of a key for ingest: ``agent``, ``team`` or ``game``, and which."""

    @property
    def may_act(self) -> bool:
        return self.role is Permission.FULL


@dataclass(frozen=True, slots=True)
class KeyPair:
    full: str
    read: str

    @property
    def secret(self) -> bytes:
        """What logins are signed with: whoever rotates a key ends them all."""
        return hashlib.sha256(f"hindsight console {self.full} {self.read}".encode()).digest()


def key_file(home: Path) -> Path:
    return home / "console" / "keys.json"


def make_keys(home: Path) -> KeyPair:
    """New keys, in their file; it is replaced as a whole."""
    pair = KeyPair(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
    path = key_file(home)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        make_private(path.parent)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o600)  # also if something of that name was there with another mode
            json.dump({"full": pair.full, "read": pair.read}, file)
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigurationError(
            f"The console's keys cannot be written to {path} ({error.strerror}){owner_hint(path.parent)}."
        ) from error
    return pair


@dataclass(slots=True)
class Keys:
    """The keys as they are now."""

    home: Path
    given: KeyPair | None = None
    """From variables: then there is no file."""
    _read_at: int = -1
    _pair: KeyPair | None = None
    _codes: dict[str, float] = field(default_factory=dict)
    """One-time codes by their digest, with the time until which they count."""

    @classmethod
    def open(cls, home: Path, full: str | None, read: str | None) -> tuple[Keys, bool]:
        """The keys, and whether they were made just now. ConfigurationError if a given one is too short."""
        if full is None and read is not None:
            raise ConfigurationError("HINDSIGHT_CONSOLE_READ_KEY needs HINDSIGHT_CONSOLE_KEY beside it: set both.")
        if full is not None:
            pair = KeyPair(full, read or secrets.token_urlsafe(32))
            if min(map(len, (pair.full, pair.read))) < 20 or pair.full == pair.read:
                raise ConfigurationError(
                    "HINDSIGHT_CONSOLE_KEY and HINDSIGHT_CONSOLE_READ_KEY must differ, and have 20 characters or more."
                )
            return cls(home, pair), False
        is_new = not key_file(home).exists()
        if is_new:
            make_keys(home)
        keys = cls(home)
        keys.pair()  # a file that cannot be read is said now
        return keys, is_new

    def pair(self) -> KeyPair:
        if self.given is not None:
            return self.given
        path = key_file(self.home)
        try:
            found = path.stat()
            if self._pair is None or found.st_mtime_ns != self._read_at:
                if found.st_mode & 0o077:
                    raise ConfigurationError(
                        f"{path} can be read by others (mode {found.st_mode & 0o777:o}): `chmod 600 {path}`, and "
                        "`console.py --rotate-keys`, as they may have read it."
                    )
                stored = json.loads(path.read_text(encoding="utf-8"))
                self._pair, self._read_at = KeyPair(stored["full"], stored["read"]), found.st_mtime_ns
                register_secret(self._pair.full)
                register_secret(self._pair.read)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(
                f"{path} cannot be read as the console's keys: `console.py --rotate-keys` makes new ones."
            ) from error
        return self._pair

    def caller_of_key(self, key: str) -> Caller | None:
        pair = self.pair()
        is_full, is_read = (_same(key, known) for known in (pair.full, pair.read))
        if not (is_full or is_read):
            return None
        return Caller(Permission.FULL, "the full key") if is_full else Caller(Permission.READ, "the read-only key")

    # Logins

    def session(self, role: Permission, now: float | None = None) -> str:
        """A login, as the value of a cookie."""
        until = int((time.time() if now is None else now) + SESSION_SECONDS)
        said = f"{role.value}.{until}.{secrets.token_urlsafe(9)}"
        return f"{said}.{self._signature(said)}"

    def caller_of_session(self, cookie: str, now: float | None = None) -> Caller | None:
        said, _, signature = cookie.rpartition(".")
        if not _same(signature, self._signature(said)):
            return None
        role, until, name = said.split(".")
        if int(until) < (time.time() if now is None else now):
            return None
        return Caller(Permission(role), f"login {name[:6]} ({role})", by_cookie=True)

    def _signature(self, said: str) -> str:
        digest = hmac.new(self.pair().secret, said.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def one_time_code(self, now: float | None = None) -> str:
        """A code that logs in once, for the link that is printed: the key itself stays out of addresses and logs."""
        code = secrets.token_urlsafe(24)
        self._codes[_digest(code)] = (time.time() if now is None else now) + CODE_SECONDS
        return code

    def use_code(self, code: str, now: float | None = None) -> bool:
        until = self._codes.pop(_digest(code), None)
        return until is not None and until >= (time.time() if now is None else now)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
