"""Tasks that are queued for a lost node run on another node."""

from __future__ import annotations

import psycopg

from kit.fleet.local_nodes import start_nodes
from muniment.fleet.queue import build_queue_name, choose_node


def test_turn_queued_for_lost_node_runs_elsewhere(two_nodes):
    home = two_nodes.create_home()
    with psycopg.connect(two_nodes.base.superuser, options="-c search_path=muniment") as connection:
        connection.execute(
            "INSERT INTO procrastinate_jobs (queue_name, task_name, lock, args) "
            "VALUES ('node-gone', 'turn', %s, jsonb_build_object('home', %s::text))",
            (home.name, home.name),
        )
    assert home.nodes[0].run_task("remember", {"content": "The user prefers tea."})["status"] == "completed"


def test_stopping_node_hands_over_queued_turns(fleet, tmp_path):

    with start_nodes(fleet, tmp_path) as running:
        home = running.create_home()
        names = [each.node._options.name for each in running.nodes]
        number = names.index(choose_node(home.name, names))
        with psycopg.connect(fleet.superuser, options="-c search_path=muniment") as connection:
            connection.execute(
                "INSERT INTO procrastinate_jobs (queue_name, task_name, lock, args, scheduled_at) "
                "VALUES (%s, 'turn', %s, jsonb_build_object('home', %s::text), now() + interval '1 hour')",
                (build_queue_name(names[number]), home.name, home.name),
            )
        running.stop(running.nodes[number])
        with psycopg.connect(fleet.superuser, options="-c search_path=muniment") as connection:
            remaining = connection.execute(
                "SELECT queue_name FROM procrastinate_jobs WHERE lock = %s", (home.name,)
            ).fetchall()
            assert len(remaining) == 1
            assert remaining != [(build_queue_name(names[number]),)]
            connection.execute("DELETE FROM procrastinate_jobs WHERE lock = %s", (home.name,))
