"""A reader of README and docs finds the answers to twenty questions: docs/concepts/faq.md names a page for each, which contains the answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FAQ = ROOT / "docs/concepts/faq.md"
ROW = re.compile(r"^\| (.+\?) \| \[.+\]\(([^)#]+)(?:#([\w-]+))?\) \|$", re.MULTILINE)
ANSWERS = {
    "install it": ("pip install", "constraints.txt"),
    "cluster on my machine": ("waltz dev",),
    "another process": ("WaltzClient.open", "log1:5101,log2:5101", "cluster_key"),
    "append fails": ("OutcomeUnknown", "LockConflict", "resolve"),
    "guaranteed": ("Checked by",),
    "Delta table": ("trigger", "jobs/ingest.py"),
    "my write is in the table": ("wait_visible",),
    "tables on S3": (
        "S3DynamoDBLogStore",
        "hadoop-aws",
        "UnsafeTable",
        "singleDriver",
        "MinIO",
        "Dead letters are written and replayed in the same way",
        "gcs-connector",
    ),
    "notebook": ("WaltzClient.connect", "await client.close()", "duckdb", "spark.read", "cannot read"),
    "on Kubernetes": ("kubectl apply -k", "conf/deploy/kubernetes", "100 GiB", "12 partitions", "port 9100", "waltz.svc"),
    "EMR": ("EMR", "Glue", "Dataproc", "Databricks", "Spark 4.2"),
    "Airflow": ("exit code", "available-now", "dbt"),
    "secure it": ("mutual TLS", "waltz access grant", "--secure"),
    "machines do I need": ("Storage nodes", "Log servers", "ZooKeeper", "1 to 4,096 partitions"),
    "cost": ("retention", "between zones", "no replication between regions", "a million appends"),
    "monitor it": ("/metrics", "Prometheus"),
    "upgrade": ("one at a time", "go back", "maintenance window"),
    "back up": ("waltz storage backup", "waltz storage restore", "full one", "52 hours"),
    "person's data": ("tombstone", "VACUUM", "retention_ms", "backups", "not possible today", "still be stored"),
    "Kafka and Tableflow": ("Confluent Tableflow", "Zerobus", "Redpanda", "When not to use"),
}
"""By words of a question, what its page must contain."""

QUESTIONS = ROW.findall(FAQ.read_text())


def test_there_are_twenty_questions_and_each_has_an_answer_to_check() -> None:
    assert len(QUESTIONS) == len(ANSWERS) == 20
    assert [question for question, _, _ in QUESTIONS if sum(key in question for key in ANSWERS) != 1] == []


@pytest.mark.parametrize(("question", "page", "anchor"), QUESTIONS, ids=[question for question, _, _ in QUESTIONS])
def test_the_page_of_a_question_contains_the_answer(question: str, page: str, anchor: str) -> None:
    text = (FAQ.parent / page).read_text()
    (wanted,) = (words for key, words in ANSWERS.items() if key in question)
    assert [word for word in wanted if word not in text] == []
    headings = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    assert not anchor or anchor in headings


def test_readme_leads_to_the_pages() -> None:
    readme = (ROOT / "README.md").read_text()
    linked = set(re.findall(r"docs/[\w/]+\.md", readme))
    wanted = {str((FAQ.parent / page).resolve().relative_to(ROOT)) for _, page, _ in QUESTIONS}
    assert wanted <= linked
