"""`python -m deployments.tools.supply_chain lock | audit | bill`: the targets of the Makefile."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from deployments.tools.supply_chain import auditing, bills, locking


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command(help="Writes the locks anew; versions stay where pyproject.toml allows it.")
@click.option("--upgrade", is_flag=True, help="Takes the newest versions that it allows.")
def lock(upgrade: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        locker = locking.Locker(Path(folder), upgrade)
        try:
            changed = locking.write(locker.texts())
        except locking.CannotLock as why:
            sys.exit(str(why))
    for each in locker.said:
        click.echo(each)
    click.echo(f"changed: {', '.join(changed) or 'none'}")


@main.command(
    help="Compares the locks with what the registry has today. Ends with 1 where something is "
    "wrong, with 2 where nothing is but the weaknesses of some packages were not looked up."
)
def audit() -> None:
    with tempfile.TemporaryDirectory() as folder:
        locker = locking.Locker(Path(folder))
        try:
            found = auditing.of_registry(locker.texts(), locker.said)
        except locking.CannotLock as why:
            sys.exit(str(why))
        vulnerable, unheard = auditing.vulnerabilities(Path(folder))
    for each in [*found, *vulnerable, *auditing.interpreter(sys.version_info[:3])]:
        click.echo(each)
    click.echo(auditing.summary(found, vulnerable, unheard))
    sys.exit(1 if found or vulnerable else 2 if unheard else 0)


@main.command(help="Writes the bill of materials of each image, and notices of those licences.")
@click.argument("folder", type=click.Path(path_type=Path))
def bill(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for path in bills.write(folder):
            click.echo(path)
    except bills.CannotList as why:
        sys.exit(str(why))


if __name__ == "__main__":
    main()
