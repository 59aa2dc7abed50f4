"""The files of conf/deploy hold together: settings that exist, commands that the command line accepts, manifests that Kubernetes would accept.

What needs other programs is elsewhere: the units in tests/integration/project/test_systemd_units.py, the image in test_image.py.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tools.reference_commands import parse
from waltz_log.coordination.embedded import HEAP, REQUEST_BYTES_MAX
from waltz_log.errors import InvalidSetting
from waltz_log.server import ServerSettings
from waltz_log.storage import StorageSettings

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "conf" / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = sorted(path.parent for path in KUBERNETES.rglob("kustomization.yaml"))
VERSIONS = ("1.30", "1.34")
"""The oldest and the newest Kubernetes that the manifests are validated against."""

SETTINGS: dict[str, type[StorageSettings] | type[ServerSettings]] = {"storage": StorageSettings, "server": ServerSettings}
NODES = {"waltz-storage": "storage", "waltz-server": "server"}


def load(kind: str, environment: dict[str, str], **arguments: Any) -> StorageSettings | ServerSettings:
    return SETTINGS[kind].load(None, prefix=f"WALTZ_{kind.upper()}", environment=environment, **arguments)


def image_environment() -> dict[str, str]:
    """The variables that the image of the nodes sets for the platform."""
    node = (DEPLOY / "Containerfile").read_text().partition("AS node\n")[2].replace("\\\n", "")
    (line,) = re.findall(r"^ENV (.*)$", node, re.MULTILINE)
    return dict(word.partition("=")[::2] for word in shlex.split(line))


# ---- compose ---------------------------------------------------------------------------------------------------------------------------------------

COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
OURS = {name: service for name, service in COMPOSE["services"].items() if "WALTZ_IMAGE" in service["image"]}


def test_compose_has_three_nodes_of_each_kind_and_a_volume_for_each_storage_node() -> None:
    kinds = [service.get("command") for service in OURS.values()]
    assert (kinds.count("storage"), kinds.count("server")) == (3, 3)
    volumes = [volume.partition(":")[0] for service in COMPOSE["services"].values() for volume in service.get("volumes", ())]
    assert sorted(volumes) == sorted(COMPOSE["volumes"]), "each volume belongs to one service"


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_service_has_no_privileges_and_a_read_only_root(name: str) -> None:
    service = OURS[name]
    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert "user" not in service, "the image's own user"
    assert set(service["depends_on"]) <= set(COMPOSE["services"])


@pytest.mark.parametrize("name", sorted(name for name, service in OURS.items() if service.get("command") in SETTINGS))
def test_the_settings_of_a_service_are_accepted_and_name_its_own_host(name: str) -> None:
    service = OURS[name]
    settings = load(service["command"], image_environment() | service["environment"])
    (alias,) = service["networks"]["waltz"]["aliases"]
    assert settings.listen.partition(":")[0] == alias == f"waltz-{name}"
    assert settings.http.address == "0.0.0.0:9100"
    assert settings.coordinator.startswith("zookeeper:2181/")
    assert settings.direct_port == {"storage": 5002, "server": 5102}[service["command"]]
    if isinstance(settings, StorageSettings):
        assert (settings.name, str(settings.directory)) == (name, "/var/lib/waltz")


def wrong_networks(compose: dict[str, Any]) -> list[str]:
    """Services that reach ZooKeeper and need not, or cannot be reached by clients."""
    found = [] if compose["networks"]["coordinator"] == {"internal": True} else ["coordinator is reached from outside"]
    for name, service in compose["services"].items():
        networks = set(service.get("networks", ["default"]))
        if name in ("zookeeper", "create"):
            wanted = {"coordinator"}
        elif service.get("command") in SETTINGS or name == "waltz":
            wanted = {"coordinator", "waltz"}
        else:
            wanted = {"waltz"}
        if networks != wanted or service.get("ports"):
            found.append(name)
    return found


def test_only_nodes_and_operators_share_a_network_with_zookeeper() -> None:
    assert "client" in OURS
    assert wrong_networks(COMPOSE) == []


@pytest.mark.parametrize(
    ("name", "networks"),
    [("client", ["coordinator", "waltz"]), ("application", ["coordinator"]), ("zookeeper", ["coordinator", "waltz"]), ("server-0", ["waltz"])],
)
def test_a_service_in_a_wrong_network_is_found(name: str, networks: list[str]) -> None:
    wrong = deepcopy(COMPOSE)
    wrong["services"].setdefault(name, {"image": "application"})["networks"] = networks
    assert wrong_networks(wrong) == [name]


def test_the_name_at_which_a_node_listens_is_in_one_network_alone() -> None:
    """A name that both networks have is an address of either, and a node listens at one of them."""
    for name, service in OURS.items():
        if service.get("command") in SETTINGS:
            assert "hostname" not in service, name
            assert not service["networks"]["coordinator"]


def test_the_cluster_is_created_for_the_storage_nodes_of_the_file() -> None:
    words = shlex.split(OURS["create"]["command"])
    parse(words)
    names = [service["environment"]["WALTZ_STORAGE_NAME"] for service in OURS.values() if service.get("command") == "storage"]
    assert words[words.index("--storages") + 1].split(",") == names
    assert {service["environment"].get("WALTZ_STORAGE_COORDINATOR", words[2]) for service in OURS.values() if "environment" in service} == {words[2]}


# ---- kubernetes ------------------------------------------------------------------------------------------------------------------------------------


def resources(folder: Path) -> Iterator[dict[str, Any]]:
    """What kustomize would apply: the resources of the folder and of those that it builds on."""
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
        path = (folder / name).resolve()
        if path.is_dir():
            yield from resources(path)
        else:
            yield from (document for document in yaml.safe_load_all(path.read_text()) if document)


def found(kind: str, name: str, folder: Path = KUBERNETES / "zookeeper") -> dict[str, Any]:
    (resource,) = [each for each in resources(folder) if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return resource


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: folder.name)
def test_kubernetes_accepts_every_resource(folder: Path, version: str) -> None:
    every = list(resources(folder))
    assert len(every) >= 9
    names = [(each["kind"], each["metadata"]["name"]) for each in every]
    assert len(set(names)) == len(names)
    for each in every:
        kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: folder.name)
def test_a_network_policy_selects_each_pod_and_names_ports_that_it_has(folder: Path) -> None:
    """A pod that no policy selects accepts connections from every pod of every namespace."""
    every = list(resources(folder))
    policies = [each for each in every if each["kind"] == "NetworkPolicy"]
    for workload in (each for each in every if each["kind"] in ("StatefulSet", "Deployment", "Job")):
        labels = workload["spec"]["template"]["metadata"]["labels"]
        (policy,) = [each for each in policies if each["spec"]["podSelector"]["matchLabels"].items() <= labels.items()]
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        named = {port["port"] for rule in policy["spec"].get("ingress", ()) for port in rule["ports"]}
        assert named == {port["name"] for port in container_of(workload).get("ports", ())}
        assert all(rule.get("from") for rule in policy["spec"].get("ingress", ())), "a rule without sources permits every source"


def test_only_nodes_and_operators_reach_the_coordinator() -> None:
    (clients, servers) = found("NetworkPolicy", "waltz-zookeeper")["spec"]["ingress"]
    assert (clients["ports"], servers["ports"]) == ([{"port": "client"}], [{"port": "peer"}, {"port": "election"}])
    assert "client" not in [value for each in clients["from"] for value in each["podSelector"].get("matchLabels", {}).values()]


def test_a_misspelled_field_is_found() -> None:
    wrong = deepcopy(found("StatefulSet", "waltz-storage"))
    wrong["spec"]["replica"] = wrong["spec"].pop("replicas")
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: folder.name)
def test_each_file_of_a_folder_belongs_to_its_kustomization(folder: Path) -> None:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    files = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert {name for name in kustomization["resources"] if not name.startswith("..")} == files
    assert kustomization["apiVersion"] == "kustomize.config.k8s.io/v1beta1"
    for image in kustomization.get("images", ()):
        assert image["newTag"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.parametrize("name", [*NODES, "waltz-zookeeper"])
def test_a_stateful_set_is_spread_probed_bounded_and_without_privileges(name: str) -> None:
    workload = found("StatefulSet", name)
    pod, container = workload["spec"]["template"]["spec"], container_of(workload)
    labels = workload["spec"]["template"]["metadata"]["labels"]
    (term,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    budget = found("PodDisruptionBudget", name)
    service = found("Service", workload["spec"]["serviceName"])
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    selectors = [term["labelSelector"]["matchLabels"], budget["spec"]["selector"]["matchLabels"], service["spec"]["selector"]]
    assert selectors == [labels, labels, labels] == [workload["spec"]["selector"]["matchLabels"]] * 3
    assert budget["spec"]["maxUnavailable"] == 1
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= {port["name"] for port in container["ports"]}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]
    assert pod["enableServiceLinks"] is False


def test_zookeeper_has_the_heap_and_the_limit_of_requests_that_keep_strangers_from_ending_it() -> None:
    """The same as `waltz zookeeper` gives it: ZooKeeper keeps the last 500 requests that write."""
    container = container_of(found("StatefulSet", "waltz-zookeeper"))
    (pod,) = [each["value"] for each in container["env"] if each["name"] == "JVMFLAGS"]
    for flags in (pod, COMPOSE["services"]["zookeeper"]["environment"]["JVMFLAGS"]):
        assert flags.split() == [f"-Xmx{HEAP}", "-XX:+ExitOnOutOfMemoryError", f"-Djute.maxbuffer={REQUEST_BYTES_MAX}"]
    assert HEAP == "1g"
    assert container["resources"]["requests"]["memory"] == "1280Mi", "the heap and what Java needs beside it"


@pytest.mark.parametrize("name", NODES)
def test_a_node_is_asked_whether_it_lives_and_is_ready_where_the_image_answers(name: str) -> None:
    container = container_of(found("StatefulSet", name))
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    settings = load(NODES[name], environment_of(name))
    assert settings.http.address == f"0.0.0.0:{ports['http']}"
    assert settings.listen == f"10.1.2.3:{ports['grpc']}"
    assert settings.direct_port == ports["direct"]
    if isinstance(settings, StorageSettings):
        assert "/var/lib/waltz" in [mount["mountPath"] for mount in container["volumeMounts"]]
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        interpreter, *options, program = container[probe]["exec"]["command"]
        assert [interpreter, *options] == ["python", "-I", "-c"]
        assert f"http://127.0.0.1:{settings.http.probe_port}{path}" in program, "no other pod reaches it"
        assert container[probe]["timeoutSeconds"] == 5
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    parse(container["args"])


def environment_of(name: str) -> dict[str, str]:
    """The platform's variables in the first pod of a stateful set."""
    container = container_of(found("StatefulSet", name))
    known = {"status.podIP": "10.1.2.3", "metadata.name": f"{name}-0"}
    variables = {each["name"]: each.get("value") or known[each["valueFrom"]["fieldRef"]["fieldPath"]] for each in container["env"]}
    given = {variable: re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], value) for variable, value in variables.items()}
    (source,) = container["envFrom"]
    settings: dict[str, str] = found("ConfigMap", source["configMapRef"]["name"])["data"]
    return image_environment() | settings | given


