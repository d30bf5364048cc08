"""The paper's experiments: the ring, the theorems in numbers, Atari; clients of everything else."""

from tddelta import _matplotlib as _matplotlib  # before anything else loads matplotlib
