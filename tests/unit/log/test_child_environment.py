"""What the programs underneath get of the user's environment: how to reach the network, and nothing of another Spark, Python or pip."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from waltz_log.child_environment import java_environment, java_proxies, locale_exists, pip_environment, pip_settings, spark_environment, utf8_locale

OF_ANOTHER_SPARK = {
    "SPARK_HOME": "/opt/spark",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_REMOTE": "sc://host",
    "SPARK_ENV_LOADED": "1",
    "PYSPARK_PYTHON": "python2",
    "PYSPARK_SUBMIT_ARGS": "--master yarn",
    "HADOOP_CONF_DIR": "/etc/hadoop",
    "YARN_CONF_DIR": "/etc/hadoop",
    "PYTHONPATH": "/opt/spark/python",
    "PYTHONHOME": "/opt/python",
    "_JAVA_OPTIONS": "-Xmx8m",
}
KEPT = {"PATH": "/bin", "HOME": "/home/ada", "AWS_PROFILE": "a", "WALTZ_TLS_KEY": "k", "SPARK_LOCAL_DIRS": "/fast", "JAVA_TOOL_OPTIONS": "-Dx=y"}


def test_spark_sees_nothing_of_another_spark_and_everything_else() -> None:
    got = spark_environment({**OF_ANOTHER_SPARK, **KEPT}, python=Path("/p/bin/python"), spark_home=Path("/p/spark"), java=Path("/j/bin/java"))
    assert got.pop("LC_ALL") in ("C.UTF-8", "C.utf8", "en_US.UTF-8", "en_US.utf8")
    assert got == {
        **KEPT,
        "SPARK_HOME": "/p/spark",
        "PYSPARK_PYTHON": "/p/bin/python",
        "PYSPARK_DRIVER_PYTHON": "/p/bin/python",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": "/j",
    }


def test_an_interpreter_whose_path_a_shell_would_split_is_found_by_its_name() -> None:
    got = spark_environment({"PATH": "/bin"}, python=Path("/a b/bin/python"), spark_home=Path("/s"), java=Path("/j/bin/java"))
    assert (got["PATH"], got["PYSPARK_PYTHON"], got["PYSPARK_DRIVER_PYTHON"]) == (f"/a b/bin{os.pathsep}/bin", "python3", "python3")


@pytest.mark.parametrize(("driver", "kept"), [("jupyter", False), ("/p/bin/python", True), (None, True)])
def test_options_of_another_driver_are_dropped_with_it(driver: str | None, kept: bool) -> None:
    given = {"PYSPARK_DRIVER_PYTHON_OPTS": "-i"} | ({} if driver is None else {"PYSPARK_DRIVER_PYTHON": driver})
    got = spark_environment(given, python=Path("/p/bin/python"), spark_home=Path("/s"), java=Path("/j/bin/java"))
    assert ("PYSPARK_DRIVER_PYTHON_OPTS" in got) is kept


@pytest.mark.parametrize(
    ("own", "known", "chosen"),
    [
        ({}, {"C.UTF-8"}, "C.UTF-8"),
        ({"LC_ALL": "tr_TR.UTF-8"}, {"tr_TR.UTF-8", "C.UTF-8"}, "C.UTF-8"),
        ({"LANG": "de_DE.utf8"}, {"de_DE.utf8"}, "de_DE.utf8"),
        ({"LANG": "de_DE.UTF-8", "LC_ALL": "C"}, {"de_DE.UTF-8"}, None),
        ({"LANG": "de_DE.UTF-8"}, set(), None),
        ({"LANG": "de_DE.ISO-8859-1"}, {"de_DE.ISO-8859-1"}, None),
    ],
)
def test_java_gets_a_locale_with_utf8_that_the_machine_has(own: dict[str, str], known: set[str], chosen: str | None) -> None:
    assert utf8_locale(own, known.__contains__) == chosen
    got = java_environment({**own, "_JAVA_OPTIONS": "-Xmx8m"}, known.__contains__)
    assert got == (own if chosen is None else {**own, "LC_ALL": chosen})


def test_the_c_library_is_asked_for_locales() -> None:
    assert locale_exists("C")
    assert not locale_exists("xx_XX.UTF-8")


def test_java_learns_of_the_proxies_that_other_programs_use() -> None:
    given = {"https_proxy": "http://user:secret@proxy.example:3128/", "HTTP_PROXY": "proxy.example:80"}
    assert java_proxies(given) == [
        *("-Dhttp.proxyHost=proxy.example", "-Dhttp.proxyPort=80"),
        *("-Dhttps.proxyHost=proxy.example", "-Dhttps.proxyPort=3128"),
    ]
    assert java_proxies({"https_proxy": "somewhere", "no_proxy": "*"}) == []


LISTED = """\
:env:.cert='/variable.pem'
:env:.user='1'
global.cert='/file.pem'
global.index-url='https://mirror.example/simple?a=b'
global.only-binary=':all:'
global.require-hashes='true'
install.constraint='/etc/other.txt'
install.target='/elsewhere'
install.proxy='http://proxy.example:1'
wheel.find-links='/x'
"""


def test_pip_keeps_what_reaches_the_index_and_nothing_that_changes_what_is_installed() -> None:
    settings = pip_settings(LISTED.splitlines())
    assert settings == {"PIP_CERT": "/variable.pem", "PIP_INDEX_URL": "https://mirror.example/simple?a=b", "PIP_PROXY": "http://proxy.example:1"}
    given = {"PIP_USER": "1", "PIP_CONFIG_FILE": "/pip.conf", "PYTHONPATH": "/x", "VIRTUAL_ENV": "/v", "HTTPS_PROXY": "p", "TMPDIR": "/small"}
    got = pip_environment(given, settings, Path("/large"))
    assert got.pop("LC_ALL")
    assert got == {
        **settings,
        "HTTPS_PROXY": "p",
        "TMPDIR": "/large",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
    }
