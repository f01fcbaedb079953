"""Exit codes of commands: 0 or 1 for a result, 2 for none. `port` uses different codes."""

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
    """Print one line for an expected error instead of a traceback."""
    try:
        yield
        sys.stdout.flush()
    except JaxparError as error:
        click.echo(f"jaxpar: {error}", err=True)
        sys.exit(code)
    except OSError as error:
        click.echo(f"jaxpar: {error}", err=True)
        try:
            sys.stdout.flush()
        # Python flushes again at exit, and would end with code 120.
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(code)
    except KeyboardInterrupt as stop:
        click.echo(" ".join(["Stopped by Ctrl-C.", *getattr(stop, "__notes__", ())]), err=True)
        sys.exit(130)
    except click.ClickException as error:  # click prints these
        error.exit_code = code  # type: ignore[misc]  # click reads it from the instance
        raise
    except Exception:
        traceback.print_exc()
        sys.exit(code)


def leave(code: int) -> NoReturn:
    # An OSError here, before the exit, is reported as an error: the result was not printed.
    sys.stdout.flush()
    sys.exit(code)
