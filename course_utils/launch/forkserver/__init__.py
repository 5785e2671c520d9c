"""The process that forks workers, its protocol with the notebook, and the rendezvous of the ranks."""
