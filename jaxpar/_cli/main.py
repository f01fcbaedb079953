"""The commands: parse arguments, call the implementation, return an exit code.

Every command imports its implementation when it runs, so that `jaxpar --help` starts neither JAX nor torch.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .._devices.virtual import virtual_devices
from .._version import __version__
from ..errors import MatchError, SpecError
from .bisect import bisect
from .contract import contract, skill
from .demo.settings import DemoSettings, has_torch
from .ending import leave, plain_ending
from .invariance.command import invariance
from .mcp import mcp
from .port import port
from .profile import profile
from .program import program
from .spec import MICROSECOND, RATES, Finite, OutputPath, SearchTime, check_outputs, check_source
from .starting import start_devices


def main() -> None:
    cli(prog_name="jaxpar")


AT_LEAST_1 = click.IntRange(min=1)
SECONDS = Finite(min=0, min_open=True)
OUTPUT = OutputPath()
FOLDER = click.Path(file_okay=False)
Command = Callable[..., Any]
number = functools.partial(click.option, type=AT_LEAST_1, metavar="N")
output = functools.partial(click.option, type=OUTPUT, metavar="FILE")
seconds = functools.partial(click.option, type=SECONDS, metavar="S")


def devices_option(default: str) -> Callable[[Command], Command]:
    return number("--devices", show_default=default, help="Use N virtual CPU devices.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, message="jaxpar %(version)s", show_default=False)
def cli() -> None:
    """PyTorch's data parallelism for JAX and Flax, and the proof that it is the same."""


for _command in (port, contract, skill, mcp, program, profile, bisect, invariance):
    cli.add_command(_command)


