"""How a command ends: with an answer, 0 or 1, or without one, 2; `port` has codes of its own."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from ..errors import JaxparError


@contextmanager
def plain_ending(code: int = 2) -> Iterator[None]:
    """Decorates a command: expected errors end in a line instead of a traceback, and none ends with code 1.

    Python's own code for an uncaught exception is 1, and here that means "different".

    Args:
      code: of a command that has no answer.
    """
    try:
        yield
        sys.stdout.flush()
    except JaxparError as error:
        click.echo(f"jaxpar: {error}", err=True)
        sys.exit(code)
    except OSError as error:
        click.echo(f"jaxpar: {error}", err=True)
        _forget_output()
        sys.exit(code)
    except KeyboardInterrupt as stop:
        click.echo(" ".join(["Stopped by Ctrl-C.", *getattr(stop, "__notes__", ())]), err=True)
        sys.exit(130)
    except click.ClickException:  # click prints these
        raise
    except Exception:
        traceback.print_exc()
        sys.exit(code)


def _forget_output() -> None:
    """What standard output did not take is tried again when Python ends, which then ends with code 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def leave(code: int) -> NoReturn:
    """Ends a command that has an answer. An answer that cannot be printed is none."""
    sys.stdout.flush()
    sys.exit(code)
