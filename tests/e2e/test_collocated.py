"""`up --collocated`: the same doors, rules and isolation with the queue in the frontend's memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from config.tiers import Tier
from tasks.fleet.desired_state import DesiredState
from tests.e2e.client import Answer, Api, connected
from tests.e2e.stack import Stack
from tests.integration.celery_harness import close_client, plain_client
from tests.integration.http_server_harness import Client
from tests.waiting import PATIENCE_S, wait_until

MODELS = """\
default_model = "echo"

[models.echo]
source = "workers.models.echo:Echo"

# What other policies have learnt says when a batch is claimed ahead of its time.
[models.moody]
source = "tests.models:Moody"
policy = "idle"
timeout_ms = 30000
max_batch_size = 8

[models.single]
source = "tests.models:Moody"
policy = "idle"
timeout_ms = 30000
max_batch_size = 1

[models.lethal]
source = "tests.chaos.models:Cursed"
options = { repaired = "never" }
max_batch_size = 16

[models.counting]
source = "tests.models:Counting"
cache = true

[models.narrow]
source = "tests.models:Moody"
timeout_ms = 30000
max_batch_size = 1
max_queue_depth = 2
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("collocated"), MODELS)
    try:
        limits = {"queue_timeout_ms": 60_000, "request_timeout_ms": 60_000, "graceful_timeout_ms": 4_000}
        yield stack.start("--collocated", **limits)
        stack.stop()
    finally:
        stack.kill()


@pytest.fixture(scope="module")
def inside(own: Stack) -> Iterator[Api]:
    with connected(own.port) as api:
        yield api


@pytest.fixture
def held(inside: Api, tmp_path: Path) -> Iterator[Path]:
    """A file that must be there before `moody` goes on; until then its other requests wait."""
    path = tmp_path / "go"
    first = hold(inside, "moody", path)
    yield path
    path.touch()
    assert inside.outcome(first)["status"] == "SUCCESS"


def hold(api: Api, model: str, path: Path) -> str:
    task_id = api.later({"hold": str(path)}, model)
    wait_until(lambda: api.result(task_id)["status"] == "STARTED", what=f"{model} is held")
    return task_id


def depths(api: Api, model: str) -> dict[str, int]:
    rows = api.get("/metrics").body.decode().splitlines()
    found = (row for row in rows if row.startswith(f'bunch_queue_depth{{model="{model}"'))
    return {row.split('tier="')[1].split('"')[0]: int(float(row.split()[-1])) for row in found}


def test_one_process_serves_and_status_names_its_roles(own: Stack, inside: Api) -> None:
    assert {row.role for row in own.rows()} == {"redis", "web", "ops"}
    assert len(own.frontends()) == 1
    assert "collocated" in own.logs()
    assert inside.get("/healthz").json["status"] == "alive"
    assert inside.get("/readyz").json["unavailable_models"] == []
    assert inside.get("/internal/health").json["status"] == "healthy"


def test_five_hundred_requests_at_once_get_their_own_answers(inside: Api) -> None:
    answers = inside.all([{"n": number, "text": "x" * number} for number in range(500)])
    assert [answer.json["output"]["n"] for answer in answers] == list(range(500))
    assert all(len(answer.json["output"]["text"]) == number for number, answer in enumerate(answers))
    assert max(answer.json["metadata"]["batch_size"] for answer in answers) > 1
    bulk = inside.post("/v1/inference/bulk", {"inputs": list(range(100))}).json["results"]
    assert [each["output"] for each in bulk] == list(range(100))


def test_no_request_asks_redis(own: Stack, inside: Api) -> None:
    with own.redis() as redis:
        names = {"bunch:arrivals:", "bunch:flush:", "bunch:lease:", "bunch.echo.", "celery-task-meta-"}
        assert inside.infer("quick").status == 200
        assert inside.outcome(inside.later("polled"))["status"] == "SUCCESS"
        known = [each.decode() for each in redis.scan_iter()]
    assert [each for each in known if each.startswith(tuple(names)) and ":metrics:" not in each] == []
    (pid,) = own.pids("redis")
    server = psutil.Process(pid)
    server.suspend()
    try:
        assert [answer.status for answer in inside.all(range(50))] == [200] * 50
    finally:
        server.resume()


