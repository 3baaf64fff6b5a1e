"""Native code in a fenced worker, threat by threat: nothing that it tries to reach is reached.

The attempts are those of `muniment doctor`; `test_attempts.py` shows that each succeeds without the fence.
"""

from __future__ import annotations

import pytest

from kit.confine.kernel import needs_fence
from kit.confine.probe import soon
from muniment.confine.attempts.attempt import DONE, UNTRIED
from muniment.confine.attempts.system import ATTEMPTS
from muniment.confine.attempts.trial import try_all
from muniment.names import Enforcement

pytestmark = needs_fence

READ = (
    *("read-outside", "read-outside-openat2", "read-dotdot", "read-dotdot-openat2", "read-link"),
    *("read-link-openat2", "read-linked-directory", "list-outside", "open-by-handle"),
)
WRITE = (
    *("write", "write-openat2", "write-outside", "empty-openat2", "truncate", "create", "create-openat2"),
    *(
        *("create-outside", "create-nameless", "unlink", "rename", "hard-link", "symbolic-link"),
        "make-directory",
    ),
    *("make-fifo", "change-mode", "change-mode-outside", "change-times", "set-attribute"),
)
SEND = ("tcp-connect", "tcp-listen", "udp-send", "unix-path", "unix-abstract", "netlink", "packets")
RUN = (
    *("execute", "execute-memory", "fork", "thread", "map-executable", "make-executable", "load-library"),
    *("import-module", "gain-capability", "set-user", "new-user-namespace", "join-namespace", "mount"),
    *("change-root", "io-uring", "bpf", "perf", "userfaultfd", "shared-memory", "personality", "reboot"),
    *("rename-machine", "x32", "out-of-band"),
)
REACH = (
    *("read-broker-memory", "copy-broker-memory", "read-sibling-memory", "copy-sibling-memory"),
    *("read-broker-environment", "read-zygote-environment", "read-own-environment", "find-environment"),
    *("read-broker-pipe", "take-descriptor-of-broker", "trace-broker", "trace-sibling", "kill-broker"),
    *("kill-zygote", "kill-sibling", "signal-broker", "read-limits-of-broker", "be-traceable", "keyring"),
    *("add-key", "other-process-clock"),
)
LEARN = (
    *(
        *("metadata-outside", "open-outside-for-neither", "stat-outside", "access-outside", "read-a-link"),
        "name-to-handle",
    ),
    "change-directory",
)
USE_UP = ("much-memory", "many-descriptors")

NOT_EVERYWHERE = {"x32", "open-by-handle", "name-to-handle"}
"""What some machines and file systems do not have, so that it cannot be tried there."""


def assert_none_succeeds(names, but=frozenset()):
    """Behind the whole fence. What happened is looked at first: a fence that is missing must show by that."""
    found = try_all(soon(), attempts=[ATTEMPTS[name] for name in names])
    assert {each.attempt.name for each in found.findings if each.outcome == DONE} == but
    assert found.held.enforcement is Enforcement.FULL
    assert {each.attempt.name for each in found.findings if each.outcome == UNTRIED} <= NOT_EVERYWHERE


def test_every_attempt_is_about_one_of_these_threats():
    listed = [*READ, *WRITE, *SEND, *RUN, *REACH, *LEARN, *USE_UP]
    assert sorted(listed) == sorted(ATTEMPTS)


@pytest.mark.threat("T-FENCE-01", control="landlock")
def test_nothing_outside_is_read():
    assert_none_succeeds(READ)


@pytest.mark.threat("T-FENCE-02", control="great_layers")
def test_nothing_is_written_created_or_removed():
    assert_none_succeeds(WRITE)


@pytest.mark.threat("T-FENCE-03", control="seccomp")
def test_nothing_is_sent():
    assert_none_succeeds(SEND)


@pytest.mark.threat("T-FENCE-04", control="seccomp")
def test_nothing_is_started_loaded_or_gained():
    assert_none_succeeds(RUN)


@pytest.mark.threat("T-FENCE-05", control="great_layers")
def test_no_other_process_is_reached():
    assert_none_succeeds(REACH)


@pytest.mark.threat("T-FENCE-06", control="seccomp")
def test_of_what_exists_outside_one_thing_is_learned_by_openat2_and_nothing_by_another_call():
    assert_none_succeeds(LEARN, but={"metadata-outside", "open-outside-for-neither"})


@pytest.mark.threat("T-FENCE-07", control="fence_limits")
def test_the_machine_is_not_used_up():
    assert_none_succeeds(USE_UP)
