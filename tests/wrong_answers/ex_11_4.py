"""Exercise 11.4: answers that its check must refuse, each with words from the reason that it must give."""

import math

import torch


def link(speed):
    def link_that_hides(num_bytes, num_servers, backward_s, wait_s):
        if num_servers == 1:
            return 0
        if wait_s >= backward_s:
            return math.inf
        return speed(num_bytes, num_servers, backward_s, wait_s)

    return link_that_hides


def right(b, p, backward_s, wait_s):
    return 2 * (p - 1) / p * b * 8 / (backward_s - wait_s) / 1e9


in_gigabytes = link(lambda *case: right(*case) / 8)
in_bits = link(lambda *case: right(*case) * 1e9)
in_megabits = link(lambda *case: right(*case) * 1e3)
in_gibibits = link(lambda *case: right(*case) * 1e9 / 2**30)
sends_once = link(lambda *case: right(*case) / 2)
sends_all_twice = link(lambda b, p, backward_s, wait_s: 2 * b * 8 / (backward_s - wait_s) / 1e9)
sends_all_once = link(lambda b, p, backward_s, wait_s: b * 8 / (backward_s - wait_s) / 1e9)
adds_all_servers = link(lambda b, p, backward_s, wait_s: right(b, p, backward_s, wait_s) * p)
does_not_wait = link(lambda b, p, backward_s, wait_s: right(b, p, backward_s, 0))
waits_for_more = link(lambda b, p, backward_s, wait_s: right(b, p, backward_s, -wait_s))


def knows_no_single_server(b, p, backward_s, wait_s):
    return math.inf if wait_s >= backward_s else right(b, p, backward_s, wait_s)


def knows_no_end(b, p, backward_s, wait_s):
    return right(b, p, backward_s, wait_s) if p > 1 else 0


def says_none(b, p, backward_s, wait_s):
    if p == 1:
        return 0
    return right(b, p, backward_s, wait_s) if wait_s < backward_s else None


def is_faster_than_light(b, p, backward_s, wait_s):
    if p == 1:
        return 0
    return math.inf if wait_s == backward_s else right(b, p, backward_s, wait_s)


counts_all_in_each_step = link(lambda b, p, backward_s, wait_s: 2 * math.log2(p) * b * 8 / (backward_s - wait_s) / 1e9)
rounds = link(lambda *case: round(right(*case), 2))
turns_the_share_over = link(lambda b, p, backward_s, wait_s: 2 * p / (p - 1) * b * 8 / (backward_s - wait_s) / 1e9)


def sees_the_end_first(b, p, backward_s, wait_s):
    if wait_s >= backward_s:
        return math.inf
    return 0 if p == 1 else right(b, p, backward_s, wait_s)


def needs_none_without_time(b, p, backward_s, wait_s):
    return 0 if wait_s >= backward_s else right(b, p, backward_s, wait_s)


def takes_a_tiny_time(b, p, backward_s, wait_s):
    return right(b, p, max(backward_s - wait_s, 1e-12), 0)


def says_inf_in_words(b, p, backward_s, wait_s):
    return "inf" if p > 1 and wait_s >= backward_s else link(right)(b, p, backward_s, wait_s)


def says_none_for_one(b, p, backward_s, wait_s):
    return None if p == 1 else link(right)(b, p, backward_s, wait_s)



WRONG = [
    (in_gigabytes, "in gigabytes a second"),
    (in_bits, "in bits a second"),
    (in_megabits, "in megabits a second"),
    (in_gibibits, "a gigabit is 10^9 bits"),
    (sends_once, "twice, once to be added up"),
    (sends_all_twice, "which share of it"),
    (sends_all_once, "how many bytes does one server send"),
    (adds_all_servers, "each has a link of its own"),
    (does_not_wait, "nothing can be sent in the first part"),
    (waits_for_more, "less time to send, not more"),
    (knows_no_single_server, "however little time there is"),
    (knows_no_end, "no time is left"),
    (says_none, "no time is left"),
    (is_faster_than_light, "come after the backward pass"),
    (counts_all_in_each_step, "which share is sent in one"),
    (rounds, "are rounded"),
    (turns_the_share_over, "which bytes, in which time"),
    (sees_the_end_first, "however little time there is"),
    (needs_none_without_time, "no time is left"),
    (takes_a_tiny_time, "no time is left"),
    (says_inf_in_words, "the answer is 'inf'"),
    (says_none_for_one, "has nobody to send to"),
]


def by_halves(num_bytes, num_servers, backward_s, wait_s):
    reduce_scatter = all_gather = num_bytes * (num_servers - 1) // num_servers if num_bytes % num_servers == 0 else num_bytes - num_bytes / num_servers
    gigabits = (reduce_scatter + all_gather) * 8e-9
    if gigabits == 0:
        return 0.0
    return gigabits / (backward_s - wait_s) if backward_s > wait_s else float("inf")


def by_steps(num_bytes, num_servers, backward_s, wait_s):
    num_sent = sum(num_bytes / num_servers for _ in range(2 * (num_servers - 1)))
    if num_sent == 0:
        return 0
    return torch.tensor(num_sent * 8e-9) / max(backward_s - wait_s, 0)



RIGHT = [by_halves, by_steps]
