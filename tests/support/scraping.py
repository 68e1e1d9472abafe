"""Reading /metrics, as Prometheus does."""

from django.test import Client, override_settings
from prometheus_client.parser import text_string_to_metric_families

from nanohost.console.models import Total

TOKEN = "scrape-0123456789"


def scrape(**headers: str) -> dict[tuple[str | tuple[str, str], ...], float]:
    """Every sample, by its name and labels, counted anew."""
    Total.objects.update(counted_at=None)
    with override_settings(METRICS_TOKEN=TOKEN):
        answer = Client(headers={"Authorization": f"Bearer {TOKEN}", **headers}).get("/metrics")
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.content.decode()))
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples
    }
