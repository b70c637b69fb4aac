"""The bearer token: where it is kept, and that nobody else can read it."""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from pathlib import Path

from composer_core.errors import ConfigError
from composer_plugin_server.config import TOKEN_FILE, TOKEN_VARIABLE

SHORTEST = 16


def read_token(token_file: str, *, make: bool = False) -> str:
    """The token: of `token_file`, else of the variable, else of the usual file, which is made if `make` is given.

    Raises:
        ConfigError: there is none, it is too short, or others may read its file.
    """
    place = token_place(token_file)
    if not isinstance(place, Path):
        return _long_enough(_given(), place)
    if make and not place.exists():
        _write(place)
    return _long_enough(_read(place), str(place))


def token_place(token_file: str) -> Path | str:
    """Where the token is looked for: a file, or in words the variable."""
    if _given() and not token_file:
        return f"the variable {TOKEN_VARIABLE}"
    return Path(token_file or TOKEN_FILE).expanduser()


def _given() -> str:
    return os.environ.get(TOKEN_VARIABLE, "").strip()


def same(given: str, token: str) -> bool:
    """Compares in a time that does not tell how much is right."""
    return hmac.compare_digest(given.encode(errors="surrogatepass"), token.encode())


def _write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(f"{secrets.token_urlsafe(32)}\n")


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        fix = f"copy the server's token file, or set {TOKEN_VARIABLE}"
        raise ConfigError("the server's token cannot be read", where=str(path), found=str(error), fix=fix) from error
    if not stat.S_ISREG(mode) or mode & 0o077:
        found = f"mode {stat.S_IMODE(mode):04o}"
        raise ConfigError(
            "others may read the token", where=str(path), expected="mode 0600", found=found, fix=f"chmod 600 {path}"
        )
    return text


def _long_enough(token: str, where: str) -> str:
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        fix = "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
        expected = f"{SHORTEST} printable ASCII characters or more, without blanks"
        raise ConfigError("the token is too easy to guess", where=where, expected=expected, fix=fix)
    return token