def test_the_variables_that_kubernetes_makes_of_services_would_be_refused_as_settings() -> None:
    """Why `enableServiceLinks` is off: with it, a service of the name waltz-storage sets WALTZ_STORAGE_PORT."""
    load("storage", environment_of("waltz-storage"))
    with pytest.raises(InvalidSetting, match="WALTZ_STORAGE_SERVICE_HOST"):
        load("storage", environment_of("waltz-storage") | {"WALTZ_STORAGE_SERVICE_HOST": "10.0.0.1"})


def test_the_job_creates_the_cluster_that_the_nodes_join() -> None:
    words = container_of(found("Job", "waltz-create"))["args"]
    cluster = found("ConfigMap", "waltz-server")["data"]["WALTZ_SERVER_COORDINATOR"]
    assert found("ConfigMap", "waltz-storage")["data"]["WALTZ_STORAGE_COORDINATOR"] == cluster
    parse([cluster if word == "$(WALTZ_SERVER_COORDINATOR)" else word for word in words])
    (storages,) = [word.partition("=")[2].split(",") for word in words if word.startswith("--storages=")]
    replicas = found("StatefulSet", "waltz-storage")["spec"]["replicas"]
    assert storages == [f"waltz-storage-{number}" for number in range(replicas)]
    assert found("Service", cluster.partition(":")[0])["spec"]["selector"]["app.kubernetes.io/component"] == "zookeeper"


# ---- the container image ---------------------------------------------------------------------------------------------------------------------------


def test_the_image_runs_as_a_user_without_rights_and_has_a_health_check() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    for target in ("jobs", "node"):
        stage = text.partition(f"FROM python AS {target}\n")[2].partition("\nFROM ")[0]
        assert re.findall(r"^USER (.*)$", stage, re.MULTILINE) == ["10001:10001"]
        assert "ENTRYPOINT" in stage
    assert "HEALTHCHECK" in text
    assert re.findall(r"^ARG BASE=(.*)$", text, re.MULTILINE) == ["debian:bookworm-slim"]
    assert load("server", image_environment(), coordinator="c:1/x").http.port == 9100


# ---- systemd ---------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_environment_file_of_a_unit_has_settings_that_are_accepted(kind: str) -> None:
    lines = [line for line in (DEPLOY / "systemd" / f"{kind}.env").read_text().splitlines() if line and not line.startswith("#")]
    settings = load(kind, dict(line.partition("=")[::2] for line in lines))
    assert settings.http.port > 0
    if isinstance(settings, StorageSettings):
        unit = (DEPLOY / "systemd" / "waltz-storage.service").read_text()
        assert f"StateDirectory={settings.directory.relative_to('/var/lib')}" in unit
