"""Data parallel training that goes on when a replica dies, and takes in new ones.

    coordinator, outlives the replicas         member, one in each replica
    ──────────────────────────────────────────────────────────────────────────────────────────────────────────
    with Coordinator(num_replicas=4) as c:     with Member(address, number) as member:
        … start them, give them c.address          while step < num_steps:
                                                       step = member.meet(step, model, optimizer)
    knows who is alive: each has a connection          …  # the gradients of this member's samples
    counts votes, and tells all one outcome            is_committed = False
    serves the store for making groups                 while not is_committed:
                                                           member.meet(step, model, optimizer)
                                                           sums = [each.clone() for each in gradients]
                                                           is_committed = member.commit(member.all_reduce(sums))
                                                       …  # update the parameters by `sums`

A *generation* is a list of members; each has a gloo group of its own, since nobody can leave or enter one. If a member
dies in the middle of a step, some of the others may have the sums, and others not. So nobody uses them before all have
voted that they have theirs (two-phase commit). The coordinator decides once each member has voted or died, and all get
the same answer. If a vote is missing, those who are left make a group and add up their gradients again.

How is a death noticed? When a process ends, in whatever way, the system closes its connections: the coordinator knows
at once. In a collective, gloo raises an error only where a rank waits for the dead one. Others wait for ranks that have
stopped, and would wait until the timeout. So a member that gets an error drops its group, which closes the connections
to all, and the error goes round. While a group is made it would not, so the coordinator tells all who wait.

Not noticed are processes that hang, and machines that vanish without closing a connection: that takes heartbeats. If
the coordinator ends, so do the members, with ConnectionError; then the job starts anew from its checkpoint.

torchft 0.2 has parts like these: its lighthouse is our coordinator, its quorum our generation. It notices a death by
missing heartbeats, and decides otherwise: `should_commit()` is a vote within a replica, so replicas may differ, and one
that has fallen behind gets the state of one that has not. The gradients of a step that failed are not used again.
"""

from .coordinator import Coordinator
from .member import Member

__all__ = ["Coordinator", "Member"]