def test_a_higher_tier_goes_first(inside: Api, tmp_path: Path) -> None:
    path = tmp_path / "go"
    hold(inside, "single", path)
    free = [later(inside, "free", n) for n in range(12)]
    best = [later(inside, "enterprise", n) for n in range(3)]
    path.touch()
    done = {each: inside.outcome(each) for each in (*free, *best)}
    assert all(each["status"] == "SUCCESS" for each in done.values())
    order = sorted(done, key=lambda each: done[each]["completed_at"])
    # One was claimed ahead, and an aged tier has its share.
    assert set(best) <= set(order[:7])


def later(api: Api, tier: str, number: int) -> str:
    body = {"input": {"n": number, "sleep": 0.01}, "model": "single"}
    answer = api.post("/v1/inference", body, Prefer="respond-async", X_Tier=tier)
    assert answer.status == 202, answer
    return str(answer.json["task_id"])


def test_a_poisonous_input_fails_alone(inside: Api) -> None:
    answers = inside.all([*(f"{n}" for n in range(20)), {"curse": "crash"}, *(f"{n}" for n in range(20, 40))], "lethal")
    outcomes = [answer.json.get("output", answer.json.get("error")) for answer in answers]
    assert outcomes == [*(f"{n}" for n in range(20)), "INFERENCE_FAILED", *(f"{n}" for n in range(20, 40))]
    rejected = inside.all([{"n": 1}, {"reject": "no"}, {"raise": "broken"}, {"n": 2}], "moody")
    assert [answer.status for answer in rejected] == [200, 422, 500, 200]


def test_a_dead_letter_is_listed_and_can_be_replayed(own: Stack, inside: Api) -> None:
    failed = inside.infer({"fail": "broken"}, "moody")
    assert failed.error == "INFERENCE_FAILED"
    task_id = inside.get(f"/internal/requests/{failed.json['request_id']}").json["task_id"]
    wait_until(lambda: task_id in own.manage("dlq", "list", "--json").stdout, what="it is a dead letter")
    assert own.manage("dlq", "replay", task_id).returncode == 0
    wait_until(lambda: inside.result(task_id)["status"] == "FAILURE", what="it ran again")


def test_a_deadline_passes_in_the_queue(inside: Api, held: Path) -> None:
    late = inside.infer({"n": 1}, "moody", timeout_ms=300)
    assert (late.status, late.error) == (504, "DEADLINE_EXCEEDED")


def test_a_full_queue_says_when_to_come_again(inside: Api, tmp_path: Path) -> None:
    path = tmp_path / "go"
    first = hold(inside, "narrow", path)
    answers = [inside.post("/v1/inference", body(n), Prefer="respond-async") for n in range(8)]
    path.touch()
    assert inside.outcome(first)["status"] == "SUCCESS"
    refused = [answer for answer in answers if answer.status != 202]
    assert refused
    assert {answer.error for answer in refused} == {"SERVICE_OVERLOADED"}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    accepted = [answer.json["task_id"] for answer in answers if answer.status == 202]
    assert all(inside.outcome(each)["status"] == "SUCCESS" for each in accepted)


def body(number: int) -> dict[str, object]:
    return {"input": {"n": number}, "model": "narrow"}


def test_polling_and_cancelling(inside: Api, tmp_path: Path) -> None:
    held = tmp_path / "go"
    hold(inside, "single", held)
    # The first may be claimed ahead, as a batch of its own; the second waits.
    waiting, cancelled = inside.later({"n": 1}, "single"), inside.later({"n": 2}, "single")
    assert inside.result(waiting)["status"] in {"PENDING", "STARTED"}
    wait_until(lambda: depths(inside, "single")["paid"] >= 1, what="what waits is counted")
    assert inside.call("DELETE", f"/v1/result/{cancelled}").json["status"] == "CANCELLED"
    held.touch()
    assert inside.outcome(waiting)["output"]["echo"] == {"n": 1}
    assert inside.result(cancelled)["status"] == "CANCELLED"
    assert inside.call("DELETE", f"/v1/result/{waiting}").status == 409
    assert inside.get("/v1/result/never").status == 404


