"""The simulation of a fleet obeys the general laws of queues."""

import json
import random
import re
import runpy
import subprocess
import sys
from math import factorial, isclose
from types import SimpleNamespace

import pytest

from kit.locations import REPOSITORY
from kit.shell import read_page

PROGRAM = REPOSITORY / "benchmarks" / "fleet_at_scale.py"


@pytest.fixture(scope="module")
def scale():
    sys.modules["fleet_at_scale"] = module = type(sys)("fleet_at_scale")  # Its dataclasses need this entry.
    vars(module).update(runpy.run_path(PROGRAM, run_name="fleet_at_scale"))
    yield SimpleNamespace(**vars(module))
    del sys.modules["fleet_at_scale"]


def erlang_c(servers, offered):
    """Return the probability of waiting; source: Erlang (1917), as in any book on queues."""
    last = offered**servers / factorial(servers) * servers / (servers - offered)
    return last / (sum(offered**k / factorial(k) for k in range(servers)) + last)


def simulate_queue(scale, *, servers, rate, service, seconds, seed):
    """Simulate an M/M/c queue; return the station and the waiting times."""
    time, waits, drawn = scale.Simulation(), [], random.Random(seed)
    station = scale.Station(time, servers)

    def serve_customer():
        arrival_time = time.now
        yield station
        waits.append(time.now - arrival_time)
        yield drawn.expovariate(1 / service)
        station.release()

    def generate_arrivals():
        while True:
            yield drawn.expovariate(rate)
            time.start(serve_customer())

    time.start(generate_arrivals())
    time.run(seconds)
    return station, waits


def test_queue_matches_laws_of_erlang_and_little(scale):
    servers, rate, service, seconds = 4, 24.0, 0.1, 2_000.0
    station, waits = simulate_queue(
        scale, servers=servers, rate=rate, service=service, seconds=seconds, seed=2
    )
    offered, arrival_rate = rate * service, len(waits) / seconds
    expected = erlang_c(servers, offered) * service / (servers - offered)
    assert isclose(sum(waits) / len(waits), expected, rel_tol=0.08)
    assert isclose(sum(wait > 0 for wait in waits) / len(waits), erlang_c(servers, offered), rel_tol=0.05)
    assert isclose(station.busy(seconds), offered, rel_tol=0.03)
    assert isclose(station.mean_waiting(seconds), arrival_rate * sum(waits) / len(waits), rel_tol=0.01)


def make_small_setup(scale, **fleet):
    shape = {"nodes": 4, "slots": 64, "wakes": "home", **fleet}
    return scale.Costs(), scale.Fleet(**shape), scale.Load(homes=50_000, recalls=1.0, by_model=0.0)


@pytest.mark.slow
def test_more_database_cores_saturate_later_up_to_a_limit(scale):
    effort = scale.Effort(seconds=2.0, halvings=5)

    def find_saturation(cores):
        costs, fleet, load = make_small_setup(scale, database_cores=cores, nodes=40)
        return scale.saturation(costs, fleet, load, effort, seed=1)[0]

    one, two = find_saturation(1), find_saturation(2)
    assert 1.5 * one < two < 2.5 * one
    assert find_saturation(64) <= 1_000 / (2 * scale.Costs().notify_ms)


def test_simulation_loses_no_work_and_busy_time_matches_costs(scale):
    costs, fleet, load = make_small_setup(scale, database_cores=4)
    load = scale.at_rate(load, 60.0)
    found = scale.Run(costs, fleet, load, seed=3).figures(4.0)
    assert isclose(found.done, found.rate, rel_tol=0.2)
    a_task = costs.submit_ms + costs.turn_ms + load.recalls * costs.recall_ms + 2 * costs.ask_ms
    cold = (1 - found.hit) * (1 + load.recalls) * costs.cold_server_ms
    expected = found.done * (a_task + cold) / 1_000
    assert isclose(found.busy["cores of the database"] * 4, expected, rel_tol=0.15)


def test_waking_every_node_wastes_queries_and_copies(scale):
    costs, fleet, load = make_small_setup(scale, nodes=20)
    load = scale.at_rate(load, 40.0)
    every, home = (
        scale.Run(costs, scale.replace(fleet, wakes=wakes), load, seed=3).figures(1.5)
        for wakes in ("all", "home")
    )
    assert every.empty_queries > 0.9 > home.empty_queries
    assert every.hit < home.hit
    assert every.busy["cores of the database"] > home.busy["cores of the database"]


def run_program(*arguments):
    done = subprocess.run(
        [sys.executable, PROGRAM, "--quick", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_same_seed_prints_same_page():
    code, page = run_program("--seed", "5")
    assert code == 0
    heads = re.findall(r"^\| [a-z]+ \|.*$\n^\| --- .*$", page, re.MULTILINE)
    assert len(heads) == 3
    # The table heads contain numbers of the load, so only their first parts are compared.
    documentation = read_page("docs/fleet.md")
    assert all(head.partition(", ")[0] in documentation for head in heads), (
        "paste the new output into the page"
    )
    assert f"\npython benchmarks/{PROGRAM.name}" in documentation
    assert run_program("--seed", "5") == (0, page)
    assert run_program("--seed", "6")[1].splitlines()[1:] != page.splitlines()[1:]


@pytest.mark.slow
def test_costs_file_is_used_and_invalid_costs_rejected(tmp_path):
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({"submit_ms": 1.25}))
    code, page = run_program("--costs", str(file))
    assert (code, f"costs ({file}), ms:\n  submit 1.25, turn 17.8," in page) == (0, True)
    for wrong in ({"submit": 1.25}, {"submit_ms": 0}, {"submit_ms": "1"}, [1.25]):
        file.write_text(json.dumps(wrong))
        code, output = run_program("--costs", str(file))
        assert (code, "cost" in output) == (1, True)
