"""``bench kernels`` asks for the families and cases that its flags name."""

from headrace.bench.device import run
from headrace.cli.main import main


def test_flags_say_what_is_measured(monkeypatch):
    asked = []
    monkeypatch.setattr(
        run, "run_bench", lambda *args, **options: iter(asked.append((args, options)) or ())
    )
    assert main(["bench", "kernels"]) == 0
    flags = ["--family", "route", "--family", "combine", "--case", "t8"]
    assert main(["bench", "kernels", *flags, "--device", "cuda:1", "--replays", "3"]) == 0
    defaults = {"device": "cuda:0", "matching": "", "num_replays": 100}
    assert asked[0] == (("kernels", []), defaults)
    chosen = {"device": "cuda:1", "matching": "t8", "num_replays": 3}
    assert asked[1] == (("kernels", ["route", "combine"]), chosen)


def test_an_unknown_family_is_one_line(capsys):
    assert main(["bench", "kernels", "--family", "gate"]) == 2
    assert "--family 'gate': expected one of" in capsys.readouterr().err
