"""The simulation of a fleet keeps the laws that any of its kind has to keep."""

import json
import random
import re
import runpy
import subprocess
import sys
from math import factorial, isclose
from types import SimpleNamespace

import pytest

from kit.shell import text_of
from kit.where import REPOSITORY

PROGRAM = REPOSITORY / "benchmarks" / "fleet_at_scale.py"


@pytest.fixture(scope="module")
def scale():
    sys.modules["fleet_at_scale"] = module = type(sys)("fleet_at_scale")  # Where its dataclasses look.
    vars(module).update(runpy.run_path(PROGRAM, run_name="fleet_at_scale"))
    yield SimpleNamespace(**vars(module))
    del sys.modules["fleet_at_scale"]


def erlang_c(servers, offered):
    """The chance to wait, by the closed formula; source: Erlang (1917), as in any book on queues."""
    last = offered**servers / factorial(servers) * servers / (servers - offered)
    return last / (sum(offered**k / factorial(k) for k in range(servers)) + last)


def served(scale, *, servers, rate, service, seconds, seed):
    """An M/M/c queue for so long: the station, each wait, and how many came."""
    time, waits, drawn = scale.Simulation(), [], random.Random(seed)
    station = scale.Station(time, servers)

    def customer():
        came = time.now
        yield station
        waits.append(time.now - came)
        yield drawn.expovariate(1 / service)
        station.release()

    def door():
        while True:
            yield drawn.expovariate(rate)
            time.start(customer())

    time.start(door())
    time.run(seconds)
    return station, waits


def test_a_station_waits_as_erlang_says_and_keeps_the_laws_of_utilisation_and_of_little(scale):
    servers, rate, service, seconds = 4, 24.0, 0.1, 2_000.0
    station, waits = served(scale, servers=servers, rate=rate, service=service, seconds=seconds, seed=2)
    offered, came = rate * service, len(waits) / seconds
    expected = erlang_c(servers, offered) * service / (servers - offered)
    assert isclose(sum(waits) / len(waits), expected, rel_tol=0.08)
    assert isclose(sum(wait > 0 for wait in waits) / len(waits), erlang_c(servers, offered), rel_tol=0.05)
    assert isclose(station.busy(seconds), offered, rel_tol=0.03)
    assert isclose(station.mean_waiting(seconds), came * sum(waits) / len(waits), rel_tol=0.01)


def small(scale, **fleet):
    shape = {"nodes": 4, "slots": 64, "wakes": "home", **fleet}
    return scale.Costs(), scale.Fleet(**shape), scale.Load(homes=50_000, recalls=1.0, by_model=0.0)


@pytest.mark.slow
def test_more_cores_of_the_database_saturate_later_until_something_else_does(scale):
    effort = scale.Effort(seconds=2.0, halvings=5)

    def most(cores):
        costs, fleet, load = small(scale, database_cores=cores, nodes=40)
        return scale.saturation(costs, fleet, load, effort, seed=1)[0]

    one, two = most(1), most(2)
    assert 1.5 * one < two < 2.5 * one
    assert most(64) <= 1_000 / (2 * scale.Costs().notify_ms)


def test_no_work_is_lost_and_the_database_is_as_busy_as_its_costs_say(scale):
    costs, fleet, load = small(scale, database_cores=4)
    load = scale.at_rate(load, 60.0)
    found = scale.Run(costs, fleet, load, seed=3).figures(4.0)
    assert isclose(found.done, found.rate, rel_tol=0.2)
    a_task = costs.submit_ms + costs.turn_ms + load.recalls * costs.recall_ms + 2 * costs.ask_ms
    cold = (1 - found.hit) * (1 + load.recalls) * costs.cold_server_ms
    expected = found.done * (a_task + cold) / 1_000
    assert isclose(found.busy["cores of the database"] * 4, expected, rel_tol=0.15)


def test_who_wakes_every_node_has_them_ask_in_vain_and_build_what_another_has(scale):
    costs, fleet, load = small(scale, nodes=20)
    load = scale.at_rate(load, 40.0)
    every, home = (
        scale.Run(costs, scale.replace(fleet, wakes=wakes), load, seed=3).figures(1.5)
        for wakes in ("all", "home")
    )
    assert every.empty_queries > 0.9 > home.empty_queries
    assert every.hit < home.hit
    assert every.busy["cores of the database"] > home.busy["cores of the database"]


def told(*arguments):
    done = subprocess.run(
        [sys.executable, PROGRAM, "--quick", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_one_seed_prints_one_page_and_another_seed_another():
    code, page = told("--seed", "5")
    assert code == 0
    heads = re.findall(r"^\| [a-z]+ \|.*$\n^\| --- .*$", page, re.MULTILINE)
    assert len(heads) == 3
    told_of = text_of("docs/fleet.md")  # Numbers of the last table's heads are those of a load.
    assert all(head.partition(", ")[0] in told_of for head in heads), "paste anew what it prints"
    assert f"\npython benchmarks/{PROGRAM.name}" in told_of
    assert told("--seed", "5") == (0, page)
    assert told("--seed", "6")[1].splitlines()[1:] != page.splitlines()[1:]


@pytest.mark.slow
def test_measured_costs_come_by_a_file_and_what_is_no_cost_is_refused(tmp_path):
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({"submit_ms": 1.25}))
    code, page = told("--costs", str(file))
    assert (code, f"costs ({file}), ms:\n  submit 1.25, turn 17.8," in page) == (0, True)
    for wrong in ({"submit": 1.25}, {"submit_ms": 0}, {"submit_ms": "1"}, [1.25]):
        file.write_text(json.dumps(wrong))
        code, said = told("--costs", str(file))
        assert (code, "cost" in said) == (1, True)
