"""Mutual authentication of both ends of a connection by the job secret, which is never sent.

    rank:    jaxpar 1 <nonce> <source of its secret>
    rank 0:  jaxpar 1 <nonce> <source of its secret>
    rank:    <seal> <hello>
    rank 0:  <seal> <answer>, or: jaxpar refused

A seal is the HMAC of both nonces, the sender, the line number and the text, which prevents replays. No text
is parsed before its seal is verified.
"""

from __future__ import annotations

import hmac
import re
import secrets
import socket
import time

from .secret import VARIABLE, Secret

LONGEST = 65_536
"""Maximum bytes of a line."""
GREETING = re.compile(rb"jaxpar 1 ([0-9a-f]{32}) ([A-Za-z_]{1,40})")
REFUSED = b"jaxpar refused\n"
RANK, RANK_0 = b"rank", b"rank 0"


class Stranger(Exception):
    """The peer has not proved the job secret."""


class OtherSecret(Stranger):
    """The peer follows the protocol with a different secret."""


def nonce() -> bytes:
    return secrets.token_hex(16).encode()


def greeting(nonce: bytes, secret: Secret) -> bytes:
    return b"jaxpar 1 %s %s\n" % (nonce, secret.source.encode())


class Session:
    def __init__(self, secret: Secret, rank_nonce: bytes, rank_0_nonce: bytes, other: bytes):
        """`other` is the source of the peer's secret."""
        self.secret, self.nonces, self.other = secret, rank_nonce + rank_0_nonce, other.decode()
        self.lines = {RANK: 0, RANK_0: 0}

    def seal(self, speaker: bytes, text: bytes) -> bytes:
        return self._of_next(speaker, text) + b" " + text + b"\n"

    def open(self, speaker: bytes, line: bytes) -> bytes:
        """Return the text of the peer's next line; raise OtherSecret if its seal is wrong."""
        seal, _, text = line.partition(b" ")
        # Comparing in constant time does not reveal how many leading characters of a forged seal are right.
        if not hmac.compare_digest(seal, self._of_next(speaker, text)):
            raise OtherSecret(
                f"{speaker.decode()} has another secret (from {self.other}) than the one from "
                f"{self.secret.source} here; set {VARIABLE} to the same text on all ranks"
            )
        return text

    def _of_next(self, speaker: bytes, text: bytes) -> bytes:
        self.lines[speaker] += 1
        sealed = b"%s %s %d %s" % (self.nonces, speaker, self.lines[speaker], text)
        return hmac.digest(self.secret.key, sealed, "sha256").hex().encode()


def introduce(connection: socket.socket, secret: Secret, deadline: float) -> tuple[Session, LineReader]:
    """Exchange greetings from a rank's side; raise Stranger if none arrives before the deadline."""
    reader, rank_nonce = LineReader(connection), nonce()
    connection.sendall(greeting(rank_nonce, secret))
    greeted = GREETING.fullmatch(reader.line(deadline) or b"")
    if greeted is None:
        raise Stranger("what listens there is not rank 0 of this job, runs an older jaxpar, or ended")
    return Session(secret, rank_nonce, greeted[1], greeted[2]), reader


class LineReader:
    def __init__(self, connection: socket.socket):
        self.connection, self.heard = connection, b""

    def line(self, deadline: float) -> bytes | None:
        """Return the next line; None if the peer closes, sends too much, or misses the deadline."""
        while b"\n" not in self.heard:
            remaining = deadline - time.monotonic()
            if len(self.heard) > LONGEST or remaining <= 0:
                return None
            self.connection.settimeout(remaining)
            try:
                data = self.connection.recv(4096)
            except TimeoutError:
                return None
            if not data:
                return None
            self.heard += data
        line, _, self.heard = self.heard.partition(b"\n")
        return line
