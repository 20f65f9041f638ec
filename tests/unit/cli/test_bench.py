"""The benches are commands of one group."""

from headrace.cli.bench import app


def test_each_bench_is_a_command():
    names = [command.name for command in app.registered_commands]
    assert names == ["transfer", "serve", "decode", "prefill", "kernels", "attention"]
