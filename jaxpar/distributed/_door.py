"""Rank 0's door: of all that connects to its port, it lets in who knows the job's secret.

A port scanner, a browser, a rank of another job, a program that sends nothing or far too much: each has a few
seconds, a few kilobytes and one of a limited number of places, and none is told more than a random number.
When the places are taken, the oldest connection goes, of those who have said nothing, from the address that
has most of them. A rank that this meets comes again. torch's TCPStore reads whatever anyone sends.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import Counter
from typing import Any

from ._handshake import GREETING, RANK, RANK_0, REFUSED, Session, Stranger, greeting, nonce
from ._port import ListeningPort
from .secret import Secret

PLACES = 256
"""Connections that have shown nothing yet, at most."""
PATIENCE = 10.0
"""Seconds in which a connection has to show that it belongs to the job."""
LONGEST_HELLO = 4096
"""Bytes that a connection may send until then."""
AT_ONCE = 64
"""Connections that are accepted in one go. Those who are in are heard in between."""
WITHOUT_SECRET = b'{"jaxpar"'
"""How the hello of a jaxpar begins that knows of no secret."""


class Visitor:
    """One connection, and what is known of it."""

    def __init__(self, connection: socket.socket, address: str):
        self.connection, self.address = connection, address
        self.until = time.monotonic() + PATIENCE
        self.heard = b""
        self.session: Session | None = None
        """None until it has greeted."""
        self.hello: bytes | None = None
        """Its hello, as soon as it has shown that it belongs to the job."""


class Door:
    """Listens to all who connect, in one thread. Whatever goes wrong with one of them ends that one alone."""

    def __init__(self, port: ListeningPort, secret: Secret, outdated: bytes):
        """`outdated` is the line for a jaxpar that knows of no secret."""
        self.port, self.secret, self.outdated = port, secret, outdated
        self.visitors: dict[socket.socket, Visitor] = {}  # in the order in which they came
        self.guests: dict[socket.socket, Visitor] = {}
        self.turned_away: Counter[str] = Counter()
        """Why those who spoke this protocol did not get in: `"secret"`, `"outdated"`."""
        self.selector = selectors.DefaultSelector()
        for listener in port.listeners:
            self.selector.register(listener, selectors.EVENT_READ)

    def close(self) -> None:
        self.port.close()
        for connection in [*self.visitors, *self.guests]:
            connection.close()
        self.selector.close()

    def look(self, seconds: float) -> tuple[list[Visitor], list[Visitor]]:
        """Waits up to `seconds` for something to happen; returns the guests that came and those that left."""
        arrived, departed, listeners = [], [], []
        for key, _ in self.selector.select(seconds):
            connection: Any = key.fileobj
            if connection in self.guests:
                departed += self._departed(connection)
            elif connection in self.visitors:
                arrived += self._hear(self.visitors[connection])
            else:
                listeners.append(connection)
        for listener in listeners:  # last: whoever is accepted may take the place of one that was just heard
            self._accept(listener)
        self._expire()
        return arrived, departed

    def tell(self, guest: Visitor, text: bytes) -> None:
        """Gives a guest the next answer."""
        assert guest.session is not None
        with contextlib.suppress(OSError):  # its rank has ended; the others will miss it later
            guest.connection.setblocking(True)
            guest.connection.settimeout(2)
            guest.connection.sendall(guest.session.seal(RANK_0, text))
            guest.connection.setblocking(False)

    def dismiss(self, guest: Visitor, text: bytes) -> None:
        """Gives a guest its last answer."""
        self.tell(guest, text)
        self._forget(guest)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, peer_address = listener.accept()
            except BlockingIOError:
                return
            except OSError:  # it has gone already, or this process has no more files to open
                if self.visitors:
                    self._forget(self._dispensable())
                return
            if len(self.visitors) >= PLACES:
                self._forget(self._dispensable())
            connection.setblocking(False)
            self.visitors[connection] = Visitor(connection, str(peer_address[0]))
            self.selector.register(connection, selectors.EVENT_READ)

    def _dispensable(self) -> Visitor:
        silent = [visitor for visitor in self.visitors.values() if visitor.session is None]
        candidates = silent or list(self.visitors.values())
        most, _ = Counter(visitor.address for visitor in candidates).most_common(1)[0]
        return next(visitor for visitor in candidates if visitor.address == most)

    def _expire(self) -> None:
        now = time.monotonic()
        for visitor in list(self.visitors.values()):
            if visitor.until > now:
                return
            self._forget(visitor)

    def _departed(self, connection: socket.socket) -> list[Visitor]:
        """A guest that can be read has ended, or says more than a rank does."""
        guest = self.guests[connection]
        try:
            connection.recv(1)
        except BlockingIOError:
            return []
        except OSError:
            pass
        self._forget(guest)
        return [guest]

    def _hear(self, visitor: Visitor) -> list[Visitor]:
        """Reads what a visitor sends; returns it if that makes it a guest."""
        try:
            self._read(visitor)
            while b"\n" in visitor.heard and visitor.hello is None:
                line, _, visitor.heard = visitor.heard.partition(b"\n")
                self._understand(visitor, line)
        except BlockingIOError:
            return []
        except (OSError, Stranger):
            self._forget(visitor)
            return []
        if visitor.hello is None:
            return []
        self.guests[visitor.connection] = self.visitors.pop(visitor.connection)
        return [visitor]

    def _read(self, visitor: Visitor) -> None:
        data = visitor.connection.recv(LONGEST_HELLO)
        visitor.heard += data
        if visitor.heard.startswith(WITHOUT_SECRET) and visitor.session is None:
            self.turned_away["outdated"] += 1
            visitor.connection.send(self.outdated)
            raise Stranger("an outdated jaxpar")
        if not data or len(visitor.heard) > LONGEST_HELLO:
            raise Stranger("it left, or sends too much")

    def _understand(self, visitor: Visitor, line: bytes) -> None:
        """A line that is complete: a greeting first, then the hello with its seal."""
        if visitor.session is None:
            greeted = GREETING.fullmatch(line)
            if greeted is None:
                raise Stranger("it speaks something else")
            own_nonce = nonce()
            visitor.session = Session(self.secret, greeted[1], own_nonce, greeted[2])
            visitor.connection.send(greeting(own_nonce, self.secret))
            return
        try:
            visitor.hello = visitor.session.open(RANK, line)
        except Stranger:
            self.turned_away["secret"] += 1
            visitor.connection.send(REFUSED)
            raise

    def _forget(self, visitor: Visitor) -> None:
        self.selector.unregister(visitor.connection)
        self.visitors.pop(visitor.connection, None)
        self.guests.pop(visitor.connection, None)
        visitor.connection.close()
