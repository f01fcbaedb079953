"""An agent's client starts `jaxpar mcp`, makes a contract, and checks ports by it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from test_contract import BUGS, TORCH_SIDE, written

from jaxpar._cli.contract import SKILL

ROOT = str(Path(__file__).resolve().parents[1])
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]),
    "JAX_PLATFORMS": "cpu",
}
COMMAND = [sys.executable, "-m", "jaxpar", "mcp"]


def asked(conversation):
    """Return what an asynchronous function returns that is given a client of the real process."""

    async def run():
        parameters = StdioServerParameters(
            command=COMMAND[0], args=COMMAND[1:], env={**os.environ, **ENVIRONMENT}
        )
        async with Client(stdio_client(parameters)) as client:
            return await conversation(client)

    return anyio.run(run)


@pytest.mark.slow
def test_a_contract_is_made_and_a_port_judged(tmp_path):
    (tmp_path / "torch_side.py").write_text(TORCH_SIDE)
    folder = str(tmp_path / "contract")
    right, wrong = (tmp_path / name for name in ("right", "wrong"))
    for port, changes in ((right, []), (wrong, BUGS["epsilon"])):
        port.mkdir()
        written(port, changes)
    # What a port prints must not reach the protocol, nor the answer.
    (right / "port.py").write_text(f"print('{{')\n{(right / 'port.py').read_text()}")

    async def conversation(client):
        tools = await client.list_tools()
        page = await client.read_resource("jaxpar://skill")
        made = await client.call_tool(
            "contract_make", {"side": str(tmp_path / "torch_side.py"), "folder": folder}
        )
        answers = [
            await client.call_tool("contract_check", {"folder": folder, "port": str(port / "port.py")})
            for port in (right, wrong)
        ]
        return tools, page, made, answers

    tools, page, made, (met, not_met) = asked(conversation)
    assert [tool.name for tool in tools.tools] == ["contract_make", "contract_check"]
    assert page.contents[0].text == SKILL
    assert made.structured_content["layers"] == ["fc", "norm", "act", "out"]
    assert not met.is_error
    assert (met.structured_content["met"], met.structured_content["verdict"]) == (True, "same")
    answer = not_met.structured_content
    assert not not_met.is_error
    assert (answer["met"], answer["place"]["jax"], answer["cause"]["proven"]) == (False, "norm", True)
    assert json.loads(not_met.content[0].text) == answer


@pytest.mark.slow
def test_an_error_of_a_file_is_an_error_of_the_tool(tmp_path):
    (tmp_path / "torch_side.py").write_text("import torch\ninputs = undefined_name\n")
    (tmp_path / "empty").mkdir()

    async def conversation(client):
        side, folder = str(tmp_path / "torch_side.py"), str(tmp_path / "empty")
        return [
            await client.call_tool("contract_make", {"side": side, "folder": str(tmp_path / "contract")}),
            await client.call_tool("contract_check", {"folder": folder}),
            await client.call_tool("contract_check", {"folder": "--help"}),
        ]

    of_side, of_contract, of_option = asked(conversation)
    assert [answer.is_error for answer in (of_side, of_contract, of_option)] == [True, True, True]
    assert "undefined_name" in of_side.content[0].text
    for answer, folder in ((of_contract, tmp_path / "empty"), (of_option, "--help")):
        error = json.loads(answer.content[0].text.partition(": ")[2])["error"]
        assert error["type"] == "FileError"
        assert f"{folder}/contract.json" in error["text"]


@pytest.mark.slow
def test_without_the_package_the_command_names_the_extra():
    program = "import sys; sys.modules['mcp'] = None; from jaxpar._cli.main import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", program, "mcp"],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        cwd="/",
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "jaxpar[mcp]" in ended.stderr


@pytest.mark.slow
def test_standard_output_has_the_protocol_alone(tmp_path):
    requests = [
        {
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "a test", "version": "1"},
            },
        },
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "contract_check", "arguments": {"folder": "/"}}},
    ]
    with subprocess.Popen(
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **ENVIRONMENT},
    ) as process:
        for request in requests:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **request}) + "\n")
        process.stdin.flush()
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.stdin.close()
        lines += map(json.loads, process.stdout)
    assert process.returncode == 0
    assert {line["jsonrpc"] for line in lines} == {"2.0"}
    by_id = {line["id"]: line["result"] for line in lines if "id" in line}
    assert by_id[1]["serverInfo"]["name"] == "jaxpar"
    assert by_id[2]["isError"] is True
