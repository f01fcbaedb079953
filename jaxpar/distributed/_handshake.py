"""Both ends of a connection show that they know the job's secret, and never send it.

    rank:    jaxpar 1 <nonce> <where its secret comes from>
    rank 0:  jaxpar 1 <nonce> <where its secret comes from>
    rank:    <seal> <its hello>
    rank 0:  <seal> <an answer>, or: jaxpar refused

A seal is the HMAC of both nonces, the speaker, the number of the line and its text. So a line that was
recorded proves nothing on another connection, or in another place of this one. The rank shows its seal first:
who only connects gets nothing by which a secret could be guessed. Nothing is parsed before its seal is found
right.
"""

from __future__ import annotations

import hmac
import re
import secrets
import socket
import time

from .secret import VARIABLE, Secret

LONGEST = 65_536
"""Bytes of a line, at most."""
GREETING = re.compile(rb"jaxpar 1 ([0-9a-f]{32}) ([A-Za-z_]{1,40})")
REFUSED = b"jaxpar refused\n"
RANK, RANK_0 = b"rank", b"rank 0"


class Stranger(Exception):
    """Whoever is at the other end has not shown that it belongs to the job."""


class OtherSecret(Stranger):
    """It knows the protocol, and another secret."""


def nonce() -> bytes:
    return secrets.token_hex(16).encode()


def greeting(nonce: bytes, secret: Secret) -> bytes:
    return b"jaxpar 1 %s %s\n" % (nonce, secret.source.encode())


class Session:
    """What both ends of one connection seal their lines with."""

    def __init__(self, secret: Secret, rank_nonce: bytes, rank_0_nonce: bytes, other: bytes):
        """`other` is what the other end's secret comes from."""
        self.secret, self.nonces, self.other = secret, rank_nonce + rank_0_nonce, other.decode()
        self.lines = {RANK: 0, RANK_0: 0}

    def seal(self, speaker: bytes, text: bytes) -> bytes:
        """The next line of this end, which is `speaker`."""
        return self._of_next(speaker, text) + b" " + text + b"\n"

    def open(self, speaker: bytes, line: bytes) -> bytes:
        """The text of the other end's next line, without its newline.

        Raises:
          OtherSecret: its seal is wrong.
        """
        seal, _, text = line.partition(b" ")
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
    """Both greetings, from a rank's end.

    Raises:
      Stranger: there is no greeting until the deadline.
    """
    reader, rank_nonce = LineReader(connection), nonce()
    connection.sendall(greeting(rank_nonce, secret))
    greeted = GREETING.fullmatch(reader.line(deadline) or b"")
    if greeted is None:
        raise Stranger("what listens there is not rank 0 of this job, runs an older jaxpar, or ended")
    return Session(secret, rank_nonce, greeted[1], greeted[2]), reader


class LineReader:
    """The lines of a connection that blocks."""

    def __init__(self, connection: socket.socket):
        self.connection, self.heard = connection, b""

    def line(self, deadline: float) -> bytes | None:
        """The next line; None if the other end closes, says too much, or says nothing until the deadline."""
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
