"""The files in deploy/: each parses, fits its schema, starts commands that there are, and asks for metrics we export.

Compose has a published schema (in check-jsonschema). The fields of Kubernetes and KEDA are in `manifest_shapes.py`.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from tests.deploy.manifest_shapes import mistakes
from tests.support.commands import check_command
from tests.support.making import claimed
from tests.support.scrape import Scraped, scrape
from tests.support.workbench import ended, until, working
from treadle import Retry, Treadle
from treadle.app.exposition import exposition
from treadle.app.metrics import StoreMetrics
from treadle.app.process_metrics import metrics_of
from treadle.app.settings import Settings

ROOT = Path(__file__).resolve().parents[2] / "deploy"
UNITS = sorted((ROOT / "systemd").glob("*.service"))
MANIFESTS = sorted((ROOT / "kubernetes").glob("*.yaml"))
ALERTS = yaml.safe_load((ROOT / "prometheus" / "alerts.yml").read_text())["groups"]
DASHBOARD = json.loads((ROOT / "grafana" / "treadle.json").read_text())
ENOUGH = Settings().grace + 10  # seconds to stop in: the last outcomes are still to be written after the grace time

WORDS = {"by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "bool", "offset"}
GIVEN = {"job", "instance", "le"}  # labels that Prometheus adds, and that of histograms


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def manifests() -> list[dict[str, Any]]:
    return [one for path in MANIFESTS for one in documents(path)]


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    [found] = manifest["spec"]["template"]["spec"]["containers"]
    return found


# -------------------------------------------------------------------------------------------- the commands


def unit(path: Path) -> ConfigParser:
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # systemd minds the case
    parser.read(path)
    return parser


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every treadle command in the files, by place."""
    for path in UNITS:
        for name in ("ExecStartPre", "ExecStart"):
            words = shlex.split(unit(path)["Service"][name])
            yield path.name, ["treadle", *words[1:]]
    for name, service in yaml.safe_load((ROOT / "compose" / "compose.yaml").read_text())["services"].items():
        if "command" in service:
            yield f"compose {name}", service["command"]
    for one in manifests():
        if one["kind"] in ("Deployment", "Job"):
            yield f"kubernetes {one['metadata']['name']}", container(one)["args"]


@pytest.mark.parametrize(("place", "words"), [*commands()])
def test_each_command_is_one_of_ours_with_options_that_it_has(place: str, words: list[str]) -> None:
    check_command(words)
    assert "--grace" not in " ".join(words) or "30s" in " ".join(words)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_one_that_systemd_takes(path: Path, tmp_path: Path) -> None:
    service = unit(path)["Service"]
    assert unit(path).sections() == ["Unit", "Service", "Install"]
    assert float(service["TimeoutStopSec"]) >= ENOUGH
    if systemd := shutil.which("systemd-analyze"):
        program = Path(sys.executable).parent / "treadle"
        copy = tmp_path / path.name.replace("@", "@1")
        copy.write_text(path.read_text().replace("/srv/shop/.venv/bin/treadle", str(program)))
        done = subprocess.run([systemd, "verify", "--man=no", copy], capture_output=True, text=True, check=False)
        assert path.stem.split("@")[0] not in done.stderr, done.stderr
        assert done.returncode == 0


# ------------------------------------------------------------------------------------ Compose, Kubernetes


