# %% wrong (a dict): a dict came back, and os.environ takes texts only
# json.dumps({"cluster": {"worker": workers}, "task": task}) → {"cluster": {"worker": workers}, "task": task}
# %% wrong (as Python prints it): as Python prints it, and no JSON
# json.dumps( → str(
# %% wrong (half a text): it is no JSON
# return json.dumps({"cluster": {"worker": workers}, "task": task}) → return json.dumps({"cluster": {"worker": workers}, "task": task})[:-1]
# %% wrong (bytes): and a text is asked
# "task": task}) → "task": task}).encode()
# %% wrong (sets it): is it returned, or only printed or set?
# return json.dumps({"cluster": {"worker": workers}, "task": task}) → __import__("os").environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
# %% wrong (the workers alone): is JSON of [
# json.dumps({"cluster": {"worker": workers}, "task": task}) → json.dumps(workers)
# %% wrong (no cluster around them): 'cluster' is [
# {"worker": workers} → workers
# %% wrong (a chief): 'cluster' has 'chief', too
# {"worker": workers} → {"chief": workers[:1], "worker": workers[1:]}
# %% wrong (the index alone): 'task' is 0, and should be an object
# "task": task} → "task": task["index"]}
# %% wrong (type of the host): no job of the cluster has that name
# "type": "worker" → "type": hosts[host]
# %% wrong (the index as a text): what is it in JSON if it is a number?
# "index": host * workers_per_host + local → "index": str(host * workers_per_host + local)
# %% wrong (the index with a point): not a whole number
# host * workers_per_host + local} → host * workers_per_host / 1 + local}
# %% wrong (the number on the host): that is the number on its own host
# "index": host * workers_per_host + local → "index": local
# %% wrong (the host's number): that is the host's number
# "index": host * workers_per_host + local → "index": host
# %% wrong (hosts first): it counts through the hosts first
# host * workers_per_host + local → local * len(hosts) + host
# %% wrong (as many workers as hosts): are there as many workers on a host as there are hosts?
# host * workers_per_host + local → host * len(hosts) + local
# %% wrong (its port): which place has its address in the list?
# host * workers_per_host + local → port + local
# %% wrong (one port for all): cannot all listen on the same port
# {port + i} → {port}
# %% wrong (ports go on): its ports go on from host to host
# f"{name}:{port + i}" for name in hosts for i in range(workers_per_host) → f"{name}:{port + h * workers_per_host + i}" for h, name in enumerate(hosts) for i in range(workers_per_host)
# %% wrong (a port for each host): the workers of a host cannot share a port
# {port + i} → {port + hosts.index(name)}
# %% wrong (begins one later): which port has the first worker of a host?
# {port + i} → {port + i + 1}
# %% wrong (every second port): which ports are there on each of the hosts?
# {port + i} → {port + 2 * i}
# %% wrong (port by port): it goes through the hosts once for each port
# for name in hosts for i in range(workers_per_host)] → for i in range(workers_per_host) for name in hosts]
# %% wrong (sorted): are the hosts in another order in it?
# for name in hosts for i → for name in sorted(hosts) for i
# %% wrong (one for each host): each host has one address in it
# {port + i}" for name in hosts for i in range(workers_per_host) → {port}" for name in hosts
# %% wrong (this host alone): those are the addresses of one host
# for name in hosts for i → for name in [hosts[host]] for i
# %% wrong (the others): is the worker itself left out?
# workers} → [each for i, each in enumerate(workers) if i != task["index"]]}
# %% wrong (itself first): is the worker itself the first?
# workers} → [workers[task["index"]], *(each for i, each in enumerate(workers) if i != task["index"])]}
# %% wrong (turned round to itself): does it begin with the worker itself?
# workers} → workers[task["index"] :] + workers[: task["index"]]}
# %% wrong (pairs): and should be a text with a host and a port
# f"{name}:{port + i}" → (name, port + i)
# %% right (indented, by a product)
import itertools


def tf_config(hosts, workers_per_host, port, host, local):
    if not 0 <= host < len(hosts) or not 0 <= local < workers_per_host:
        raise ValueError(f"host {host} or its worker {local} does not exist")
    places = list(itertools.product(range(len(hosts)), range(workers_per_host)))
    return json.dumps(
        {
            "task": {"index": places.index((host, local)), "type": "worker"},
            "cluster": {"worker": [hosts[h] + ":" + str(port + i) for h, i in places]},
        },
        indent=2,
    )
