"""Prometheus' text format read back: what a scrape has, by metric and labels."""

from prometheus_client.parser import text_string_to_metric_families

Scraped = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(text: str) -> Scraped:
    """Every sample of this text, as Prometheus' own parser reads it."""
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families), "a metric is described twice"
    samples = [sample for family in families for sample in family.samples]
    found = {(one.name, frozenset(one.labels.items())): one.value for one in samples}
    assert len(found) == len(samples), "a sample is there twice"
    return found


def value(found: Scraped, name: str, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))