def test_the_compose_file_fits_the_compose_specification() -> None:
    program = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*program, ROOT / "compose" / "compose.yaml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    services = yaml.safe_load((ROOT / "compose" / "compose.yaml").read_text())["services"]
    for name in ("server", "worker"):
        assert int(services[name]["stop_grace_period"].removesuffix("s")) >= ENOUGH
        assert services[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    assert all(port.startswith("127.0.0.1:") for one in services.values() for port in one.get("ports", ()))


def test_every_manifest_has_the_fields_that_kubernetes_requires() -> None:
    found = manifests()
    versions = {
        "Deployment": "apps/v1", "Job": "batch/v1", "Service": "v1",
        "ScaledObject": "keda.sh/v1alpha1", "TriggerAuthentication": "keda.sh/v1alpha1",
    }  # fmt: skip
    assert {one["kind"] for one in found} == set(versions)
    for one in found:
        assert one["apiVersion"] == versions[one["kind"]]
        assert re.fullmatch(r"[a-z0-9-]{1,63}", one["metadata"]["name"])
        if one["kind"] not in ("Deployment", "Job"):
            continue
        pod = one["spec"]["template"]["spec"]
        names = set(container(one)) - {"securityContext", "livenessProbe", "readinessProbe", "ports"}
        assert names <= {"name", "image", "args", "env", "resources"}
        url = {"name": "TREADLE_URL", "valueFrom": {"secretKeyRef": {"name": "treadle", "key": "url"}}}
        assert url in container(one)["env"]
        if one["kind"] == "Job":
            assert pod["restartPolicy"] in ("Never", "OnFailure")
            continue
        assert one["spec"]["selector"]["matchLabels"].items() <= one["spec"]["template"]["metadata"]["labels"].items()
        assert pod["terminationGracePeriodSeconds"] >= ENOUGH
        ports = {port["name"] for port in container(one)["ports"]}
        probes = [container(one).get(probe) for probe in ("livenessProbe", "readinessProbe")]
        assert {probe["httpGet"]["port"] for probe in probes if probe} <= ports
    [service] = [one for one in found if one["kind"] == "Service"]
    [server] = [one for one in found if one["metadata"]["name"] == "treadle-server"]
    assert service["spec"]["selector"].items() <= server["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("manifest", manifests(), ids=lambda one: f"{one['kind']} {one['metadata']['name']}")
def test_a_manifest_has_no_field_that_kubernetes_would_refuse(manifest: dict[str, Any]) -> None:
    assert mistakes(manifest) == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"securityContext": {"runAsNonRot": True}}, "securityContext.runAsNonRot: is not a field"),
        ({"livenessProbe": {"periodSeconds": "20"}}, "livenessProbe.periodSeconds: '20' must be of type int"),
        ({"args": ["treadle", 9090]}, "args[1]: 9090 must be of type str"),
        ({"env": [{"name": "PORT", "value": 1}]}, "env[0].value: 1 must be of type str"),
        ({"resources": 1}, "resources: 1 must have fields"),
    ],
)
def test_a_field_that_is_mistyped_is_found(wrong: dict[str, Any], told: str) -> None:
    [worker] = [
        one for one in manifests() if one["metadata"]["name"] == "treadle-worker" and one["kind"] == "Deployment"
    ]
    container(worker).update(wrong)
    assert mistakes(worker) == [f"Deployment.spec.template.spec.containers[0].{told}"]


def scaled_objects() -> list[dict[str, Any]]:
    return [one for one in manifests() if one["kind"] == "ScaledObject"]


def test_keda_scales_the_workers_by_what_it_can_ask() -> None:
    required = {"postgresql": {"query", "targetQueryValue"}, "prometheus": {"serverAddress", "query", "threshold"}}
    workers = {one["metadata"]["name"] for one in manifests() if one["kind"] == "Deployment"}
    secrets = {one["metadata"]["name"] for one in manifests() if one["kind"] == "TriggerAuthentication"}
    assert {one["spec"]["triggers"][0]["type"] for one in scaled_objects()} == set(required)
    for one in scaled_objects():
        spec = one["spec"]
        assert spec["scaleTargetRef"]["name"] in workers
        assert 1 <= spec["minReplicaCount"] < spec["maxReplicaCount"]
        [trigger] = spec["triggers"]
        assert required[trigger["type"]] == set(trigger["metadata"])
        assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA takes text only"
        assert trigger.get("authenticationRef", {"name": None})["name"] in {None, *secrets}


