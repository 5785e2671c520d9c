# %% wrong (replaced too early): who replaced the variable, and when?
# bash -c {shlex.quote(own)} → bash -c "{own}"
# %% wrong (exports the ranks before srun): who replaced the variable, and when?
# srun bash -c {shlex.quote(own)} → export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; srun {program}
# %% wrong (one task): what does srun run?
# srun bash → bash
# %% wrong (one task a node): and srun starts as many
# ntasks-per-node={workers_per_node} → ntasks-per-node=1
# %% wrong (says nothing of tasks): Slurm would start one
# - #SBATCH --ntasks-per-node={workers_per_node}
# +
# %% wrong (the node's own name): all meet at one address
# export RANK=$SLURM_PROCID → export MASTER_ADDR=$(hostname) RANK=$SLURM_PROCID
# %% wrong (localhost): MASTER_ADDR is 'localhost'
# $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) → localhost
# %% wrong (always one port): have the same MASTER_PORT
# $((20000 + SLURM_JOB_ID % 10000)) → 29500
# %% wrong (the number as a port): and no port from
# $((20000 + SLURM_JOB_ID % 10000)) → $((SLURM_JOB_ID + 60000))
# %% wrong (a port that large numbers of jobs leave): and no port from
# $((20000 + SLURM_JOB_ID % 10000)) → $((20000 + SLURM_JOB_ID / 10))
# %% wrong (all nodes' names): the first one's name is asked
#  | head -n 1) → )
# %% wrong (cuts the list of nodes itself): the first one's name is asked
# $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) → $(echo $SLURM_JOB_NODELIST | tr -d '[]' | cut -d, -f1)1
# %% wrong (an address for the name): the first one's name is asked
# export RANK=$SLURM_PROCID → export MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR RANK=$SLURM_PROCID
# %% wrong (starts it twice): once for each is asked
# exec {program} → {program}; exec {program}
# %% wrong (quotes the command itself): the file failed with exit code
# {shlex.quote(own)} → '{own}'
# %% wrong (no GPUs): no GPUs are asked for
# - #SBATCH --gpus-per-node={workers_per_node}
# +
# %% wrong (one GPU on each node): is one for each worker
# --gpus-per-node={workers_per_node} → --gpus-per-node=1
# %% wrong (a port for each task): and task 0 has 2
# export RANK=$SLURM_PROCID → export MASTER_PORT=$((MASTER_PORT + SLURM_PROCID)) RANK=$SLURM_PROCID
# %% wrong (no time): --time is not asked for
# - #SBATCH --time={minutes}
# +
# %% wrong (time with a unit): is no time of Slurm's
# --time={minutes} → --time={minutes}min
# %% wrong (the rank for the local rank): LOCAL_RANK is
# LOCAL_RANK=$SLURM_LOCALID → LOCAL_RANK=$SLURM_PROCID
# %% wrong (does not export): is it exported?
# export MASTER_PORT= → MASTER_PORT=
# %% wrong (begins with a command): stands behind the first command
# #SBATCH --nodes → set -e\n#SBATCH --nodes
# %% wrong (no shell named): must name the shell
# #!/bin/bash → # a file for Slurm
# %% wrong (fails and goes on silently): the file failed with exit code
# exec {program} → exec nothing-of-this-name {program}
# %% wrong (returns lines): and the file's text is asked
# - """
# + """.splitlines()

# %% right (env, short options, its own shell lines)
def batch_file(nodes, workers_per_node, minutes, program):
    tasks = nodes * workers_per_node
    import shlex

    lines = ["#!/bin/bash", f"#SBATCH -N {nodes}", "#SBATCH --gpus-per-task=1", f"#SBATCH -n {tasks}", f"#SBATCH -t {minutes}:00", "# the first node runs this"]
    lines += ["set -e", "head=$(hostname)", "port=$((10000 + SLURM_JOB_ID % 20000))"]
    common = f"WORLD_SIZE={tasks} LOCAL_WORLD_SIZE={workers_per_node} MASTER_ADDR=$head MASTER_PORT=$port"
    inner = "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID "
    lines.append(f"{common} srun sh -c {shlex.quote(inner + program)}")
    return "\n".join(lines) + "\n"
