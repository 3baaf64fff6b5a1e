"""What must be right: nothing outside the roots is opened, nothing unjudged lands, all of it or none.

Standard library only. `threat-model/REVIEW.md` says in which order to read it, and what each file promises.

Elsewhere than on Linux importing what opens anything is `PlatformUnsupported`: `syscalls` names what other
systems lack.
"""
