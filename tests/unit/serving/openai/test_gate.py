"""Who comes in: keys, request ids, counts."""

import pytest

from tests.support.serving_fakes import make_stack

KEYED = {"/v1/models": 200, "/metrics": 200, "/nope": 404, "/v1/completions": 405}


@pytest.mark.parametrize("path", KEYED, ids=str)
async def test_every_route_needs_the_key(path: str) -> None:
    stack = make_stack(api_keys=("first", "second"))
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic first"}):
        answer = await stack.client.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"
        assert answer.headers["connection"] == "close"
    for key in ("first", "second"):
        answer = await stack.client.get(path, headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == KEYED[path]


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_probes_need_no_key(path: str) -> None:
    stack = make_stack(api_keys=("key",))
    assert (await stack.client.get(path)).status_code == 200


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/redoc"])
async def test_there_is_no_page_beside_the_api(path: str) -> None:
    assert (await make_stack().client.get(path)).status_code == 404


async def test_metrics_are_closed_until_opened() -> None:
    closed = await make_stack().client.get("/metrics")
    assert (closed.status_code, closed.json()["error"]["code"]) == (403, "metrics_closed")
    opened = make_stack(api_keys=("key",), is_metrics_open=True)
    assert (await opened.client.get("/metrics")).status_code == 200


async def test_a_wrong_key_costs_no_request() -> None:
    stack = make_stack(api_keys=("key",))
    assert (await stack.chat()).status_code == 401
    assert stack.engine.submits == []


async def test_a_clients_request_id_comes_back_on_every_kind_of_answer() -> None:
    stack = make_stack()
    for path in ("/health", "/nope", "/metrics"):
        answer = await stack.client.get(path, headers={"X-Request-Id": "mine"})
        assert answer.headers["x-request-id"] == "mine"
    answers = [await stack.client.get("/health") for _ in range(2)]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 2


@pytest.mark.parametrize("bad", ["x" * 129, "a\tb"], ids=["long", "tab"])
async def test_a_request_id_unfit_for_a_header_is_replaced(bad: str) -> None:
    answer = await make_stack().client.get("/health", headers={"X-Request-Id": bad})
    assert answer.headers["x-request-id"] != bad


async def test_answers_are_counted_by_endpoint_and_status() -> None:
    stack = make_stack()
    await stack.chat()
    await stack.chat(temperature=-1)
    await stack.client.get("/some/other/path")
    assert stack.front.metrics.answers == {
        ("/v1/chat/completions", "200"): 1,
        ("/v1/chat/completions", "400"): 1,
        ("other", "404"): 1,
    }
