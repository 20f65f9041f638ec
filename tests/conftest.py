"""Settings that hold for every test."""

from hypothesis import HealthCheck, settings

# Examples are derived from the test's own source, so a run is the same on every machine and a
# failure can be repeated. `long` draws at random: it is the profile that looks for new failures.
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=100)
settings.register_profile(
    "long",
    deadline=None,
    max_examples=2000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci")
