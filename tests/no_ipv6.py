"""Switches IPv6 off for this process and those that it starts, as in a container whose kernel has none.

A filter of system calls: `socket(AF_INET6, ...)` fails with EAFNOSUPPORT, and nothing else changes. Linux on
x86-64 or arm64; needs no rights.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import socket
import struct

NUMBER = {"x86_64": 41, "aarch64": 198}
"""Of the system call `socket`."""

LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


def switch_off() -> None:
    def instruction(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, k)

    program = b"".join(
        [
            instruction(LOAD, 0),  # the call's number
            instruction(EQUAL, NUMBER[platform.machine()], 0, 3),
            instruction(LOAD, 16),  # its first argument
            instruction(EQUAL, socket.AF_INET6, 0, 1),
            instruction(RETURN, ERRNO | errno.EAFNOSUPPORT),
            instruction(RETURN, ALLOW),
        ]
    )
    buffer = ctypes.create_string_buffer(program)
    described = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    )
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((38, 1, 0, 0, 0), (22, 2, described, 0, 0)):  # no new privileges; seccomp, filter
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")
    try:
        socket.socket(socket.AF_INET6).close()
    except OSError:
        return
    raise RuntimeError("IPv6 is still there")
