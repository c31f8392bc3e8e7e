"""The fields of Kubernetes and KEDA that our manifests use, each with its type; any other field is a mistake.

Their published schemas are megabytes, and leave open what KEDA takes. A field that is new here is looked up once.
"""

from collections.abc import Iterator
from typing import Any

TEXTS = {...: str}  # any names, each with a text
KEY = {"name": str, "key": str}
PROBE = {
    "httpGet": {"path": str, "port": str},
    "periodSeconds": int, "timeoutSeconds": int, "failureThreshold": int,
}  # fmt: skip
CONTAINER = {
    "name": str, "image": str, "args": [str],
    "env": [{"name": str, "value": str, "valueFrom": {"secretKeyRef": KEY, "fieldRef": {"fieldPath": str}}}],
    "ports": [{"name": str, "containerPort": int}],
    "livenessProbe": PROBE, "readinessProbe": PROBE,
    "resources": {"requests": {"cpu": str, "memory": str}, "limits": {"cpu": str, "memory": str}},
    "securityContext": {
        "allowPrivilegeEscalation": bool, "runAsNonRoot": bool, "capabilities": {"drop": [str], "add": [str]},
    },
}  # fmt: skip
META = {"name": str, "labels": TEXTS, "annotations": TEXTS}
POD = {
    "metadata": META,
    "spec": {"terminationGracePeriodSeconds": int, "restartPolicy": str, "containers": [CONTAINER]},
}
TRIGGER = {"type": str, "authenticationRef": {"name": str}, "metadata": TEXTS}
SPECS: dict[tuple[str, str], Any] = {
    ("apps/v1", "Deployment"): {"replicas": int, "selector": {"matchLabels": TEXTS}, "template": POD},
    ("batch/v1", "Job"): {"backoffLimit": int, "ttlSecondsAfterFinished": int, "template": POD},
    ("v1", "Service"): {"selector": TEXTS, "ports": [{"name": str, "port": int, "targetPort": str}]},
    ("keda.sh/v1alpha1", "ScaledObject"): {
        "scaleTargetRef": {"name": str}, "minReplicaCount": int, "maxReplicaCount": int, "pollingInterval": int,
        "cooldownPeriod": int, "fallback": {"failureThreshold": int, "replicas": int}, "triggers": [TRIGGER],
    },
    ("keda.sh/v1alpha1", "TriggerAuthentication"): {"secretTargetRef": [{"parameter": str, **KEY}]},
}  # fmt: skip


def mistakes(manifest: dict[str, Any]) -> list[str]:
    """Every field that is not known, or is not of its type."""
    spec = SPECS.get((manifest["apiVersion"], manifest["kind"]), {})
    return [*_mistakes(manifest, {"apiVersion": str, "kind": str, "metadata": META, "spec": spec}, manifest["kind"])]


def _mistakes(value: Any, shape: Any, at: str) -> Iterator[str]:
    if isinstance(shape, type):
        if type(value) is not shape:
            yield f"{at}: {value!r} must be of type {shape.__name__}"
    elif isinstance(shape, list):
        for number, one in enumerate(value if isinstance(value, list) else [value]):
            yield from _mistakes(one, shape[0], f"{at}[{number}]")
    elif not isinstance(value, dict):
        yield f"{at}: {value!r} must have fields"
    else:
        for name, one in value.items():
            known = shape.get(name, shape.get(...))
            if known is None:
                yield f"{at}.{name}: is not a field"
            else:
                yield from _mistakes(one, known, f"{at}.{name}")
