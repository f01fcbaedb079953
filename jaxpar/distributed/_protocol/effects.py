"""What a rank's side of the protocol asks its transport to do."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar


class Begin(NamedTuple):
    """Record a call in the call log: its public name, the counted name, the ranks that it needs."""

    call: str
    name: str
    needs: Sequence[int] | None


class Wait(NamedTuple):
    """Report that this rank is about to wait for others in something that is not a call."""


class Post(NamedTuple):
    key: str
    text: str


class Read(NamedTuple):
    """Wait for a key that `rank` of the default group posts; receive its text, None if it is late."""

    key: str
    rank: int


class ReadFolder(NamedTuple):
    """Receive all keys below a key that are set, with their texts, without waiting."""

    key: str


class Delete(NamedTuple):
    key: str


class Send(NamedTuple):
    """Send a message to all ranks."""

    kind: str
    fields: Mapping[str, object]


Effect: TypeAlias = "Begin | Wait | Post | Read | ReadFolder | Delete | Send"
T = TypeVar("T")
Effects: TypeAlias = "Generator[Effect, Any, T]"
