"""The file of profiles, `profiles.yaml`. Apart from `profiles`, because commands that need no profile start sooner without pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from waltz_log.core.cluster_address import parse_coordinator, parse_servers
from waltz_log.errors import InvalidSetting
from waltz_log.settings import Settings

__all__ = ["Profile", "Profiles"]


class Profile(BaseModel):
    """The addresses of one cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    cluster: str | None = Field(default=None, description="Log servers, host:port[,host:port].")
    coordinator: str | None = Field(default=None, description="The coordinator, host:port[,host:port]/path, for operators.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            if self.cluster is not None:
                parse_servers(self.cluster)
            if self.coordinator is not None:
                parse_coordinator(self.coordinator)
        except InvalidSetting as error:
            raise ValueError(str(error)) from None
        return self


class Profiles(Settings):
    """`default`: the name of the profile that counts where no other one is named."""

    default: str | None = Field(default=None, description="The profile to use where no other one is named.")
    profiles: Mapping[str, Profile] = Field(default_factory=dict, description="The profiles by their names.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.default is not None and self.default not in self.profiles:
            raise InvalidSetting.unknown(self.default, self.profiles, what="profile, though `default` names it")
        return self
