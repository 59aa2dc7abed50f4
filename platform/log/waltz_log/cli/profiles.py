"""Where commands find the cluster that the command line does not name: in a variable, or in a profile of the user.

A profile has a name and the two addresses of a cluster, in a small YAML file. `WALTZ_PROFILE` chooses one, else the file's own default counts. A
variable with an address overrides the profiles, so that a script can set it without knowing the user's file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from waltz_log.errors import InvalidSetting

if TYPE_CHECKING:
    from waltz_log.cli.profile_settings import Profiles

__all__ = ["VARIABLES", "Kind", "default_address", "has_shape", "missing_address", "profile_address", "profiles_path"]

Kind = Literal["cluster", "coordinator"]
"""Which address a command needs: that of log servers, or that of the coordinator."""

VARIABLES: Final[Mapping[Kind, str]] = {"cluster": "WALTZ_CLUSTER", "coordinator": "WALTZ_COORDINATOR"}


def has_shape(kind: Kind, text: str) -> bool:
    """Whether a word of the command line can be an address of that kind: `host:port[,host:port]`, or that with a path."""
    from waltz_log.core.cluster_address import parse_coordinator, parse_servers

    try:
        parse_servers(text) if kind == "cluster" else parse_coordinator(text)
    except InvalidSetting:
        return False
    return True


def default_address(kind: Kind, environment: Mapping[str, str]) -> str | None:
    """That of the variable, else that of the profile that `WALTZ_PROFILE` names, else that of the default profile; None if there is none. Raises
    `InvalidSetting` for a file of profiles that is wrong, and for a profile that it does not have."""
    named = environment.get(VARIABLES[kind])
    if named:
        return named
    profile = environment.get("WALTZ_PROFILE")
    if profile:
        return profile_address(kind, profile, environment)
    path = profiles_path(environment)
    found = None if path is None else _read(path, environment)
    return None if found is None or found.default is None else getattr(found.profiles[found.default], kind)


def profile_address(kind: Kind, name: str, environment: Mapping[str, str]) -> str:
    """The address in the profile of that name. Raises `InvalidSetting` if there is none."""
    path = profiles_path(environment)
    found = None if path is None else _read(path, environment)
    if path is None or found is None:
        raise InvalidSetting(name=f"profile {name}", reason=f"is missing: there is no file {path}", nearest=None)
    if name not in found.profiles:
        raise InvalidSetting.unknown(name, found.profiles, what=f"profile in {path}")
    address: str | None = getattr(found.profiles[name], kind)
    if address is None:
        raise InvalidSetting(name=f"profile {name}", reason=f"has no {kind}, in {path}", nearest=None)
    return address


def profiles_path(environment: Mapping[str, str]) -> Path | None:
    """`WALTZ_PROFILES`, else `waltz/profiles.yaml` in the user's folder of settings. None: the user has no such folder."""
    given = environment.get("WALTZ_PROFILES")
    if given:
        return Path(given)
    folder = environment.get("XDG_CONFIG_HOME")
    if folder:
        return Path(folder) / "waltz" / "profiles.yaml"
    home = environment.get("HOME")
    return Path(home) / ".config" / "waltz" / "profiles.yaml" if home else None


def missing_address(kind: Kind, environment: Mapping[str, str]) -> InvalidSetting:
    """The error of a command that finds no address."""
    where = profiles_path(environment) or "profiles.yaml"
    return InvalidSetting(
        name=f"the {kind}", reason=f"is missing: give --{kind} or --profile, set {VARIABLES[kind]}, or write a profile to {where}", nearest=None
    )


def _read(path: Path, environment: Mapping[str, str]) -> Profiles | None:
    """None if there is no file, unless `WALTZ_PROFILES` names it. Raises `InvalidSetting`."""
    if not path.exists() and not environment.get("WALTZ_PROFILES"):
        return None
    from waltz_log.cli.profile_settings import Profiles

    return Profiles.load(path, prefix="WALTZ_PROFILES", environment={})
