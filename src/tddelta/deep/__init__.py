"""PPO whose critic is split across time scales, compiled as one program for a CPU or a GPU."""