@cli.command(short_help="Train in JAX and PyTorch side by side, comparing every step.")
@number("--epochs", default=DemoSettings.epochs, help="Times all digits are seen.")
@number("--batch-size", default=DemoSettings.batch_size, help="Rows on all devices.")
@devices_option(default="all GPUs; without any, 8 virtual CPU devices")
@click.option(
    "--seed", metavar="N", type=click.IntRange(min=0), default=DemoSettings.seed, help="Of weights and order."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@plain_ending()
def demo(epochs: int, batch_size: int, devices: int | None, seed: int, as_json: bool) -> None:
    """Train a CNN in JAX and in PyTorch side by side and compare every step.

    A small BatchNorm CNN learns scikit-learn's handwritten digits with jaxpar.DataParallel and with
    torch.nn.DataParallel, from the same weights, in the same order, in float64. The exit code is 0 if
    both stay the same in every step, and 1 if they do not. Without torch the comparison is left out.

    \b
      jaxpar demo
      jaxpar demo --devices 4 --batch-size 50 --json
    """
    from rich.console import Console

    from .._metrics.progress import progress

    settings = DemoSettings(epochs, batch_size, seed)
    steps = settings.steps * (2 if has_torch() else 1)  # compared, then trained
    # Shown before the imports below, which take seconds.
    with progress(steps, description="starting JAX and PyTorch", leave=False) as shown:
        start_devices(devices)
        from .demo import report
        from .demo.run import run

        result = run(settings, shown.step)
    if as_json:
        click.echo(json.dumps(report.document(result), indent=2, allow_nan=False))
    else:
        Console(highlight=False).print(report.text(result))
    leave(int(result.comparison is not None and not result.comparison.same))


@cli.command(short_help="Say whether a Flax model is the same as a torch model, and where it is not.")
@click.argument("spec", type=click.Path())
@click.option(
    "--level",
    type=click.Choice(["semantic", "numeric", "trajectory", "as-it-runs"]),
    help="Which question is asked.",
)
@number("--steps", help="Training steps; more than one needs an optimizer.")
@click.option("--optimizer", metavar="NAME[:SETTINGS]", help="In both: adamw:lr=1e-3,weight_decay=0.1")
@number("--replicas", help="Compare DataParallel on N devices.")
@click.option(
    "--search",
    metavar="HOW",
    type=SearchTime(min=0, min_open=True),
    show_default="full",
    help="For where and why they differ: full, quick (the first place), none, or SECONDS.",
)
@output("--html", help="Write the report as one HTML file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
@output("--junit", help="Write JUnit's XML.")
@output("--record", help="Keep what torch computed (.safetensors and .json).")
@click.option("--check", type=click.Path(), metavar="FILE", help="Compare with a record; needs no torch.")
@click.option("--against", type=click.Path(), metavar="TRACE", help="Compare with the recorder's trace, too.")
@click.option("--trace", type=FOLDER, metavar="FOLDER", help="Record the JAX model alone; needs no torch.")
@devices_option(default="those of this host")
@plain_ending()
def parity(spec: str, devices: int | None, **options: Any) -> None:
    """Compare a torch model and a Flax model: outputs, gradients, state, training.

    SPEC is a Python file that defines torch_module, flax_module and inputs, and optionally further
    arguments of jaxpar.parity.compare: loss, optimizer, steps, layout, mapping. The exit code
    is 0 if both are the same, 1 if they differ, and 2 without a verdict, whatever the reason.

    \b
      jaxpar parity spec.py
      jaxpar parity spec.py --steps 20 --optimizer adamw:lr=1e-3 --html report.html
      jaxpar parity spec.py --replicas 4
    """
    # Checked before JAX starts, so that a wrong command line fails at once.
    chosen = [name for name in ("record", "check", "against", "trace") if options[name]]
    if len(chosen) > 1:
        raise click.UsageError(
            "--record writes what --check reads, and --trace what --against reads; choose one."
        )
    if chosen and chosen != ["record"]:
        for name in ("level", "steps", "replicas"):
            if options[name] is not None:
                raise click.UsageError(
                    f"--{name} and --{chosen[0]}: the file says which; leave --{name} out."
                )
    check_source(spec)
    check_outputs(spec, options)
    if devices:
        start_devices(devices)
    elif (replicas := options["replicas"] or 1) > 1:
        virtual_devices(replicas)  # where there are GPUs, JAX prefers them
    from .parity import run

    leave(run(spec, **options))


@cli.command(short_help="Convert a file of weights, to another kind or another layout.")
@click.argument("source", metavar="IN", type=click.Path())
@click.argument("target", metavar="OUT", type=OUTPUT)
@click.option(
    "--key", metavar="NAME", help="Where a checkpoint holds its state_dict, with dots between words."
)
@click.option("--spec", type=click.Path(), metavar="FILE", help="A Python file that defines flax_module.")
@click.option("--to", type=click.Choice(["flax", "torch"]), help="The layout and names of OUT; needs --spec.")
@plain_ending()
def convert(source: str, target: str, key: str | None, spec: str | None, to: str | None) -> None:
    """Convert weights between .safetensors and torch's .pt, .pth and .bin.

    With a spec, a Python file that defines flax_module (and mapping, ignore_torch, ignore_flax; for a
    Linen module also inputs), they are converted between torch's layout and Flax's as well. Nothing in
    IN is executed, and OUT appears when it is complete. The exit code is 0 on success, 1 if the
    weights are not the model's, and 2 if a file cannot be read or written.

    \b
      jaxpar convert model.pt model.safetensors
      jaxpar convert checkpoint.pt model.safetensors --key model.state_dict
      jaxpar convert model.safetensors flax.safetensors --spec spec.py --to flax
    """
    # The layout of weights is defined by a model only.
    if (spec is None) != (to is None):
        raise click.UsageError("--spec and --to belong together: the model, and the layout that is wanted.")
    if spec is not None:
        check_source(spec)
    from .convert import convert as run

    try:
        click.echo(run(source, target, key=key, spec=spec, to=to))
    # Unlike in other commands, code 1 means weights that do not fit the model.
    except (MatchError, OSError, ModuleNotFoundError, TypeError) as error:
        click.echo(f"jaxpar: {error}", err=True)
        sys.exit(1 if isinstance(error, MatchError) else 2)


def rates_options(command: Command) -> Command:
    # Decorators apply from the last to the first, and --help lists options in the order of the table.
    for name, (unit, what) in reversed(RATES.items()):
        rate, option = Finite(min=0, min_open=unit != MICROSECOND), f"--{name.replace('_', '-')}"
        shown = "that of the device"
        command = click.option(option, type=rate, metavar="X", show_default=shown, help=what)(command)
    return command


@cli.command(short_help="Predict memory, schedule and step time of a training step on GPUs.")
@click.argument("spec", type=click.Path())
@click.option("--device", metavar="NAME", default="h100", help="A card: h200, h100, a100, v100, rtx4090 ...")
@number("--devices", default=8, help="Devices of a host.")
@number("--hosts", default=1, help="Hosts.")
@click.option(
    "--watch-batch", is_flag=True, help="Find the most rows that fit into a device; compiles more often."
)
@click.option(
    "--memory-share",
    type=Finite(0, 1, min_open=True),
    metavar="X",
    default=0.75,
    help="Of a device's memory, for JAX.",
)
@rates_options
@output("--png", help="Draw it; needs jaxpar[report].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@plain_ending()
def estimate(spec: str, **options: Any) -> None:
    """Predict bytes per device, the schedule of both lanes, and step time on 1 to N x hosts devices.

    SPEC is a Python file that defines make_net (a function that builds the NNX module) or net, loss_fn
    as in loss_fn(net, *batch), batch (arrays or jax.ShapeDtypeStructs with the rows of one device), and
    optimizer, an optax transformation. The step is compiled for the card, which may be absent
    (jaxpar[gpu-compiler]), and not run; no weights are created.

    \b
      jaxpar estimate spec.py
      jaxpar estimate spec.py --device a100 --hosts 16 --watch-batch --png step.png
      jaxpar estimate spec.py --device h100 --devices 4 --link 100 --json
    """
    check_source(spec)
    # Without the card's compiler, several virtual devices show what a step exchanges.
    start_devices(None)
    from .estimate import run

    check_outputs(spec, options)
    try:
        run(spec, **options)
    except ImportError as error:
        raise SpecError(str(error)) from None


@cli.command(
    short_help="Run a script in several processes; restart them together when one fails.",
    context_settings={"allow_interspersed_args": False},
)
@number("-n", required=True, help="Processes.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is the name of a module.")
@click.option(
    "--devices-per-process",
    type=AT_LEAST_1,
    metavar="K",
    show_default="all GPUs; without any, 1 CPU device",
    help="Give each process K GPUs of its own; without GPUs, K virtual CPU devices.",
)
@click.option(
    "--max-restarts", type=click.IntRange(min=0), metavar="R", default=0, help="Restarts after failures."
)
@seconds(
    "--step-timeout",
    envvar="JAXPAR_STEP_TIMEOUT",
    show_default="no limit",
    help="Seconds between two steps at most.",
)
@seconds("--grace", default=30, help="Seconds between asking to stop and killing.")
@click.option(
    "--log-dir", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="A file for each rank."
)
@click.option("--tee/--no-tee", default=True, help="Print what the processes print, too.")
@click.option(
    "--tls", is_flag=True, help="Encrypt JAX's coordinator (JAX 0.12) with certificates of the job."
)
@click.option("--dry-run", is_flag=True, help="Print commands and variables, and start nothing.")
@click.argument("target", metavar="SCRIPT")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@plain_ending()
def launch(dry_run: bool, **options: Any) -> None:
    """Run SCRIPT in N processes of this host, with torchrun's variables.

    When one process fails or hangs, all are killed, and with --max-restarts started again, to continue
    from the last checkpoint. The exit code is 0 when all are done, 1 after an exception, 70 when a step
    took too long, 75 when all saved and exited after a preemption, 78 when the environment's variables
    are wrong, and 128 + the number of a signal.

    \b
      jaxpar launch -n 4 train.py --epochs 10
      jaxpar launch -n 2 --max-restarts 3 --step-timeout 60 --log-dir logs train.py
    """
    from .._tools.launch.settings import LaunchSettings
    from .._tools.launch.supervise import dry, run

    settings = LaunchSettings(**options)
    if not settings.module and not Path(settings.target).exists():
        raise click.UsageError(f"There is no script {settings.target!r}; -m runs a module.")
    if dry_run and settings.tls:
        raise click.UsageError("--dry-run makes no certificates; make some, and set JAX_MTLS_CERT_FILE.")
    if not settings.tee and settings.log_dir is None:
        raise click.UsageError("--no-tee needs --log-dir, or what the processes print would be lost.")
    sys.exit(dry(settings) if dry_run else run(settings))


@cli.command(short_help="List the devices, their memory and load.")
@devices_option(default="those of this host")
@click.option(
    "--watch",
    type=SECONDS,
    is_flag=False,
    flag_value=2,
    metavar="[SECONDS]",
    show_default=False,
    help="Look again every SECONDS, 2 if left out, until Ctrl-C.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
@plain_ending()
def devices(devices: int | None, watch: float | None, as_json: bool) -> None:
    """List the devices that jaxpar uses: name, kind, memory, load and temperature.

    The index is the number for device_ids. Load and temperature are available for NVIDIA GPUs, and need
    nvidia-ml-py. The command reserves no GPU memory.

    \b
      jaxpar devices
      jaxpar devices --watch 5
      jaxpar devices --devices 4 --json
    """
    if watch and as_json:
        raise click.UsageError("--watch repeats a table and --json prints one document; choose one.")
    # JAX would reserve most of every GPU's memory, which a running job needs.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        if devices:
            start_devices(devices)
        from rich.console import Console

        from .._tools.devices_and_environment import table

        console = Console(highlight=False)
        if watch:
            table.watch(console, watch)
        snapshot = table.look()
    # Ctrl-C is the regular end of --watch.
    except KeyboardInterrupt:
        if not watch:
            raise
        return
    if as_json:
        click.echo(json.dumps(table.document(snapshot), indent=2))
    else:
        console.print(table.text(snapshot))


@cli.command(short_help="Print versions, devices and settings for a bug report.")
@devices_option(default="those of this host")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@plain_ending()
def env(devices: int | None, as_json: bool) -> None:
    """Print what a bug report needs: versions, host, backends, devices, settings.

    A value that cannot be read is replaced by its error. Only environment variables that concern JAX,
    jaxpar and its processes are shown.

    \b
      jaxpar env
      jaxpar env --json
    """
    if devices:
        start_devices(devices)
    from .._tools.devices_and_environment import environment

    report = environment.environment()
    click.echo(json.dumps(report, indent=2) if as_json else environment.text(report))
