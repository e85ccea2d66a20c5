"""`gputrace doctor`: what would be traced on this machine, and how well the clocks can be tied."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import click

from gputrace import devices, hot
from gputrace.analysis.tables import TEXT, Table
from gputrace.anchoring import measure
from gputrace.cli import settings
from gputrace.cli.recordoptions import Wanted
from gputrace.cli.tables import show
from gputrace.errors import DeviceError, UsageError
from gputrace.record import formats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gputrace.devices.base import Device

Findings = dict[str, Any]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, times in ns, skews in ppm.")
@click.option(
    "--seconds",
    default=2.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="How long to watch each clock.",
)
@click.pass_context
def command(context: click.Context, as_json: bool, seconds: float) -> int:
    """Say what would be traced here, by which options, and how good the clocks are.

    Needs no driver. With one, it makes a context of its own on each GPU; `gputrace record` never does.
    """
    findings = examine(seconds)
    findings["options"] = _options(context.find_root())
    if as_json:
        click.echo(json.dumps(findings, indent=2))
    else:
        click.echo("\n".join(_lines(findings)))
        _show_options(findings["options"])
    return 0


def examine(seconds: float) -> Findings:
    """Everything the doctor finds, ready for JSON. Takes ``seconds`` for each device. Raises nothing for a bad GPU."""
    kind, reason = devices.choose("auto")
    system = os.uname()
    return {
        "gputrace": _version("gputrace"),
        "python": f"{sys.version.split()[0]} ({sys.executable})",
        "platform": f"{system.sysname} {system.release} {system.machine}",
        "cuda_python": _version("cuda-python"),
        "twin": {"name": hot.TWIN, "reason": hot.WHY},
        "auto": {"device": kind, "reason": reason},
        "backends": {kind: _backend(kind, seconds) for kind in ("cuda", "simulated")},
        "exporters": formats.known(),
    }


def _options(group: click.Context) -> Findings:
    """What `gputrace record` would go by if it ran here now, and where each of it was given."""
    try:
        assert isinstance(group.command, click.Group)
        record = group.command.get_command(group, settings.MAIN_COMMAND)
        assert record is not None
        with record.make_context(settings.MAIN_COMMAND, ["any"], parent=group) as context:
            found = Wanted(context).settings(context)
    except (UsageError, click.UsageError) as error:
        return {"problem": error.format_message() if isinstance(error, click.UsageError) else str(error)}
    return {"record": {each.name: {"value": each.value, "from": each.where} for each in found}}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _backend(kind: str, seconds: float) -> Findings:
    try:
        backend = devices.open_backend(kind)
        found: Findings = dict(backend.describe())
    except DeviceError as error:
        return {"problem": str(error), "devices": []}
    found["devices"] = [
        dict(device) | _clock(backend, kind, device["ordinal"], seconds) for device in found.get("devices", [])
    ]
    return found


def _clock(backend: Any, kind: str, ordinal: int, seconds: float) -> Findings:
    try:
        with _usable(backend, kind, ordinal) as device:
            quality = measure(device, seconds)
    except Exception as error:  # a driver that is half there may raise anything; the other findings still stand
        return {"problem": f"its clock cannot be read: {error}"}
    return {
        "anchor_bracket_ns": quality.bracket_ns,
        "skew_ppm": quality.skew_ppm,
        "skew_error_ppm": quality.skew_error_ppm,
        "watched_s": quality.seconds,
    }


@contextlib.contextmanager
def _usable(backend: Any, kind: str, ordinal: int) -> Iterator[Device]:
    """A device to take anchors on. For CUDA inside its primary context, retained here: this process is our own."""
    if kind == "simulated":
        yield backend.gpus[ordinal]
        return
    from cuda.bindings import driver  # type: ignore[import-untyped]

    def called(result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise RuntimeError(f"{result[0].name}")
        return result[1] if len(result) > 1 else None

    gpu = called(driver.cuDeviceGet(ordinal))
    context = called(driver.cuDevicePrimaryCtxRetain(gpu))
    try:
        called(driver.cuCtxPushCurrent(context))
        try:
            yield backend.stream(0).device
        finally:
            called(driver.cuCtxPopCurrent())
    finally:
        called(driver.cuDevicePrimaryCtxRelease(gpu))


def _lines(findings: Findings) -> Iterator[str]:
    yield f"gputrace      {findings['gputrace']}"
    yield f"Python        {findings['python']}"
    yield f"platform      {findings['platform']}"
    yield f"cuda-python   {findings['cuda_python'] or 'not installed'}"
    yield f"twin          {findings['twin']['name']}: {findings['twin']['reason']}"
    yield f"exporters     {', '.join(f'{suffix} ({exporter})' for suffix, exporter in findings['exporters'].items())}"
    yield f"device auto   {findings['auto']['reason']}"
    for kind, backend in findings["backends"].items():
        yield ""
        if "problem" in backend:
            yield f"{kind}: {backend['problem']}"
            continue
        facts = [f"{name} {value}" for name, value in backend.items() if name != "devices"]
        yield f"{kind}: {', '.join(facts)}"
        for device in backend["devices"]:
            yield f"  GPU {device['ordinal']}: {device['name']}"
            yield f"    {_quality(device)}"
        if not backend["devices"]:
            yield "  no device"


def _show_options(options: Findings) -> None:
    click.echo()
    if "problem" in options:
        click.echo(f"options of gputrace record: {options['problem']}")
        return
    rows: list[Sequence[Any]] = [
        (f"--{name}" if " " not in name else name, each["from"], _as_text(each["value"]))
        for name, each in options["record"].items()
    ]
    # Values last: one of them is long, and what stood behind it would be out of sight.
    show([Table("", [("options of record", TEXT), ("from", TEXT), ("value", TEXT)], rows)])


def _as_text(value: object) -> str:
    """An option's value, as one would write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _quality(device: Findings) -> str:
    if "problem" in device:
        return str(device["problem"])
    return (
        f"anchor bracket {device['anchor_bracket_ns'] / 1e3:.1f} µs, so a window is placed to about half of that; "
        f"its clock ran {device['skew_ppm']:+.2f} ± {device['skew_error_ppm']:.2f} ppm beside the host's "
        f"over {device['watched_s']:.1f} s"
    )