@pytest.mark.parametrize("engine_kind", ["postgres"])
def test_kedas_question_counts_what_is_due_and_runs(store_url: str) -> None:
    questions = [one["spec"]["triggers"][0] for one in scaled_objects()]
    [query] = [one["metadata"]["query"] for one in questions if one["type"] == "postgresql"]
    address, schema = store_url.split("?schema=")
    with closing(Treadle(store_url)) as app, psycopg.connect(address) as connection:
        app.migrate()
        greet = app.register("greet", lambda: None)
        claimed(app.engine, greet.enqueue())
        for options in ({}, {"run_after": "1h"}, {"queue": "mail"}):
            greet.using(**options).enqueue()
        assert connection.execute(query.replace("treadle.jobs", f"{schema}.jobs")).fetchone() == (2,)


# ------------------------------------------------------------------------------------------ the queries


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Scraped:
    """A real scrape of a store and of a worker, in which something of every kind has happened."""
    app = Treadle(f"sqlite:///{tmp_path_factory.mktemp('scrape')}/jobs.db", heartbeat=0.1)

    @app.task(retry=Retry(2, "1h"))
    def boom() -> None:
        raise ValueError

    @app.task
    def fine() -> None: ...

    boom.enqueue()
    job = fine.enqueue()
    try:
        with working(app) as worker:
            ended(app, job)
            until(lambda: app.workers() and worker.measured().held == 0, "a heartbeat, and nothing at work")
            worker._minutes.write()
            return scrape(StoreMetrics().exposition(app)) | scrape(exposition(metrics_of(worker)))
    finally:
        app.close()


def queries() -> list[tuple[str, str]]:
    """Every query of the alerts, the dashboard and KEDA, by place."""
    alerts = [(rule["alert"], rule["expr"]) for group in ALERTS for rule in group["rules"]]
    panels = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
    names = [("variable", one["definition"]) for one in DASHBOARD["templating"]["list"] if "definition" in one]
    scaled = [
        ("KEDA", one["spec"]["triggers"][0]["metadata"]["query"])
        for one in scaled_objects()
        if one["spec"]["triggers"][0]["type"] == "prometheus"
    ]
    return alerts + panels + names + scaled


def asked(query: str) -> tuple[set[str], set[str]]:
    """The metrics and the labels that a query names."""
    plain = re.sub(r'"[^"]*"', '""', query)
    labels = {name for inside in re.findall(r"\{([^}]*)\}", plain) for name in re.findall(r"(\w+)\s*[=!]", inside)}
    clauses = re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", plain)
    labels |= {name for clause in clauses for name in re.findall(r"\w+", clause)}
    if found := re.fullmatch(r"label_values\((\w+), (\w+)\)", plain):
        return {found[1]}, {found[2]}
    rest = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring)\s*\([^)]*\)", " ", plain)
    return set(re.findall(r"\b[a-zA-Z_:][\w:]*\b(?!\s*\()", rest)) - WORDS, labels


@pytest.mark.parametrize(("place", "query"), queries())
def test_every_query_names_metrics_and_labels_that_we_export(place: str, query: str, exported: Scraped) -> None:
    metrics, labels = asked(query)
    assert metrics, f"{place} asks for no metric"
    assert metrics <= {name for name, _ in exported}
    assert labels <= GIVEN | {label for name, has in exported if name in metrics for label, _ in has}


def test_a_query_is_taken_apart_as_prometheus_would() -> None:
    query = 'sum by (task) (rate(a_total{outcome="x by (y)", queue=~"$q"}[5m])) > 0.2 * max(b) and on (le) c'
    assert asked(query) == ({"a_total", "b", "c"}, {"outcome", "queue", "task", "le"})


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    rules = [rule for group in ALERTS for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "action"}
        _, labels = asked(rule["expr"])
        shown = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        assert shown <= labels | GIVEN or "by" not in rule["expr"]


def test_the_panels_of_the_dashboard_have_a_place_each() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 and panel["description"] for panel in panels)
    assert DASHBOARD["uid"] == "treadle"
