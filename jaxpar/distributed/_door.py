"""Rank 0's listener: accepts only peers that prove the job secret.

Strangers get a few seconds, a few kilobytes and one of a limited number of connections, and learn nothing but
a random number. torch's TCPStore parses bytes from any peer.
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
"""Maximum number of unauthenticated connections."""
PATIENCE = 10.0
"""Seconds within which a connection must prove the job secret."""
LONGEST_HELLO = 4096
"""Maximum bytes from an unauthenticated connection."""
AT_ONCE = 64
"""Maximum accepts per poll, so that accepted peers are not starved."""
WITHOUT_SECRET = b'{"jaxpar"'
"""First bytes of the hello of jaxpar versions without secrets."""


class Visitor:
    """One connection and its state in the handshake."""

    def __init__(self, connection: socket.socket, address: str):
        self.connection, self.address = connection, address
        self.until = time.monotonic() + PATIENCE
        self.heard = b""
        self.session: Session | None = None
        """None until the greeting has arrived."""
        self.hello: bytes | None = None
        """The hello, once the peer has proved the job secret."""


class Door:
    """Serve all connections in one thread. An error on one connection closes only that connection."""

    def __init__(self, port: ListeningPort, secret: Secret, outdated: bytes):
        """`outdated` is the reply to jaxpar versions without secrets."""
        self.port, self.secret, self.outdated = port, secret, outdated
        self.visitors: dict[socket.socket, Visitor] = {}  # in order of arrival
        self.guests: dict[socket.socket, Visitor] = {}
        self.turned_away: Counter[str] = Counter()
        """Counts of rejected jaxpar peers by reason: `"secret"`, `"outdated"`."""
        self.selector = selectors.DefaultSelector()
        for listener in port.listeners:
            self.selector.register(listener, selectors.EVENT_READ)

    def close(self) -> None:
        self.port.close()
        for connection in [*self.visitors, *self.guests]:
            connection.close()
        self.selector.close()

    def look(self, seconds: float) -> tuple[list[Visitor], list[Visitor]]:
        """Poll for up to `seconds`, and return the guests that arrived and the guests that departed."""
        arrived, departed, listeners = [], [], []
        for key, _ in self.selector.select(seconds):
            connection: Any = key.fileobj
            if connection in self.guests:
                departed += self._departed(connection)
            elif connection in self.visitors:
                arrived += self._hear(self.visitors[connection])
            else:
                listeners.append(connection)
        # Accepting comes last, because it may close a visitor that this poll reported as readable.
        for listener in listeners:
            self._accept(listener)
        self._expire()
        return arrived, departed

    def tell(self, guest: Visitor, text: bytes) -> None:
        assert guest.session is not None
        with contextlib.suppress(OSError):  # the rank has ended, which the poll reports
            guest.connection.setblocking(True)
            guest.connection.settimeout(2)
            guest.connection.sendall(guest.session.seal(RANK_0, text))
            guest.connection.setblocking(False)

    def dismiss(self, guest: Visitor, text: bytes) -> None:
        self.tell(guest, text)
        self._forget(guest)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, peer_address = listener.accept()
            except BlockingIOError:
                return
            except OSError:
                # The peer has closed already, or this process is out of file descriptors: free one.
                if self.visitors:
                    self._forget(self._dispensable())
                return
            if len(self.visitors) >= PLACES:
                self._forget(self._dispensable())
            connection.setblocking(False)
            self.visitors[connection] = Visitor(connection, str(peer_address[0]))
            self.selector.register(connection, selectors.EVENT_READ)

    def _dispensable(self) -> Visitor:
        # Real ranks greet at once, so silent visitors go first; and one host that floods the port only
        # displaces its own connections.
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
        """Read from a visitor; return it in a list if it became a guest."""
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
