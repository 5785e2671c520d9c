"""Runs a program of replicas, some of which die inside a sum: `dying.py PROGRAM {"number": step} ADDRESS NUMBER FILE`.

The PROGRAM gets ADDRESS NUMBER FILE. Who is to die prints {"killed": number, "time_s": …} just before.
"""

import json
import os
import runpy
import signal
import sys
import time

from course_utils.parallel.membership import Member


def main(program, deaths, *arguments):
    deaths, usual = json.loads(deaths), Member.all_reduce

    def all_reduce(member, tensors):
        if deaths.get(str(member.number)) == member._step:
            *first, last = tensors
            usual(member, first)
            member._group.allreduce([last])  # has begun: others have its first messages, or not
            print(json.dumps({"killed": member.number, "time_s": time.time()}), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return usual(member, tensors)

    Member.all_reduce = all_reduce
    sys.argv, sys.path[0] = [program, *arguments], os.path.dirname(program)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
