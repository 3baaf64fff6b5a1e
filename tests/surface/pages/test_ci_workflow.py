"""The workflow that reviews policies has no more rights than it needs, and runs nothing of a pull request."""

from __future__ import annotations

import re

import yaml

from kit.where import REPOSITORY

CI = REPOSITORY / "examples" / "ci"
WORKFLOW = yaml.safe_load((CI / "policy-review.yml").read_text())
JOBS = WORKFLOW["jobs"]
STEPS = [(name, step) for name, job in JOBS.items() for step in job["steps"]]


def test_the_workflow_never_runs_with_the_rights_of_the_base():
    assert set(WORKFLOW[True]) == {"pull_request"}, "YAML reads `on` as true"
    assert WORKFLOW["permissions"] == {"contents": "read"}
    rights = {name: job.get("permissions") for name, job in JOBS.items()}
    assert rights == {"review": None, "comment": {"pull-requests": "write"}}


def test_only_what_holds_nothing_of_the_pull_request_may_write_and_only_in_the_same_repository():
    same = "github.event.pull_request.head.repo.full_name == github.repository"
    assert same in JOBS["comment"]["if"]
    assert JOBS["comment"]["needs"] == "review"
    assert not [step for name, step in STEPS if name == "comment" and "checkout" in step.get("uses", "")]


def test_nothing_that_others_wrote_becomes_part_of_a_command():
    for _, step in STEPS:
        assert "${{" not in step.get("run", "")
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"])
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


def test_the_tool_is_pinned_and_comes_before_the_checkout_and_the_script_from_the_base():
    review = [step for name, step in STEPS if name == "review"]
    (install,) = [at for at, step in enumerate(review) if "pip" in step.get("run", "")]
    (checkout,) = [at for at, step in enumerate(review) if "checkout" in step.get("uses", "")]
    assert install < checkout
    assert re.search(r" muniment==\d", review[install]["run"])
    (run,) = [step["run"] for step in review if step.get("name") == "Review"]
    assert "git show HEAD^1:ci/review_policies.sh" in run
