"""Commands that need the address of a cluster. It is their first argument, which may be left out: then `--cluster`, `--profile`, a variable or the
user's default profile gives it (`profiles`). Commands of operators have the coordinator in its place, with `--coordinator`.

Whether the first argument is the address is decided as follows, so that a command with further arguments stays unambiguous:

1. With `--cluster` or `--profile`, no argument is the address.
2. A first argument with the shape of an address is the address, and so is the first of as many arguments as the command can have.
3. Otherwise the address was left out.
"""

from __future__ import annotations

import inspect
import os
from typing import Any, Final, get_args  # Any: click's parameters and contexts

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from waltz_log.cli.profiles import Kind, default_address, has_shape, missing_address, profile_address
from waltz_log.errors import InvalidSetting, WaltzError

__all__ = ["AddressedCommand", "add_addresses"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
NAMED: Final = "named_address"
PROFILE: Final = "named_profile"

OPTION_HELP: Final = {
    "cluster": "Log servers of the cluster, in place of the argument. Also WALTZ_CLUSTER.",
    "coordinator": "Address of the coordinator, in place of the argument. Also WALTZ_COORDINATOR.",
}


class AddressedCommand(TyperCommand):
    """A command whose first argument is named `cluster` or `coordinator`."""

    def __init__(self, name: str | None, **options: Any) -> None:
        super().__init__(name, **options)
        self._arguments = [each for each in self.params if isinstance(each, TyperArgument)]
        first = self._arguments[0]
        self._kind: Kind = next(kind for kind in KINDS if kind == first.name)
        first.required = False
        first.metavar = self._kind.upper()
        text = first.type_descriptor
        address = [NAMED, f"--{self._kind}", "-C"]
        profile = "Profile of the cluster. Also WALTZ_PROFILE."
        self.params += [
            TyperOption(param_decls=address, type_descriptor=text, metavar="ADDRESS", expose_value=False, help=OPTION_HELP[self._kind]),
            TyperOption(param_decls=[PROFILE, "--profile"], type_descriptor=text, metavar="NAME", expose_value=False, help=profile),
        ]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts the address before the arguments, where it was left out. Raises `InvalidSetting` if there is none."""
        if ctx.resilient_parsing:  # a shell completes the line, in which it has not replaced variables
            args = [os.path.expandvars(each) for each in args]
        found, rest, order = self.make_parser(ctx).parse_args(list(args))
        if not any(each.name == "help" for each in order):
            try:
                address = self._left_out(found, rest)
            except WaltzError:
                if not ctx.resilient_parsing:
                    raise
            else:
                args = args if address is None else [address, *args]
        return super().parse_args(ctx, args)

    def _left_out(self, found: dict[str, Any], rest: list[str]) -> str | None:
        """The address that is not among the arguments; None if it is."""
        values = [found.get(each.name or "") for each in self._arguments]
        words = [word for value in values for word in ([value] if isinstance(value, str) else value or ())]
        named, profile = found.get(NAMED), found.get(PROFILE)
        if named is not None and profile is not None:
            raise InvalidSetting(name="--profile", reason=f"cannot be combined with --{self._kind}", nearest=None)
        if named is not None:
            return str(named)
        if profile is not None:
            return profile_address(self._kind, profile, os.environ)
        full = self._arguments[-1].nargs == 1 and len(words) == len(self._arguments)
        if rest or full or (words and has_shape(self._kind, words[0])):
            return None
        address = default_address(self._kind, os.environ)
        if address is None:
            raise missing_address(self._kind, os.environ)
        return address


def add_addresses(app: typer.Typer) -> None:
    """Makes the address optional in each command whose function needs one."""
    for command in app.registered_commands:
        if command.callback is not None and _needs_address(command.callback):
            command.cls = AddressedCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_addresses(group.typer_instance)


def _needs_address(function: Any) -> bool:
    parameters = inspect.signature(function).parameters
    return any(kind in parameters and parameters[kind].default is inspect.Parameter.empty for kind in KINDS)
