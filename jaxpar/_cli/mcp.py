"""`jaxpar mcp`: the calls of `jaxpar contract` as tools of a Model Context Protocol server, over stdio.

A call runs the command in a separate process: a port's edited files are imported again, a port may print or
exit, and a client that cancels a call ends the process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click

from .contract import SKILL
from .ending import plain_ending

if TYPE_CHECKING:
    from mcp.server import MCPServer


@click.command(short_help="Serve contracts to agents by the Model Context Protocol; needs jaxpar[mcp].")
@plain_ending()
def mcp() -> None:
    """Serve `contract make`, `contract check` and the page for agents over stdin and stdout.

    A client starts this command, and its standard output has nothing but the protocol.

    \b
      {"mcpServers": {"jaxpar": {"command": "jaxpar", "args": ["mcp"]}}}
    """
    try:
        served = server()
    except ImportError as error:
        raise click.UsageError("mcp needs the package mcp: pip install 'jaxpar[mcp]'.") from error
    served.run("stdio")


def server() -> MCPServer:
    """Return the server with its tools and its page."""
    from mcp.server import MCPServer  # an extra, which brings 24 packages

    from .._version import __version__

    served = MCPServer("jaxpar", instructions=SKILL, version=__version__)
    served.tool(structured_output=True)(contract_make)
    served.tool(structured_output=True)(contract_check)
    page = served.resource("jaxpar://skill", name="skill", mime_type="text/markdown")
    page(lambda: SKILL)
    return served


async def contract_make(side: str, folder: str) -> dict[str, Any]:
    """Record a torch model, and write the contract that its port must meet; returns contract.json.

    Args:
      side: a Python file that defines torch_module and inputs, and optionally targets, loss, optimizer,
        steps, training, outputs, seed; or a trace that the recorder wrote, for which torch is not needed.
      folder: where contract.json, trace/, port.py and README.md are written.
    """
    await _ran("make", "--", side, folder)
    with open(f"{folder}/contract.json", encoding="utf-8") as file:
        return json.load(file)


async def contract_check(folder: str, port: str | None = None, seconds: float = 300.0) -> dict[str, Any]:
    """Judge a port by its contract: verdict, first place, cause, an edit that was tried, gaps.

    Args:
      folder: the contract.
      port: the file that defines the entry points; by default port.py in the folder.
      seconds: the time after which no further edit is tried.
    """
    files = [folder] if port is None else [folder, port]
    return json.loads(await _ran("check", f"--seconds={seconds:g}", "--", *files))


async def _ran(*arguments: str) -> str:
    """Return what `jaxpar contract` prints; a ToolError has its error."""
    from anyio import run_process
    from mcp.server.mcpserver.exceptions import ToolError

    command = [sys.executable, "-m", "jaxpar", "contract", *arguments]
    # Without stdin, which is the protocol's.
    ended = await run_process(command, stdin=subprocess.DEVNULL, check=False)
    printed, errors = ended.stdout.decode(), ended.stderr.decode()
    if ended.returncode not in (0, 1):
        raise ToolError(printed.strip() or errors.strip())
    return printed
