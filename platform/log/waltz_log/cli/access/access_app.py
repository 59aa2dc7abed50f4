"""The arguments of `waltz access`. What it does stands in `access`; imports next to nothing, like `main`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from waltz_log.cli.shared_arguments import Coordinator, DryRun, Output, Timeout, checked_output

__all__ = ["access_app"]

access_app = typer.Typer(help="Say which principals may append, read, resolve, manage topics and administer, and where.", no_args_is_help=True)

Principal = Annotated[str, typer.Argument(help="Name in a certificate. A * stands for text without a slash.")]
Operations = Annotated[str, typer.Argument(help="append, read, resolve, manage or administer; several with commas.")]
Resources = Annotated[
    list[str],
    typer.Argument(help="* for the whole cluster, NAMESPACE/TOPIC, NAMESPACE/TOPIC:FIRST-LAST, a prefix such as shop/*, or log:FIRST-LAST."),
]


@access_app.command()
def grant(
    coordinator: Coordinator,
    principal: Principal,
    operations: Operations,
    resources: Resources,
    dry_run: DryRun = False,
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Permit operations on resources. The first grant denies everything else to applications and readers. Exit code 3 if a node has not confirmed."""
    from waltz_log.cli.access import access as command

    return asyncio.run(
        command.grant(coordinator, principal, operations, resources, dry_run=dry_run, output=checked_output(output), timeout_s=timeout)
    )


@access_app.command()
def revoke(
    coordinator: Coordinator,
    principal: Annotated[str, typer.Argument(help="Principal of the rules, as `waltz access list` shows it.")],
    operations: Annotated[str | None, typer.Argument(help="Operations to revoke, with commas (default: all).")] = None,
    resources: Annotated[list[str] | None, typer.Argument(help="Resources of the rules, as `waltz access list` shows them (default: all).")] = None,
    dry_run: DryRun = False,
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Revoke permissions. Open mounts, feeds and reads that need them end. Exit code 3 if a node has not confirmed that."""
    from waltz_log.cli.access import access as command

    return asyncio.run(
        command.revoke(coordinator, principal, operations, resources or (), dry_run=dry_run, output=checked_output(output), timeout_s=timeout)
    )


@access_app.command(name="list")
def listing(coordinator: Coordinator, output: Output = "table", timeout: Timeout = 10.0) -> int:
    """Show all rules."""
    from waltz_log.cli.access import access as command

    return asyncio.run(command.listing(coordinator, output=checked_output(output), timeout_s=timeout))


@access_app.command(name="test")
def check(
    coordinator: Coordinator,
    principal: Annotated[str, typer.Argument(help="Name in a certificate, such as spiffe://waltz/application/orders.")],
    operation: Annotated[str, typer.Argument(help="append, read, resolve, manage or administer.")],
    resource: Annotated[str, typer.Argument(help="NAMESPACE/TOPIC, NAMESPACE/TOPIC:PARTITION, log:PARTITION, or * for the whole cluster.")],
    role: Annotated[str | None, typer.Option(help="Role of the principal (default: as in spiffe://DOMAIN/ROLE/NAME).")] = None,
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Say whether a principal may do something, and which rule permits it. Exit code 1 if denied."""
    from waltz_log.cli.access import access as command

    return asyncio.run(command.check(coordinator, principal, operation, resource, role=role, output=checked_output(output), timeout_s=timeout))


@access_app.command()
def reset(
    coordinator: Coordinator,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm that every application may append to and read everything afterwards.")] = False,
    output: Output = "table",
    timeout: Timeout = 10.0,
) -> int:
    """Remove all rules, also where they are gone or cannot be read. From then on roles alone decide, as in a new cluster."""
    from waltz_log.cli.access import access as command

    return asyncio.run(command.reset(coordinator, confirmed=yes, output=checked_output(output), timeout_s=timeout))
