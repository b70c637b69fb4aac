"""The inner end of a sandbox's way out: a port of its own loopback, whose connections the host serves by requests.

The sandbox's network stays empty. What a command writes to the port is carried over the line that agent and host have
anyway, as answers to requests of the host (accept, read, write, shut, close), which so decides how much is on its way:
one piece for each connection and direction. The other end is `composer_envkit.networks`.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from composer_envkit.agent import linux

PORT = 3128
BACKLOG = 128
PIECE_BYTES = 1 << 16
GONE = {"closed": True}
Header = dict[str, Any]


class Relay:
    """An agent calls `step` whenever `fileno()` can be read."""

    def __init__(self, reply: Callable[[int, Header, bytes], None]) -> None:
        """`reply(number, header, data)` answers a request."""
        self.reply = reply
        self._poll = select.epoll()
        self._listener = -1
        self._accepting: deque[int] = deque()
        self._peers: dict[int, _Peer] = {}

    def fileno(self) -> int:
        return self._poll.fileno()

    def listen(self) -> None:
        """In the network that this process is in now, and in no other any more. Raises OSError."""
        fd = linux.listen_on_loopback(PORT, BACKLOG)
        self._unlisten()
        self._listener = fd
        self._poll.register(fd, select.EPOLLIN if self._accepting else 0)

    def ask(self, request: Header, data: bytes) -> None:
        """A request has n, act (accept, read, write, shut, close) and, but for accept, peer."""
        number, act = request["n"], request["act"]
        if act == "accept":
            self._accepting.append(number)
            self._accept()
            return
        peer = self._peers.get(request["peer"])
        if peer is None:
            self.reply(number, GONE, b"")
        elif act == "read":
            peer.reader = number
            self._read(peer)
        elif act == "write":
            peer.writer, peer.data = number, memoryview(data)
            self._write(peer)
        else:
            with suppress(OSError):
                linux.shut_for_writing(peer.fd)
            if act == "close":
                self._drop(peer)
            self.reply(number, {}, b"")

    def step(self) -> None:
        for fd, _ in self._poll.poll(0):
            if fd == self._listener:
                self._accept()
            elif fd in self._peers:
                peer = self._peers[fd]
                if peer.reader is not None:
                    self._read(peer)
                if peer.writer is not None:
                    self._write(peer)

    def _accept(self) -> None:
        while self._accepting and self._listener >= 0:
            fd = linux.accept(self._listener)
            if fd < 0:
                break
            self._peers[fd] = _Peer(fd)
            self.reply(self._accepting.popleft(), {"peer": fd}, b"")
        if self._listener >= 0:
            self._poll.modify(self._listener, select.EPOLLIN if self._accepting else 0)

    def _read(self, peer: _Peer) -> None:
        assert peer.reader is not None
        try:
            data = os.read(peer.fd, PIECE_BYTES)
        except BlockingIOError:
            self._watch(peer)
            return
        except OSError:
            data = b""
        number, peer.reader = peer.reader, None
        self._watch(peer)
        self.reply(number, {}, data)

    def _write(self, peer: _Peer) -> None:
        assert peer.writer is not None
        answer: Header = {}
        try:
            while peer.data:
                peer.data = peer.data[os.write(peer.fd, peer.data) :]
        except BlockingIOError:
            self._watch(peer)
            return
        except OSError:
            answer = GONE
        number, peer.writer = peer.writer, None
        self._watch(peer)
        self.reply(number, answer, b"")

    def _watch(self, peer: _Peer) -> None:
        """Only for what somebody waits for: a connection that was broken would be ready for ever."""
        wanted = select.EPOLLIN * (peer.reader is not None) | select.EPOLLOUT * (peer.writer is not None)
        if wanted and peer.watched:
            self._poll.modify(peer.fd, wanted)
        elif wanted:
            self._poll.register(peer.fd, wanted)
        elif peer.watched:
            self._poll.unregister(peer.fd)
        peer.watched = wanted

    def _drop(self, peer: _Peer) -> None:
        if self._peers.pop(peer.fd, None):
            os.close(peer.fd)
        for number in (peer.reader, peer.writer):
            if number is not None:
                self.reply(number, GONE, b"")

    def _unlisten(self) -> None:
        if self._listener >= 0:
            os.close(self._listener)
        self._listener = -1

    def close(self) -> None:
        """Whoever waits is told."""
        self._unlisten()
        for peer in list(self._peers.values()):
            self._drop(peer)
        for number in self._accepting:
            self.reply(number, GONE, b"")
        self._accepting.clear()
        self._poll.close()


class _Peer:
    """One connection: the numbers of the requests that wait for it, and what is still to be written."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.reader: int | None = None
        self.writer: int | None = None
        self.data = memoryview(b"")
        self.watched = 0
