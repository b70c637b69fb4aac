"""Requests to a proxy, in a form that cannot be read in two ways (RFC 9110, 9112).

The host in the request's line counts, whatever a header says; headers of this hop are left out; a body has one length.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from attrs import frozen

from composer_core.hosts import canonical

REQUEST = re.compile(rb"([A-Z]{1,32}) ([!-~]{1,16384}) HTTP/1\.[01]")
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}):[ \t]*([\t -~\x80-\xff]*)")
OF_THIS_HOP = frozenset(
    b"connection host keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer upgrade".split()
)
REASONS = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway", 504: "Gateway Timeout"}


class Refusal(Exception):
    """A request is answered by the proxy itself."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status

    def answer(self) -> bytes:
        body = f"{self}\n".encode(errors="replace")
        head = f"HTTP/1.1 {self.status} {REASONS[self.status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


@frozen
class Request:
    """A request that can be read in one way only."""

    method: str
    host: str
    port: int
    path: str = ""
    """Empty for CONNECT."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Without those of this hop."""
    body_bytes: int | None = 0
    """None for one in chunks."""

    @classmethod
    def of(cls, head: bytes) -> Request:
        """Raises Refusal."""
        first, *lines = head.split(b"\r\n")
        found = REQUEST.fullmatch(first)
        pairs = [HEADER.fullmatch(line) for line in lines]
        if not found or not all(pairs):
            raise Refusal(400, "the request is not HTTP/1.1")
        method, target = found[1].decode(), found[2].decode()
        headers = [(pair[1].lower(), pair[2].strip(b" \t")) for pair in pairs if pair]
        if method == "CONNECT":
            return cls(method, *_authority(target, None))
        try:
            url = urlsplit(target)
        except ValueError as error:
            raise Refusal(400, "the request is not HTTP/1.1") from error
        if url.scheme != "http":
            raise Refusal(400, "plain HTTP is asked for by http://HOST/PATH, all else by CONNECT")
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        named = {
            name.strip(b" \t").lower() for key, value in headers if key == b"connection" for name in value.split(b",")
        }
        dropped = named | OF_THIS_HOP
        kept = tuple(pair for pair in headers if pair[0] not in dropped)
        return cls(method, *_authority(url.netloc, 80), path, kept, _length(headers, dropped))

    def head(self) -> bytes:
        """What the server is told."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == 80 else f":{self.port}"
        lines = [f"{self.method} {self.path} HTTP/1.1\r\nHost: {host}{port}\r\nConnection: close\r\n".encode()]
        return b"".join([*lines, *(name + b": " + value + b"\r\n" for name, value in self.headers), b"\r\n"])


def _authority(text: str, port: int | None) -> tuple[str, int]:
    """Host and port; `port` where none is given."""
    host, colon, number = text.rpartition(":")
    if not colon or number.endswith("]"):
        host, number = text, str(port or "")
    found = canonical(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    plain = re.fullmatch("[0-9]{1,5}", number) and 0 < int(number) < 1 << 16
    if not (found and plain) or (":" in host) != host.startswith("["):
        raise Refusal(400, "expected HOST:PORT")
    return found, int(number)


def _length(headers: list[tuple[bytes, bytes]], dropped: set[bytes]) -> int | None:
    """Of the body: one length, or chunks, and never both (RFC 9112 section 6.3)."""
    lengths = [value for name, value in headers if name == b"content-length"]
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if {b"content-length", b"transfer-encoding"} & dropped or len(lengths) + len(codings) > 1:
        raise Refusal(400, "a body has one length")
    plain = codings == [b"chunked"] if codings else not lengths or re.fullmatch(rb"[0-9]{1,15}", lengths[0])
    if not plain:
        raise Refusal(400, "a body has one length")
    return None if codings else int(lengths[0]) if lengths else 0
