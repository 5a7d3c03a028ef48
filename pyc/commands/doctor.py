"""`pyc doctor`: what of this machine helps or hinders pyc, with what to do about it."""

import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from pyc.commands.screen import say, say_json

if TYPE_CHECKING:
    from pyc.runtime.measure.health import Finding


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def command(as_json: bool) -> None:
    """Check this machine: CPU, memory, keys, cache, compilers, space.

    Every line is ok, warn or fail, and what is not ok says what to do. Exit code 0 unless something fails, else 1.
    """
    findings = list(examine())
    if as_json:
        rows = [
            {
                "name": finding.name,
                "verdict": finding.verdict,
                "found": finding.found,
                "remedy": "" if finding.verdict == "ok" else finding.remedy,
            }
            for finding in findings
        ]
        say_json(rows)
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            say(f"{finding.verdict:<4}  {finding.name:<{width}}  {finding.found}")
            if finding.verdict != "ok" and finding.remedy:
                say(f"{'':<4}  {'':<{width}}  -> {finding.remedy}")
    if any(finding.verdict == "fail" for finding in findings):
        click.get_current_context().exit(1)


def examine() -> Iterator["Finding"]:
    """Yield everything that is looked at, in the order of the report."""
    from pyc.compiler.health import check_cache, check_compilers, check_temporary
    from pyc.runtime.measure.health import check_keys, check_machine, check_versions

    yield from check_machine()
    yield from _variants()
    yield from check_versions()
    yield from check_compilers()
    yield from check_keys()
    yield from check_cache()
    yield from check_temporary()


def _variants() -> Iterator["Finding"]:
    """The variants of programs that this CPU takes, the fastest first, and what it lacks for others."""
    from pyc.backends.cpu.isa import ISAS
    from pyc.runtime.executors.cpu.features import allow_tiles, cpu_features
    from pyc.runtime.measure.health import Finding

    own, features = platform.machine(), cpu_features()
    taken, lacking = [], []
    for isa in sorted(ISAS.values(), key=lambda isa: -isa.rank):
        missing = sorted(set(isa.features) - features)
        if isa.arch != own:
            continue
        if missing:
            lacking.append(f"{isa.name} ({', '.join(missing)})")
        elif isa.has_amx and not allow_tiles():
            lacking.append(f"{isa.name} (the kernel refuses tile registers)")
        else:
            taken.append(isa.name)
    if not taken:
        known = ", ".join(sorted({isa.arch for isa in ISAS.values()}))
        yield Finding("variants", "fail", f"none for {own}", f"pyc compiles for {known}: use such a machine")
        return
    yield Finding("variants", "ok", ", ".join(taken))
    if lacking:
        yield Finding("not here", "ok", "; ".join(lacking))