def test_the_same_request_runs_once(inside: Api) -> None:
    def ask(key: str, number: int) -> Answer:
        return inside.post("/v1/inference", {"input": {"k": number}, "model": "moody"}, Idempotency_Key=key)

    first, again, other = ask("a", 1), ask("a", 1), ask("a", 2)
    assert first.json["task_id"] == again.json["task_id"]
    assert other.error == "IDEMPOTENCY_CONFLICT"
    together = inside.all([{"q": 1, "sleep": 0.2}] * 5, "counting")
    assert len({answer.json["output"][1] for answer in together}) == 1, "computed once for all who ask"
    kept = inside.infer({"q": 1, "sleep": 0.2}, "counting")
    assert kept.json["metadata"]["cached"]
    assert kept.json["output"] == together[0].json["output"]


def test_the_death_of_an_executor_loses_nothing(own: Stack, inside: Api, tmp_path: Path) -> None:
    path = tmp_path / "go"
    # Of the highest tier: the others may be refused while nothing is served.
    inputs = [{"n": number, "hold": str(path)} for number in range(60)]
    asked = [inside.aside("/v1/inference", {"input": each, "model": "moody"}, X_Tier="enterprise") for each in inputs]
    (frontend,) = own.frontends()
    wait_until(lambda: sum(depths(inside, "moody").values()) > 0, what="requests wait")
    executor_of(frontend, "moody").kill()
    path.touch()
    answers = [each.result() for each in asked]
    assert [each.json for each in answers if each.status != 200] == []
    assert [each.json["output"]["echo"]["n"] for each in answers] == list(range(60))


def executor_of(frontend: psutil.Process, model: str) -> psutil.Process:
    return next(each for each in frontend.children() if f"bunch executor {model}/0" in each.cmdline())


def test_a_plain_celery_client_is_refused_and_told_why(own: Stack) -> None:
    app = plain_client(own.redis_url)
    sent = app.send_task("bunch.infer", ["x"], queue="bunch.echo.paid")
    with pytest.raises(Exception, match="collocated"):
        sent.get(timeout=PATIENCE_S)
    close_client(app)


def test_a_pause_holds_and_the_history_is_kept(own: Stack, inside: Api) -> None:
    sent: list[str] = []

    def one_waits() -> bool:
        sent.append(inside.later({"n": len(sent)}, "counting"))
        return depths(inside, "counting")["paid"] > 0

    with own.redis() as redis:
        DesiredState(redis).pause("counting", Tier)
        wait_until(one_waits, what="the pause is known")
        DesiredState(redis).resume("counting", Tier)
    assert all(inside.outcome(each)["status"] == "SUCCESS" for each in sent)
    wait_until(lambda: own.manage("explain", sent[-1]).returncode == 0, what="its history is there")


def test_a_stop_finishes_or_keeps_what_was_accepted(own: Stack, tmp_path: Path) -> None:
    path = tmp_path / "go"
    with connected(own.port) as api:
        done = api.later({"n": 0}, "moody")
        assert api.outcome(done)["status"] == "SUCCESS"
        hold(api, "narrow", path)
        left = api.later({"n": 1}, "narrow")
        last = tmp_path / "last"
        open_call = api.soon({"n": 2, "hold": str(last)}, "moody")
        # It waits until nobody can wait any longer: what is polled for must still be saved.
        vain_call = api.soon({"n": 3}, "narrow")
        wait_until(lambda: api.get("/healthz").json["waiting"] == 2, what="the calls wait")
        with Client(own.port) as client:
            client.get("/healthz")
            own.terminate()
            wait_until(client.meets_a_stop, what="the frontend stops")
        last.touch()
        assert open_call.result().json["output"]["echo"]["n"] == 2
        assert vain_call.result().error == "SHUTTING_DOWN"
    assert own.process.wait(PATIENCE_S) == 0
    path.touch()
    own.start("--collocated")
    with connected(own.port) as api:
        assert api.result(done)["output"]["echo"] == {"n": 0}
        assert api.outcome(left)["output"]["echo"] == {"n": 1}
